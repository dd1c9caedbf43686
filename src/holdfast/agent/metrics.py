"""`/metrics` of an agent: its own node's series, also while no control is there to ask.

What was said stays for a minute, as in control, because ranks speak of their steps only when they finished one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from holdfast import __version__
from holdfast.wire.exposition import exposition
from holdfast.wire.messages import Signals
from holdfast.wire.page import Page

_STALE_S: Final = 60.0


class AgentMetrics:
    def __init__(self, job: str, node: str, say: Callable[[str], None]) -> None:
        self._page, self._node = Page(job, __version__, say), node
        self._columns: tuple[tuple[str, str], ...] = ()
        self._newest: dict[tuple[str, str], tuple[float, float]] = {}  # Metric and what of it, to value and when it was said.

    def take(self, message: Signals, now: float) -> None:
        self._columns = self._columns if message.columns is None else message.columns
        self._newest |= {name: (value, now) for name, value in zip(self._columns, message.values, strict=True) if value is not None}
        self._newest = {name: said for name, said in self._newest.items() if now - said[1] <= _STALE_S}

    def text(self, openmetrics: bool) -> Iterator[str]:
        by_metric: dict[str, list[tuple[str, str, float]]] = {}
        for (metric, of), (value, _) in sorted(self._newest.items()):
            by_metric.setdefault(metric, []).append((self._node, of, value))
        return exposition(self._page.families(by_metric.items()), openmetrics=openmetrics)
