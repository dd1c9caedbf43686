"""The bottleneck: which part of a step the slow ranks spend their time in, and by how much more than the healthy one beside them.

Own work is compared with own work: in communication a healthy rank waits for the slow one, and looks the slower for it. Where no rank differs, the largest
part of the step is named; and of communication only what the rank that waits least waits, since more than that is waiting for somebody.

Is wrong    where the parts cannot be told from each other (see trainer/split.py): everything is compute then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.domain.profile import OWN_PARTS, RankProfile

DIFFERS = 1.1  # Own work of a rank that was found slow that is so many times as long is another matter than chance.
STANDS_OUT = 1.2  # Of one that nobody found slow: as much as the detector of slow ranks asks for.


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    bottleneck: str = ""
    says: tuple[str, ...] = ()


def compare(ranks: Sequence[RankProfile], *, slow: Sequence[int]) -> Compared:
    """`slow` are those that were taken for slow; of profiles without such a rank, or with no other, all are compared with the quickest."""
    seen = [one for one in ranks if one.steps > 0]
    if not seen:
        return Compared()
    beside = min([one for one in seen if one.rank not in slow] or seen, key=lambda one: (_own_s(one), one.rank))
    suspects = [one for one in seen if one is not beside and (one.rank in slow or not {other.rank for other in seen} - set(slow) or not slow)]
    slowest = max(suspects, key=lambda one: (_own_s(one), -one.rank), default=None)
    differs = DIFFERS if slow else STANDS_OUT
    if slowest is None or _own_s(slowest) < differs * _own_s(beside):
        return _alike(seen)
    return Compared(bottleneck=_longer(slowest, beside), says=tuple(_against(one, beside) for one in suspects if _own_s(one) >= differs * _own_s(beside)))


def _own_s(one: RankProfile) -> float:
    return sum(one.parts.get(part, 0.0) for part in OWN_PARTS)


def _longer(one: RankProfile, beside: RankProfile) -> str:
    return max(OWN_PARTS, key=lambda part: one.parts.get(part, 0.0) - beside.parts.get(part, 0.0))


def _against(one: RankProfile, beside: RankProfile) -> str:
    part = _longer(one, beside)
    mine, others = one.parts.get(part, 0.0), beside.parts.get(part, 0.0)
    times = f": {mine / others:.1f} times" if others > 0 else ""
    against = f"rank {one.rank} spends {_ms(mine)} a step in {part} where rank {beside.rank} spends {_ms(others)}{times}"
    return f"{against}{_operator(one, beside)}; bottleneck: {part}"


def _operator(one: RankProfile, beside: RankProfile) -> str:
    """The one that makes most of the difference, which need not be the longest."""
    others = {operator.name: operator.seconds for operator in beside.operators}
    more = max(one.operators, key=lambda operator: operator.seconds - others.get(operator.name, 0.0), default=None)
    if more is None:
        return ""
    against = f", {_ms(others[more.name])} on rank {beside.rank}" if more.name in others else ""
    return f"; the largest difference is {more.name} ({_ms(more.seconds)} a step{against})"


def _alike(seen: Sequence[RankProfile]) -> Compared:
    """Nobody stands out: where the time goes on all of them."""
    middle = sorted(seen, key=lambda one: (_own_s(one), one.rank))[len(seen) // 2]
    parts: dict[str, float] = {part: middle.parts[part] for part in OWN_PARTS if part in middle.parts}
    waits = [one.parts["communication"] for one in seen if "communication" in one.parts]
    if waits:
        parts["communication"] = min(waits)
    most = max(parts, key=lambda part: parts[part], default="")
    shares = ", ".join(f"{part} {_ms(seconds)}" for part, seconds in sorted(parts.items(), key=lambda pair: -pair[1]) if seconds > 0)
    heaviest = f"; the heaviest operator is {middle.operators[0].name} ({_ms(middle.operators[0].seconds)} a step)" if middle.operators else ""
    who = f"rank {seen[0].rank} takes" if len(seen) == 1 else "no rank stands out: a step takes"
    alone = ", or waiting for a rank that is slower: one rank alone cannot tell" if len(seen) == 1 and most == "communication" else ""
    return Compared(bottleneck=most, says=(f"{who} {_ms(middle.step_s)}{' a step' if len(seen) == 1 else ''} ({shares}){heaviest}; bottleneck: {most}{alone}",))


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
