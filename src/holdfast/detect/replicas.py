"""Replicas that disagree: ranks that must hold the same parameters do not.

Sees        from each rank of a DDP job the checksum of its parameters and the step it was taken at.
Says        `replicas_disagree` when ranks have different checksums for the same step, with those that are few: silent corruption in one GPU's memory or
            arithmetic, or a script that changes parameters on some ranks alone. It stands for the rest of the generation: nothing brings them together again.
Is silent   about a step until all ranks have said it, or more than half of them the same: of two of three that differ nobody knows who is right. Each is heard
            once a second, so a rank that looked again meanwhile is missed; looks are spaced so that this is rare (`trainer/drift.py`).
            Where as many say one thing as another (two ranks, above all) it names all of them: which is right cannot be told.
Is wrong    when more than half are corrupt in the same way.
Costs       a comparison a look.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.domain.finding import Finding

_STEPS = 16  # That are remembered, for ranks that are late.


@dataclass(slots=True)
class Replicas:
    """The ranks of one generation; another one needs another."""

    _said: OrderedDict[int, dict[int, int]] = field(default_factory=OrderedDict)  # Step to rank to checksum.
    _agreed: int = -1  # The last step for which all ranks have said the same.
    _standing: Finding | None = None

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return [self._standing] if self._standing is not None else []

    def look(self, digests: Mapping[int, tuple[int, int]], now: float) -> None:
        """`digests` is rank to the step and the checksum it said last."""
        for rank, (step, digest) in digests.items():
            self._said.setdefault(step, {})[rank] = digest
        while len(self._said) > _STEPS:
            self._said.pop(min(self._said))
        if self._standing is None:
            self._standing = next(filter(None, (self._judge(step, len(digests), now) for step in sorted(self._said))), None)

    def _judge(self, step: int, ranks: int, now: float) -> Finding | None:
        said = self._said[step]
        counts = Counter(said.values())
        if len(counts) < 2:
            self._agreed = max(self._agreed, step) if len(said) >= max(2, ranks) else self._agreed
            return None
        if len(said) < ranks and 2 * max(counts.values()) <= ranks:
            return None
        (most, holders), (_, next_holders), *_ = counts.most_common()
        tie = holders == next_holders
        odd = tuple(sorted(rank for rank, digest in said.items() if tie or digest != most))
        who = f"rank {odd[0]} holds" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} hold"
        others = "different parameters, as many the one as the other, and nobody can tell which are right" if tie else (
            f"other parameters than the {holders} ranks that agree"
        )  # fmt: skip
        return Finding(
            kind="replicas_disagree", ranks=odd, since=now, step=step, sound=self._agreed,
            because=f"at step {step} {who} {others}: from there on they train different models",
            evidence=tuple(f"rank {rank}: {digest:06x}" for rank, digest in sorted(said.items())[:16]),
        )  # fmt: skip
