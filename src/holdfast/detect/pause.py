"""Pause: a rank that gets no further outside a collective, and may go on by itself.

Sees        the signs of every rank of the gang: where each is, what it waits for, whether anything of it is at work.
Says        `pause`, with the place in the script, how long it has lasted, who waits for it, and what to write if it is meant. A pause at a place is told
            once: the next one there is told only when it is half as long again as the longest that ended by itself.
Is wrong    when a rank outside a collective will never go on (a deadlock, an endless loop): then this is the warning, and `silent_rank` follows at the limit.
Costs       one pass over the ranks per look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.detect.standstill import Doing, Sight
from holdfast.domain.finding import Finding, Severity

LONGER: Final = 1.5  # So many times the longest pause known at its place is worth telling again.


def is_late(sight: Sight, longest_s: float) -> bool:
    """Whether this pause is longer than what is usual there."""
    return sight.signs is not None and sight.quiet_s >= max(sight.signs.usual_s, LONGER * longest_s)


def pause(sight: Sight, others: Sequence[Sight], limit_s: float | None) -> Finding:
    assert sight.signs is not None
    where = f"in {sight.signs.where}" if sight.signs.where else f"in phase {sight.phase!r}"
    hint = '. If it is meant: `with run.phase("eval"):`' if sight.phase == "step" else ""
    return Finding(
        kind="pause", node=sight.node, ranks=(sight.rank,), step=sight.step, severity=Severity.WARNING, place=sight.signs.place, lasted_s=sight.quiet_s,
        because=f"rank {sight.rank} has been {where} for {in_time(sight.quiet_s)}{who_waits(others)}{hint}", evidence=what_comes(sight, limit_s),
    )  # fmt: skip


def who_waits(others: Sequence[Sight]) -> str:
    waiting = [other for other in others if other.doing is Doing.WAITS]
    if not waiting:
        return ""
    return "; the others wait for it" if len(waiting) == len(others) else f"; {len(waiting)} of {len(others)} other ranks wait in a collective"


def what_comes(sight: Sight, limit_s: float | None) -> tuple[str, ...]:
    """The evidence, and what ends this pause if it does not end by itself."""
    assert sight.signs is not None
    said = [f"rank {sight.rank} is {sight}"]
    said += [f"called as {sight.signs.place}"] if sight.signs.place else []
    if limit_s is None:
        said.append("nothing is done about it (--hang-limit off)")
    else:
        said.append(f"it is taken for a hang after {in_time(limit_s)}; --hang-limit says otherwise")
    timeout_s = sight.signs.group_timeout_s
    if timeout_s is not None and not sight.alone:
        said.append(f"torch itself ends the collective of those who wait after {in_time(timeout_s)}: init_process_group(timeout=…)")
    return tuple(said)


def in_time(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"
