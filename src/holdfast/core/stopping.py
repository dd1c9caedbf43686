"""Stopping: from something wrong, or somebody's wish, to nodes that were told to end their ranks.

    trouble ─► an incident opens ─► where a rank hangs: stacks, before anything is killed ─► the gang is stopped, or parted ─► `deciding`
    a save, and other nodes are due │ somebody asks ─► the gang is stopped with time to save
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.core import leaving, membership, profiling, rejoining, standing, treating
from holdfast.core.base import GOES_CODE, LIMIT_CODE
from holdfast.core.restoring import Restoring
from holdfast.domain.effect import CaptureStacks, PartGang
from holdfast.domain.event import StopAsked
from holdfast.domain.exit import Exit
from holdfast.domain.finding import Finding
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import JobPhase, Outcome
from holdfast.domain.state import Gang, NodeState, Pending


class Stopping(Restoring):
    __slots__ = ()

    def _trouble(self, finding: Finding, *, began_at: float, examine: bool = False, exit: Exit | None = None) -> None:
        """Something is wrong with the gang. Open an incident or add to the open one; examine first if asked, else stop at once."""
        state, gang = self.state, self.state.gang
        assert gang is not None
        incident = self._open_incident()
        if state.phase is JobPhase.WAITING or (state.phase is JobPhase.STOPPING and incident is None):
            return  # The gang is gone, or is going because somebody asked: what still breaks changes nothing.
        began_at = max(min(began_at, state.at), gang.started_at)
        if incident is None:
            self._bill_work_done_again(began_at)
            self._bill_smaller(began_at)
            incident = standing.take_over(state, finding, began_at)
            if incident is None:
                incident = Incident(id=len(state.incidents) + 1, generation=gang.generation, opened_at=state.at, began_at=began_at, step_before=state.step)
                state.incidents.append(incident)
            incident = incident.tell(state.at, f"noticed: {finding.because}")
        else:
            incident = incident.tell(state.at, f"and: {finding.because}")
        self._keep(replace(incident, findings=(*incident.findings, finding), exits=(*incident.exits, exit) if exit is not None else incident.exits))
        if state.phase is JobPhase.STOPPING or (examine and state.phase is JobPhase.EXAMINING):
            return
        if state.phase is not JobPhase.EXAMINING:
            state.ledger.enter(Bucket.DETECT, began_at)
        if examine:
            self._examine(finding)
        else:
            self._stop_gang(finding.because)

    def _examine(self, finding: Finding) -> None:
        state, gang, spec = self.state, self.state.gang, self.state.spec
        assert gang is not None and spec is not None
        state.ledger.enter(Bucket.DIAGNOSE, state.at)
        self._enter(JobPhase.EXAMINING, finding.because)
        incident = self._open_incident()
        assert incident is not None
        self._keep(incident.move(IncidentPhase.EXAMINING, at=state.at, because="stacks of all ranks are captured before anything is killed"))
        for node in self._standing(gang):
            self._emit(CaptureStacks(id=self._id(), generation=gang.generation, node=node, because=finding.because))

    def _examined_if_done(self) -> None:
        if self.state.phase is JobPhase.EXAMINING and not self._awaiting("CaptureStacks"):
            self._stop_gang(self.state.because)

    def _stop_gang(self, because: str) -> None:
        """Break the gang: every node that still stands ends its ranks now."""
        state, gang, spec = self.state, self.state.gang, self.state.spec
        assert gang is not None and spec is not None
        self._leave_running()
        standing.leave_gang(state, "the gang it was seen beside is stopped")
        state.ledger.enter(Bucket.STOP, state.at)
        self._enter(JobPhase.STOPPING, because)
        incident = self._open_incident()
        gang.not_asked = rejoining.why_not(state)
        parts = incident is not None and not gang.not_asked
        if incident is not None and incident.phase is not IncidentPhase.STOPPING:
            said = "whoever can leaves its loop and waits; the others are stopped" if parts else "the whole gang is stopped"
            self._keep(incident.move(IncidentPhase.STOPPING, at=state.at, because=said))
        if parts and incident is not None:
            self._part(gang, self._judged(incident).ranks, because)
        else:
            self._stop_standing(gang, graceful=False, because=because)
        chosen = self._choose_nodes(gang.nodes, membership.size(state))
        if chosen is not None:
            # The next generation will want a store; it comes up while the old ranks go down.
            self._ask_store(gang.generation + 1, chosen[0])
        self._stopped_if_done()

    def _part(self, gang: Gang, culprits: tuple[int, ...], because: str) -> None:
        """Whoever lives on keeps what it has: a new gang is made around it. If all are to blame, who is will be seen by who does not leave."""
        culprits = () if len(culprits) == self.state.world_size else culprits
        for node in self._standing(gang):
            self._emit(
                PartGang(id=self._id(), generation=gang.generation, node=node, because=because, culprits=culprits, within_s=self._policy.part_wait_s)
            )

    def _note_why_not(self, cannot: Mapping[str, str]) -> None:
        """What stops a script's ranks from being kept is known to them alone, and all say the same."""
        gang = self.state.gang
        if cannot and gang is not None and not gang.rejoins:
            gang.not_asked = cannot[min(cannot, key=int)]

    def _note_given_up(self, cannot: Mapping[str, str]) -> None:
        incident = self._open_incident()
        for rank, why in sorted(cannot.items(), key=lambda one: int(one[0])):
            if incident is not None:
                what = f"rank {rank} did not leave within {self._policy.part_wait_s:g} s and is given up, to be started again: {why}"
                incident = incident.tell(self.state.at, what)
        if incident is not None and cannot:
            self._keep(incident)

    def _leave_running(self) -> None:
        self._forget("StartStore", "StartGang", "FindCheckpoint", "CaptureStacks", "ChooseRanks", "CaptureProfile")
        profiling.end(self.state, "the gang was stopped meanwhile")
        for name in ("unguarded", "missing", "rejoin", treating.DEADLINE):
            self.state.deadlines.pop(name, None)

    def _move_if_due(self) -> None:
        """At a save, or when a node will go: stop a gang that should have other nodes, with time to save, to form it anew."""
        because = membership.why_move(self.state)
        if because and self._open_incident() is None and (profiling.taking(self.state) is None or leaving.is_hurried(self.state)):
            self._move(because)

    def _last_call(self, node: str) -> None:
        """The node goes as soon as a stop with a save takes, and the gang is still there: it could not be moved, or has nowhere to go."""
        state, gang = self.state, self.state.gang
        if gang is None or node not in gang.nodes or node not in state.draining:
            return
        because = f"{node} is drained: {state.cordoned[node]}"
        if not leaving.has_place(state) and state.stop is None:
            self._stop_asked(StopAsked(at=state.at, because=f"{because}, and no node is there in its place", code=GOES_CODE))
        elif state.phase is JobPhase.RUNNING and self._open_incident() is None:
            self._move(because)

    def _move(self, because: str) -> None:
        state, gang = self.state, self.state.gang
        assert gang is not None
        state.moving = because
        state.smaller = state.smaller or because  # The node it leaves may have nobody in its place.
        self._bill_smaller(state.at)
        self._leave_running()
        standing.leave_gang(state, "the gang it was seen beside is stopped")
        state.ledger.enter(Bucket.STOP, state.at)
        self._enter(JobPhase.STOPPING, because)
        chosen = self._choose_nodes(gang.nodes, membership.size(state))
        if set(chosen or ()) & set(gang.nodes) and not rejoining.why_not(state, whole=True):
            self._part(gang, (), because)  # Whoever stays keeps what it has, and gives it to those who come.
        else:
            self._stop_standing(gang, graceful=True, because=because)
        if chosen is not None:
            self._ask_store(gang.generation + 1, chosen[0])
        self._stopped_if_done()

    # Being asked to stop.

    def _stop_asked(self, event: StopAsked) -> None:
        state, gang = self.state, self.state.gang
        again = state.stop is not None
        state.stop = event
        if gang is None or state.phase is JobPhase.WAITING:
            self._end(Outcome.STOPPED, event.code, event.because)
            return
        if state.phase is JobPhase.STOPPING:
            if again and event.now:
                self._hurry(gang, event.because)
            return
        self._leave_running()
        state.ledger.enter(Bucket.STOP, state.at)
        self._enter(JobPhase.STOPPING, event.because)
        self._stop_standing(gang, graceful=not event.now, because=event.because)
        self._stopped_if_done()

    def _hurry(self, gang: Gang, because: str) -> None:
        """Whoever still takes the time it was given is told to take no more."""
        pending = self.state.pending
        for id in [id for id, one in pending.items() if one.kind == "StopGang" and one.generation == gang.generation]:
            self._stop_on(pending.pop(id).node, gang.generation, graceful=False, because=because)

    def _stop_if_over_time(self, finding: Finding) -> None:
        """Only where that was asked for: as if somebody had asked for a stop now, with all the time to save that one gets."""
        limits = self._spec.limits
        if finding.kind == "over_time" and limits is not None and limits.stop and self.state.stop is None:
            self._stop_asked(StopAsked(at=self.state.at, because=f"its time is over: {finding.because}", code=LIMIT_CODE))

    def _out_of_time(self) -> None:
        state, limits = self.state, self._spec.limits
        assert limits is not None
        because = f"its time is over: the job was allowed {limits.job_s:g} s, and nobody trains: {state.because}"
        self._stop_asked(StopAsked(at=state.at, because=because, code=LIMIT_CODE))

    # A node has stopped, or cannot be relied on to.

    def _stopped_on(self, node: str) -> None:
        known = self.state.nodes[node]
        if known.state is NodeState.CLEANING and not self._stops_of(node):
            known.state = NodeState.READY
        self._stopped_if_done()
        self._form_if_possible()
        self._start_if_ready()

    def _node_not_stopped(self, pending: Pending, because: str, unkillable: tuple[int, ...]) -> None:
        """A node that cannot end its processes, or does not say so, is not used again."""
        state, gang = self.state, self.state.gang
        self._lose(pending.node, NodeState.GIVEN_UP if unkillable else NodeState.LOST)
        if gang is not None and pending.node in gang.nodes:
            kind = "unkillable" if unkillable else "silent_node"
            self._trouble(Finding(kind=kind, node=pending.node, since=state.at, because=because), began_at=state.at)
        self._stopped_if_done()

    def _lose(self, name: str, to: NodeState) -> None:
        """Nothing is expected of the node any more, and a store on it cannot be relied on."""
        state, node = self.state, self.state.nodes[name]
        node.state, node.lost_at = to, node.lost_at or state.at
        if state.gang is not None and name in state.gang.nodes and name not in state.gang.started:
            node.lost_in = state.gang.generation
        for id in [id for id, one in state.pending.items() if one.node == name]:
            del state.pending[id]
        if state.store is not None and state.store.node == name:
            state.store = None
