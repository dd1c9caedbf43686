"""Not finite: the loss of a rank is NaN or infinite, and stays so.

Sees        for each rank the step since which its loss is not finite, without a finite one in between, and the last one before it whose loss was.
Says        `not_finite`, with the ranks that had it first: from a gradient that is not finite it comes to every rank with the next step, so whoever was
            earlier is where it began. Nodes tell of their ranks at different moments, up to a second apart: whoever has not told of that step yet may have
            had it before, and is waited for, for `patience_s`. It stands until the loss of every rank is finite again.
Is silent   about gradients: a loss scaler lets them overflow and skips the step. About fewer than `steps` steps in a row.
Is wrong    about where it began when the ranks that were first did not report at that step.
Costs       a pass over the ranks per look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.domain.finding import Finding


@dataclass(slots=True)
class NotFinite:
    """The ranks of one generation; another one needs another."""

    steps: int = 3
    patience_s: float = 5.0
    _since: float | None = None
    _standing: Finding | None = None

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return [self._standing] if self._standing is not None else []

    def look(self, since: Mapping[int, int], now_at: Mapping[int, int], nodes: Sequence[str], now: float, until: Mapping[int, int] | None = None) -> None:
        """`since` is rank to the step its loss turned, only for those that are not finite now; `now_at` is the step each rank is at, `nodes`
        where it runs, `until` the last step before that whose loss was finite: on a GPU not every loss is read."""
        if not since:
            self._since = self._standing = None
        elif self._standing is None and any(now_at[rank] - step + 1 >= self.steps for rank, step in since.items()):
            self._since = now if self._since is None else self._since
            known_to = min(since.values()) + self.steps - 1
            if now - self._since >= self.patience_s or all(at >= known_to for rank, at in now_at.items() if rank not in since):
                self._standing = self._say(since, now_at, nodes, self._since, until or {})

    def _say(self, since: Mapping[int, int], ranks: Mapping[int, int], nodes: Sequence[str], now: float, until: Mapping[int, int]) -> Finding:
        step = min(since.values())
        first = tuple(sorted(rank for rank, one in since.items() if one == step))
        alone = len(first) < len(ranks)
        who = f"rank{'s' if len(first) > 1 else ''} {', '.join(map(str, first))}" if alone else "every rank"
        spread = "" if not alone else f"; {len(since)} of {len(ranks)} ranks have it now" if len(since) > len(first) else "; the others are finite"
        return Finding(
            kind="not_finite", ranks=first if alone else (), node=nodes[first[0]] if len({nodes[rank] for rank in first}) == 1 and alone else "",
            since=now, step=step, sound=min(until.get(rank, -1) for rank in first),
            because=f"the loss of {who} is not finite since step {step}{spread}",
            evidence=tuple(f"rank {rank}: since step {one}" for rank, one in sorted(since.items())[:16]),
        )  # fmt: skip
