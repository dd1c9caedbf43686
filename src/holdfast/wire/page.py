"""What control and agents have in common about `/metrics`: the catalogue's metrics by their names, bounded, and which version speaks.

Bounded     at most 50 names that a script made up, and 256 series of a metric for each node. What is left out is counted in `holdfast_series_left_out` and
            said once. Names that are neither the catalogue's nor well-formed are not passed on at all.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from holdfast.domain.gauges import USER_NAME
from holdfast.domain.metric import METRICS, PREFIX, USER_PREFIX, Metric, user_metric
from holdfast.wire.exposition import JOB_LABEL, Family, family_of

OWN_MAX: Final = 50
SERIES_MAX: Final = 256  # Of one metric and node.

Row = tuple[str, str, float]  # Node, what of it, value.


class Page:
    def __init__(self, job: str, version: str, say: Callable[[str], None]) -> None:
        self._job, self._version, self._say = job, version, say
        self._own: dict[str, None] = {}  # Names of scripts' own that were passed on once; they are kept, so that no later one takes their place.
        self._said = False

    def families(self, found: Iterable[tuple[str, Sequence[Row]]]) -> Iterator[Family]:
        """Of each metric's name and rows."""
        yield self._build_info()
        left_out = 0
        for name, rows in found:
            metric = self._metric(name)
            kept = _bounded(rows) if metric is not None else []
            left_out += len(rows) - len(kept)
            if metric is not None and kept:
                yield family_of(metric, self._job, kept)
        said = "Series that are not on this page, because there are too many."
        yield Family(name=f"{PREFIX}series_left_out", kind="gauge", help=said, samples=[(((JOB_LABEL, self._job),), left_out)])
        if left_out and not self._said:
            self._said = True
            room = f"{OWN_MAX} names of scripts' own, and for {SERIES_MAX} series of a metric and node"
            self._say(f"/metrics leaves {left_out} series out: it has room for {room}")

    def _metric(self, name: str) -> Metric | None:
        if name in METRICS:
            return METRICS[name]
        own = name.removeprefix(USER_PREFIX)
        if own == name or not USER_NAME.fullmatch(own) or (name not in self._own and len(self._own) >= OWN_MAX):
            return None
        self._own[name] = None
        return user_metric(own)

    def _build_info(self) -> Family:
        labels = ((JOB_LABEL, self._job), ("version", self._version), ("python", platform.python_version()))
        return Family(name=f"{PREFIX}build_info", kind="info", help="The version of Holdfast that speaks.", samples=[(labels, 1.0)])


def _bounded(rows: Sequence[Row]) -> list[Row]:
    seen: Counter[str] = Counter()
    kept = []
    for row in rows:
        seen[row[0]] += 1
        if seen[row[0]] <= SERIES_MAX:
            kept.append(row)
    return kept
