"""What every part of the core stands on: the state, effects with the time in which they must be answered, the stories of incidents, the end of a job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.core import leaving, profiling, standing
from holdfast.domain.effect import CaptureProfile, CaptureStacks, CheckNode, ChooseRanks, Effect, EndJob, PartGang, StartGang, StartStore, StopGang
from holdfast.domain.event import EffectDone
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import JobPhase, JobSpec, Outcome, Policy
from holdfast.domain.state import Gang, NodeState, Pending, State

PERMANENT_CODE = 80  # `holdfast run` exits with this when it judged that trying again cannot help.
BROKEN_CODE = 81  # And with this when Holdfast itself could not go on.
GOES_CODE = 143  # And with this when its nodes are taken away and it can be resumed elsewhere: as after SIGTERM, which is how that is usually said.
TIME = "time"  # The deadline of a job that waits: it has been run for as long as it may.
_CTRL_C_CODE = 130  # With this one a stop was asked for by SIGINT.
LIMIT_CODE = 124  # And with this when the job was stopped because its time was over, as timeout(1) does.


@dataclass(slots=True)
class Base:
    """The state and what was asked for in this step. `Core` is this with all that the modules above add."""

    state: State = field(default_factory=State)
    _out: list[Effect] = field(default_factory=list)

    @property
    def _spec(self) -> JobSpec:
        assert self.state.spec is not None
        return self.state.spec

    @property
    def _policy(self) -> Policy:
        return self._spec.policy

    def _enter(self, phase: JobPhase, because: str) -> None:
        self.state.phase, self.state.because = phase, because
        self._limit_the_wait()

    def _limit_the_wait(self) -> None:
        """A gang that trains is held to the job's time by a detector. While a node or a person is waited for, which may take a day, nothing else looks."""
        state, limits = self.state, self._spec.limits
        state.deadlines.pop(TIME, None)
        if state.phase is JobPhase.WAITING and limits is not None and limits.stop and limits.job_s is not None:
            state.deadlines[TIME] = state.at + max(0.0, limits.job_s - state.ledger.run_s)

    def _end(self, outcome: Outcome, code: int, because: str) -> None:
        state = self.state
        self._give_up_incident(because)
        self._bill_smaller(state.at)
        profiling.end(state, "the job has ended")
        standing.close_all(state, "the job has ended")
        state.outcome, state.code, state.pending, state.deadlines = outcome, code, {}, {}
        if outcome is Outcome.FINISHED:
            state.worked_with = dict(state.started_with)
        self._enter(JobPhase.ENDED, because)
        state.ledger.enter(Bucket.END, state.at)
        self._out.append(EndJob(id=self._id(), generation=state.generation, because=because, outcome=outcome, code=code))

    # Effects.

    def _emit(self, effect: Effect) -> None:
        """Send an effect and remember until when it must be answered."""
        policy = self._policy
        match effect:
            case StartStore() | StartGang():
                wait_s = policy.start_wait_s + (policy.stage_wait_s if self._spec.stage else 0.0)
            case CaptureStacks() | ChooseRanks():
                wait_s = policy.stacks_wait_s
            case CheckNode():
                wait_s = policy.check_wait_s
            case StopGang(grace_s=grace_s):
                wait_s = grace_s + 2 * policy.kill_wait_s
            case PartGang(within_s=within_s):
                wait_s = within_s + 2 * policy.kill_wait_s
            case CaptureProfile(within_s=within_s):
                wait_s = within_s + 2 * policy.kill_wait_s
            case _:
                wait_s = policy.fetch_wait_s if self._spec.remote else policy.node_wait_s
        self.state.pending[effect.id] = Pending(kind=type(effect).__name__, node=effect.node, generation=effect.generation, deadline=self.state.at + wait_s)
        self._out.append(effect)

    def _id(self) -> str:
        self.state.effects += 1
        return f"e{self.state.effects}"

    def _forget(self, *kinds: str) -> None:
        """Their answers no longer matter."""
        pending = self.state.pending
        for id in [id for id, one in pending.items() if one.kind in kinds]:
            del pending[id]

    def _stops_of(self, node: str) -> list[str]:
        return [id for id, one in self.state.pending.items() if one.node == node and one.kind == "StopGang"]

    def _awaiting(self, kind: str) -> bool:
        return any(pending.kind == kind for pending in self.state.pending.values())

    def _stop_on(self, node: str, generation: int, *, graceful: bool, because: str) -> None:
        policy = self._policy
        grace_s = leaving.grace_s(self.state) if graceful else policy.abort_grace_s
        interrupt = graceful and self.state.stop is not None and self.state.stop.code == _CTRL_C_CODE
        self._emit(
            StopGang(id=self._id(), generation=generation, node=node, because=because, graceful=graceful, grace_s=grace_s, interrupt=interrupt)
        )

    def _stop_standing(self, gang: Gang, *, graceful: bool, because: str) -> None:
        for node in self._standing(gang):
            self._stop_on(node, gang.generation, graceful=graceful, because=because)
            if any(rank in gang.kept for rank in self._ranks_on(gang, node)) and node not in gang.started:
                self._stop_on(node, gang.kept_of, graceful=graceful, because=because)  # They may not have been told that they are of the new one.

    def _standing(self, gang: Gang) -> tuple[str, ...]:
        return tuple(name for name in gang.nodes if self.state.nodes[name].state is NodeState.READY)

    def _ranks_on(self, gang: Gang, node: str) -> range:
        first = gang.nodes.index(node) * self._spec.ranks_per_node
        return range(first, first + self._spec.ranks_per_node)

    def _count(self, state: NodeState) -> int:
        return sum(1 for node in self.state.nodes.values() if node.state is state)

    # Incidents.

    def _open_incident(self) -> Incident | None:
        """The one the gang was, or is being, stopped for."""
        return next((one for one in reversed(self.state.incidents) if one.is_open and not one.stands), None)

    def _keep(self, incident: Incident) -> None:
        self.state.keep(incident)

    def _close(self, incident: Incident, to: IncidentPhase, because: str, *, step_after: int = -1) -> None:
        """End an incident and write its bill: what the ledger holds since it began."""
        state = self.state
        gang, costs = state.gang, state.bill(incident.began_at)
        closed = replace(incident.move(to, at=state.at, because=because), costs=costs, step_after=step_after, kept=gang is not None and bool(gang.kept))
        if to is IncidentPhase.RESOLVED and incident.phase is IncidentPhase.ACTING and gang is not None and not gang.beats and incident.step_before < 0:
            # It was resolved when the ranks were up. That they say no more was only known later.
            closed = replace(closed, closed_at=gang.started_at, from_nothing=not gang.restore)
        self._keep(closed)

    def _bill_work_done_again(self, until: float) -> None:
        """It belongs to the price of the incident that lost the work, which is closed as soon as the gang works again."""
        state = self.state
        incident = next((one for one in reversed(state.incidents) if not one.stands and one.began_at >= state.ledger.run_since), None)
        if state.ledger.open_bucket is Bucket.RECOMPUTE and incident is not None and incident.phase is IncidentPhase.RESOLVED:
            seconds = max(0.0, until - max(state.ledger.spans[-1].since, incident.began_at))
            self._keep(replace(incident, costs={**incident.costs, Bucket.RECOMPUTE: seconds}))

    def _bill_smaller(self, until: float) -> None:
        """What a smaller gang lacks belongs to the price of the incident that took the node: the newest one that did."""
        state = self.state
        since = state.ledger.run_since
        incident = next((one for one in reversed(state.incidents) if not one.stands and one.began_at >= since and one.plans and one.plans[-1].shrinks), None)
        seconds = state.ledger.smaller_s(incident.closed_at, until) if incident is not None and incident.closed_at is not None else 0.0
        if incident is not None and seconds:
            self._keep(replace(incident, costs={**incident.costs, Bucket.SMALLER: seconds}))

    def _give_up_incident(self, because: str) -> None:
        incident = self._open_incident()
        if incident is not None:
            self._close(incident, IncidentPhase.GAVE_UP, because)


def with_collectives(incident: Incident, event: EffectDone) -> Incident:
    """NCCL has one answer for all nodes that ask."""
    said = tuple(dict.fromkeys((*incident.communication, *event.communication)))
    return replace(incident, collectives={**incident.collectives, **event.collectives}, communication=said)
