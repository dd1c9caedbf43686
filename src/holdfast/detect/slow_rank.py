"""Slow rank: one rank takes longer for its own work than the others, again and again, and the whole gang waits for it.

Sees        for each rank the seconds a step takes it, and how many of them it waits in collectives. What is left is its own work. In a gang that works in step
            the step time is the same for all: the slow rank is the one that does not wait.
Says        `slow_rank`, one for each, with the part of the step that is longer (data, compute, optimizer, save). It stands until the rank has kept up again.
Is silent   about a rank that is slow now and then: over `looks` looks its median must be `on` times that of the others, and most of the looks above `off`.
Is wrong    when a rank has more to do by design (it logs, evaluates, holds a larger shard): it is slow, and nothing is broken.
Misses      ranks whose communication cannot be told from their work (no DDP and no collective by name): then nobody differs. And a gang all of which is slow.
Costs       one median over ranks times looks, a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.finding import Finding, Severity

Row = NDArray[np.float64]  # One number for each rank; NaN where there is none.


@dataclass(slots=True)
class SlowRank:
    """The ranks of one generation; another one needs another."""

    ranks: int
    looks: int = 20
    on: float = 1.2
    off: float = 1.1
    share: float = 0.8  # Of the looks that must be above `off` before it is said. It is taken back when so many are below it, or when the median is.
    _ratios: Row = field(init=False)
    _shares: Row = field(init=False)  # Of the step, what a rank takes longer for its own work than the others.
    _parts: dict[str, Row] = field(default_factory=dict)
    _count: int = 0
    _standing: dict[int, Finding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ratios = np.full((self.looks, self.ranks), np.nan)
        self._shares = np.full((self.looks, self.ranks), np.nan)

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return list(self._standing.values())

    def look(self, step_s: Row, communication_s: Row, parts: Mapping[str, Row], nodes: Sequence[str], now: float) -> None:
        """Take one look's numbers. `parts` are the seconds of each part of a step; `nodes` says where each rank runs."""
        own = step_s - np.nan_to_num(communication_s)
        own[~np.isfinite(communication_s)] = np.nan
        if np.count_nonzero(np.isfinite(own)) < 2:
            return
        slot = self._count % self.looks
        others = _median_of_others(own)
        self._ratios[slot] = np.divide(own, others, out=np.full(own.size, np.nan), where=others > 0)
        self._shares[slot] = np.divide(own - others, step_s, out=np.full(own.size, np.nan), where=step_s > 0)
        for name, seconds in parts.items():
            self._parts.setdefault(name, np.full((self.looks, self.ranks), np.nan))[slot] = seconds
        self._count += 1
        if self._count >= self.looks:
            self._judge(nodes, now)

    def _judge(self, nodes: Sequence[str], now: float) -> None:
        seen = np.count_nonzero(np.isfinite(self._ratios), axis=0)
        with np.errstate(invalid="ignore"):
            above = np.count_nonzero(self._ratios > self.off, axis=0) / np.maximum(1, seen)
        middle = _nanmedian(self._ratios)
        slow = [int(rank) for rank in np.flatnonzero((seen >= self.looks // 2) & (middle >= self.on) & (above >= self.share))]
        for rank in slow:
            if rank not in self._standing:
                self._standing[rank] = self._say(rank, float(middle[rank]), nodes, now)
        # Noise alone is above `off` in every fifth look or so: the median says it sooner.
        for rank in [rank for rank in self._standing if above[rank] <= 1 - self.share or middle[rank] < self.off]:
            del self._standing[rank]

    def _say(self, rank: int, ratio: float, nodes: Sequence[str], now: float) -> Finding:
        usual = {name: _nanmedian(seconds) for name, seconds in self._parts.items()}
        longer = {name: float(seconds[rank] - _median_of_others(seconds)[rank]) for name, seconds in usual.items() if np.isfinite(seconds).sum() > 1}
        longer = {name: seconds for name, seconds in longer.items() if np.isfinite(seconds)}
        worst = max(longer, key=lambda name: longer[name], default="")
        part = f", most of it in {worst} ({1000 * longer[worst]:+.0f} ms a step)" if worst and longer[worst] > 0 else ""
        return Finding(
            kind="slow_rank", ranks=(rank,), node=nodes[rank], since=now - self.looks, severity=Severity.WARNING,
            because=f"rank {rank} takes {ratio:.2f} times as long for its own work as the others, over the last {self.looks} looks{part}",
            evidence=tuple(f"{name}: {1000 * seconds:+.1f} ms a step against the others" for name, seconds in sorted(longer.items())),
            adds_s=sum(longer.values()), share=float(np.clip(np.nan_to_num(_nanmedian(self._shares)[rank]), 0.0, 1.0)),
        )  # fmt: skip


def _median_of_others(own: Row) -> Row:
    """For each rank the median of the others. With many ranks one of them does not move the median, and it is taken once."""
    if own.size > 16:
        return np.full_like(own, np.nanmedian(own))
    return np.array([np.nanmedian(others) if np.isfinite(others := np.delete(own, rank)).any() else np.nan for rank in range(own.size)])


def _nanmedian(rows: Row) -> Row:
    """The median of each column; NaN for one that holds nothing, without a warning about it."""
    result: Row = np.full(rows.shape[1], np.nan)
    some = np.isfinite(rows).any(axis=0)
    result[some] = np.nanmedian(rows[:, some], axis=0)
    return result
