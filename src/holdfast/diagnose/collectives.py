"""Who has not entered a collective: in a group that hangs, ranks wait in one that others have not come to.

Takes the newest collective of each rank in each process group, as the flight recorder has it. The furthest one is where the gang waits; who is behind it has
not entered it. Wrong when a rank could not be asked: it is said to be missing only where the group's members are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.domain.collective import Collective
from holdfast.domain.diagnosis import Cause, Diagnosis

_CONFIDENCE = 0.85  # As for a stack that is not where all others wait: two ways to see the same.


def behind(entered: Mapping[str, Sequence[Collective]]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ranks that have not come to a collective in which others wait, and the same in words. `entered` is by rank, as text."""
    ranks: set[int] = set()
    says: list[str] = []
    for group in sorted({one.group for ones in entered.values() for one in ones}):
        newest = {int(rank): one for rank, ones in entered.items() for one in ones if one.group == group}
        furthest = max(newest.values(), key=lambda one: one.sequence)
        waiting = sorted(rank for rank, one in newest.items() if one.sequence == furthest.sequence and not one.done)
        late = {rank: one.sequence for rank, one in newest.items() if one.sequence < furthest.sequence}
        silent = sorted(set(furthest.members) - newest.keys()) if furthest.members else []
        if not waiting or not (late or silent):
            continue
        ranks |= late.keys()
        where = f"{furthest.operation or 'collective'} {furthest.sequence} of {group}"
        told = [f"{_who(sorted(late))} {'has' if len(late) == 1 else 'have'} not entered it (last: {min(late.values())})"] if late else []
        told += [f"nothing is known of {_who(silent)}"] if silent else []
        says.append(f"flight recorder: {_who(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in {where}, {' and '.join(told)}")
    return tuple(sorted(ranks)), tuple(says)


def sharpen(diagnosis: Diagnosis, entered: Mapping[str, Sequence[Collective]], said: Sequence[str]) -> Diagnosis:
    """What the collectives add to a diagnosis: evidence always, the culprit of a hang where there was only a guess."""
    ranks, says = behind(entered)
    diagnosis = replace(diagnosis, evidence=(*diagnosis.evidence, *says, *said))
    if diagnosis.cause is Cause.HANG and ranks and diagnosis.confidence < _CONFIDENCE:
        return replace(diagnosis, ranks=ranks, confidence=_CONFIDENCE, because=f"{says[0].removeprefix('flight recorder: ')}; {diagnosis.because}")
    return diagnosis


def _who(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
