"""A replay under our scheduler with every invariant looked at after every event, and shares over every window that can be judged."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.schedule.check import Auditor, ShareWatch
from holdfast.schedule.cycle import Decisions
from holdfast.schedule.tree import ROOT
from holdfast.simulate.policies.ours import Holdfast
from holdfast.simulate.trace import TraceJob


@dataclass(slots=True)
class Audit:
    """Follows a replay. `share()` is the largest error and how many windows it is the largest of; no window, no error."""

    scheduler: Holdfast
    auditor: Auditor
    _watch: ShareWatch | None = None
    _accounts: int = 0
    _unswept: int = 0  # Decisions since everything was compared.

    def submitted(self, job: TraceJob, now: float) -> None:
        pass

    def ended(self, id: str, now: float) -> None:
        self.auditor.ended(id)

    def decided(self, decisions: Decisions, now: float) -> None:
        self.auditor.decided(decisions, now)
        self._sweep()
        tree = self.scheduler.cluster.tree
        if self._watch is None:
            self._watch = ShareWatch(self.scheduler.cluster, ())
        if len(tree.accounts) != self._accounts:
            self._accounts = len(tree.accounts)
            self._watch.parents = tuple(number for number, children in enumerate(tree.children) if len(children) > 1 or (number == ROOT and children))
        self._watch.look(now)

    def _sweep(self) -> None:
        """What is told of no single decision: after as many of them as it has nodes and jobs to look at, so that it costs the same for each."""
        cluster = self.scheduler.cluster
        self._unswept += 1
        if self._unswept >= len(cluster.fleet.nodes) + len(cluster.jobs):
            self._unswept = 0
            self.auditor.sweep()

    def share(self) -> tuple[float | None, int]:
        watch = self._watch
        return (watch.worst, watch.windows) if watch is not None and watch.windows else (None, 0)


def audit_of(scheduler: Holdfast) -> Audit:
    return Audit(scheduler, Auditor(scheduler.cluster))
