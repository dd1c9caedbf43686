"""`/metrics` of control: every series of the job, and what only control knows: incidents.

Sees        the newest values in the rings, the state of the job.
Costs       4 µs a series for each scrape, two thousand at a time, with others' turns between them; nothing while nobody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from holdfast import __version__
from holdfast.control.newest import SPEAKING_S, Newest
from holdfast.control.watching import Watching
from holdfast.domain.finding import Severity
from holdfast.domain.incident import Incident
from holdfast.domain.metric import METRICS, PREFIX
from holdfast.domain.state import State
from holdfast.wire.exposition import JOB_LABEL, Family, exposition
from holdfast.wire.page import Page, Row

KINDS_MAX: Final = 100
_SEVERITIES: Final = tuple(Severity)  # From the least to the worst.


class ControlMetrics:
    def __init__(self, job: str, watching: Watching, newest: Newest, say: Callable[[str], None]) -> None:
        self._job, self._watching, self._newest = job, watching, newest
        self._page = Page(job, __version__, say)

    def text(self, state: State, now: float, openmetrics: bool) -> Iterator[str]:
        families = chain(incident_families(self._job, list(state.incidents)), self._page.families(self._found(now)))
        return exposition(families, openmetrics=openmetrics)

    def _found(self, now: float) -> Iterator[tuple[str, list[Row]]]:
        nodes = set(self._watching.speaking(now, SPEAKING_S))
        own = [name for name in self._watching.rings.metrics() if name not in METRICS]
        for name in (*METRICS, *own):
            yield name, self._newest.of(name, nodes, now)


def incident_families(job: str, incidents: list[Incident]) -> Iterator[Family]:
    kinds = Counter(_kind(incident) for incident in incidents)
    listed = dict(list(kinds.items())[: KINDS_MAX - 1])  # In the order of their first, so that none changes its place.
    listed["other"] = kinds.total() - sum(listed.values())
    of_job = (JOB_LABEL, job)
    yield Family(
        name=f"{PREFIX}incidents_total", kind="counter", help="Incidents, by the kind of the finding they began with.",
        samples=[((of_job, ("kind", kind)), count) for kind, count in listed.items()],
    )  # fmt: skip
    severities = Counter(_worst(incident) for incident in incidents if incident.is_open)
    yield Family(
        name=f"{PREFIX}incidents_open", kind="gauge", help="Incidents that are open, by the worst of their findings.",
        samples=[((of_job, ("severity", severity.value)), severities[severity]) for severity in _SEVERITIES],
    )  # fmt: skip


def _kind(incident: Incident) -> str:
    """The first finding's: which one leads the story may change, and a counter must not fall."""
    return incident.findings[0].kind if incident.findings else "worker_exited"


def _worst(incident: Incident) -> Severity:
    return max((finding.severity for finding in incident.findings), key=_SEVERITIES.index, default=Severity.CRITICAL)
