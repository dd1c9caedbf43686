"""Running: a gang that is up, and what is seen of it and of its nodes: steps, saves, exits, findings, profiles, and silence."""

from __future__ import annotations

from dataclasses import replace

from holdfast.core import filling, leaving, membership, profiling, rejoining, slowness, standing, treating, verifying
from holdfast.core.base import with_collectives
from holdfast.core.checking import Checking
from holdfast.domain.effect import CaptureProfile, ChooseRanks
from holdfast.domain.event import (
    CheckpointSaved,
    EffectDone,
    FindingMade,
    GangRestored,
    IntervalChosen,
    NodeHeard,
    NodeSilent,
    ProfileAsked,
    ProgressSeen,
    WorkerExited,
)
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.finding import NUMBERS, Finding
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import IncidentPhase
from holdfast.domain.job import JobPhase, Mode
from holdfast.domain.state import Node, NodeState


class Running(Checking):
    __slots__ = ()

    def _gang_up(self) -> None:
        state, gang, spec = self.state, self.state.gang, self.state.spec
        assert gang is not None and spec is not None
        gang.started_at = state.at
        self._enter(JobPhase.RUNNING, f"generation {gang.generation} is up")
        if not gang.beats and not gang.kept and state.step_best < 0:
            state.ledger.enter(Bucket.UNKNOWN, state.at)  # Whether the script says when it steps is seen at its first beat.
        elif state.ledger.open_bucket is not Bucket.START:
            state.ledger.enter(Bucket.RENDEZVOUS, state.at)
        if gang.kept and not gang.ready:
            # A checkpoint is read for as long as at any other start.
            state.deadlines["rejoin"] = state.at + (spec.policy.start_wait_s if gang.restore else spec.policy.rejoin_wait_s)
        if gang.ready:
            self._enter_running_bucket()
        elif state.unguarded and not gang.beats:
            self._unguarded()
        elif not gang.beats and not gang.kept:
            state.deadlines["unguarded"] = state.at + spec.policy.unguarded_after_s
        self._finished_if_all_left()

    def _unguarded(self) -> None:
        """No beat came: the script does not carry our lines. All that can be seen is that its workers are up."""
        state, gang = self.state, self.state.gang
        assert gang is not None
        state.unguarded = True
        state.ledger.enter(Bucket.UNKNOWN, gang.started_at)
        self._settled(-1)

    def _rejoin_failed(self) -> None:
        state, gang = self.state, self.state.gang
        assert gang is not None
        because = f"the ranks were not in their loops again {state.at - gang.started_at:.0f} s after they were told to rejoin"
        self._trouble(Finding(kind="start_failed", node=gang.nodes[0], since=state.at, because=because), began_at=state.at)

    def _progressed(self, event: GangRestored | ProgressSeen | CheckpointSaved) -> None:
        state, gang = self.state, self.state.gang
        if gang is None or event.generation != gang.generation or state.phase not in (JobPhase.RUNNING, JobPhase.STARTING):
            return
        if not gang.beats:
            gang.beats, state.unguarded = True, False
            state.ledger.learned()
        state.deadlines.pop("unguarded", None)
        match event:
            case GangRestored(step=step, restore_s=restore_s, done=done):
                state.step = max(state.step, step)  # A control that was restarted tells it again.
                state.deadlines.pop("rejoin", None)
                if state.ledger.open_bucket is Bucket.RENDEZVOUS:
                    self._note_redone(min(done, state.step_best - step))
                    gang.restore_s = state.ledger.move(restore_s, out_of=Bucket.RENDEZVOUS, into=Bucket.RESTORE)
                    self._enter_running_bucket()
            case CheckpointSaved(step=step):
                state.saved_step = max(state.saved_step, step)
                self._move_if_due()
            case ProgressSeen(step=step, save_s=save_s):
                state.step = max(state.step, step)
                gang.rejoins, gang.sharded = event.rejoins, event.sharded
                if event.left_s is not None:  # Before seconds are moved: none of them is taken back then.
                    self._bill_work_done_again(state.at - event.left_s)
                    state.ledger.enter(Bucket.END, state.at - event.left_s)
                if not gang.ready:
                    self._settled(step)
                state.ledger.move(save_s - gang.save_s, out_of=Bucket.RECOMPUTE if step <= state.step_best else Bucket.PRODUCTIVE, into=Bucket.SAVE)
                gang.save_s = max(gang.save_s, save_s)
                if step > state.step_best and state.attempts and not state.attempts[-1].progressed:
                    state.attempts[-1] = replace(state.attempts[-1], progressed=True)
                if event.left_s is None:
                    self._bill_work_done_again(state.at)
                    self._enter_running_bucket()
                self._bill_smaller(state.at)
                state.step_best = max(state.step_best, step)
                treating.watch(state)
                self._check_if_due()
                if leaving.is_hurried(state):
                    self._move_if_due()

    def _note_redone(self, steps: int) -> None:
        """Steps that were done again before anybody looked took as long as steps of this job take."""
        state = self.state
        step_s = state.ledger.totals().get(Bucket.PRODUCTIVE, 0.0) / max(1, state.step_best)
        if steps > 0 and step_s > 0.0:
            state.ledger.enter(Bucket.RECOMPUTE, state.at - steps * step_s)

    def _settled(self, step: int) -> None:
        """The gang works again: whatever incident was open is resolved."""
        gang = self.state.gang
        assert gang is not None
        gang.ready = True
        if step >= 0 and gang.started_at and not gang.kept:
            self.state.first_step_s = max(0.0, self.state.at - gang.started_at)
        self.state.fitting = self.state.fitting.fitted()
        self.state.worked_with = dict(self.state.started_with)
        incident = self._open_incident()
        if incident is not None and incident.phase is IncidentPhase.ACTING:
            said = f"every rank has finished step {step}" if step >= 0 else "all ranks are up; the script does not beat, so no more can be seen"
            self._close(replace(incident, step_resolved=step), IncidentPhase.RESOLVED, said, step_after=max(gang.restore_step, 0) if step >= 0 else -1)
            verifying.begin(self.state)
        slowness.settled(self.state)
        filling.settled(self.state)

    def _enter_running_bucket(self) -> None:
        state = self.state
        if state.phase is JobPhase.RUNNING:
            if state.step < state.step_best:
                state.ledger.enter(Bucket.RECOMPUTE, state.at)
            else:
                state.ledger.enter(Bucket.PRODUCTIVE, state.at, membership.kept(state))

    def _interval_chosen(self, event: IntervalChosen) -> None:
        state, gang = self.state, self.state.gang
        if gang is not None and event.generation == gang.generation and state.phase is JobPhase.RUNNING:
            state.interval = event

    # Exits and findings.

    def _worker_exited(self, event: WorkerExited) -> None:
        state, gang, exit = self.state, self.state.gang, event.exit
        if gang is None or event.generation != gang.generation or exit.rank in gang.exited or state.phase is JobPhase.WAITING:
            return
        gang.exited.add(exit.rank)
        if exit.step >= 0:
            gang.reached[str(exit.rank)] = exit.step
        if exit.kind is ExitKind.FINISHED and (gang.beats or not exit.stopped_by_us):
            # A worker that was told to stop and has our trainer inside says so with its code; another may call a stop success.
            gang.finished.add(exit.rank)
            if len(gang.finished) == state.world_size:
                state.step = max(state.step, exit.step)  # Exact, where what was told in life may be seconds old.
                state.step_best = max(state.step_best, state.step)
        if exit.kind is ExitKind.FINISHED or state.phase is JobPhase.STOPPING:
            self._keep_exit(exit)
            self._finished_if_all_left()
            return
        finding = Finding(kind="worker_exited", node=event.node, ranks=(exit.rank,), since=state.at, because=exit.because)
        self._trouble(finding, began_at=state.at, exit=exit)

    def _keep_exit(self, exit: Exit) -> None:
        incident = self._open_incident()
        if incident is not None:
            self._keep(replace(incident, exits=(*incident.exits, exit)))

    def _finished_if_all_left(self) -> None:
        state, gang, spec = self.state, self.state.gang, self.state.spec
        assert gang is not None and spec is not None
        if state.phase in (JobPhase.RUNNING, JobPhase.EXAMINING) and len(gang.finished) == state.world_size:
            self._finish("every rank ran to its end")

    def _finding_made(self, event: FindingMade) -> None:
        gang = self.state.gang
        if gang is None or event.generation != gang.generation or max(event.finding.ranks, default=0) >= self.state.world_size:
            return  # Of another gang, or of a rank that this one does not have.
        breaks = treating.breaks(self.state, event.finding)
        if treating.is_of_trial(self.state, event.finding):
            return
        if breaks and self._policy.mode is Mode.ADVISE and self.state.phase is JobPhase.RUNNING:
            self._advise(event.finding)
        elif breaks:
            # What a rank does is seen in its stack; what is wrong with its numbers is not.
            self._trouble(event.finding, began_at=event.finding.since, examine=event.finding.kind not in NUMBERS)
        elif self.state.phase in (JobPhase.RUNNING, JobPhase.EXAMINING):
            standing.found(self.state, event.finding)
            slowness.found(self.state, event.finding)
            if filling.found(self.state, event.finding):
                self._move_if_due()
                return
            if event.finding.kind == "too_hot":
                leaving.cool_down(self.state, event.finding)
            incident = profiling.wanted(self.state, event.finding)
            if incident is not None:
                begun = profiling.begin(self.state, why=event.finding.kind, because=event.finding.because, incident=incident.id)
                self._emit(ChooseRanks(id=self._id(), generation=gang.generation, because=begun.because, ranks=event.finding.ranks))
            self._stop_if_over_time(event.finding)

    # Nodes.

    def _node_heard(self, event: NodeHeard) -> None:
        state = self.state
        node = state.nodes.get(event.node)
        if node is None:
            node = state.nodes[event.node] = Node(host=event.host)
        node.host, node.peer = event.host, event.peer
        node.isolation, node.unkept, node.warm = event.isolation, event.unkept, event.warm
        if node.state is NodeState.GIVEN_UP:
            return
        leaving.came_back(state, event.node)
        membership.came_back(state, event.node)
        # The next generation's store may be up already. Of the others, only the one we count on may run.
        counted_on = self._generation_on(event.node)
        wanted = (counted_on, state.generation + 1, *rejoining.waited_for(state, event.node))
        # What it was to begin when it fell silent may have reached it after it said this.
        told, node.lost_in = {*map(int, event.running), node.lost_in} - {-1}, -1
        stale = sorted(told - {*wanted})
        being_stopped = {state.pending[id].generation for id in self._stops_of(event.node)}
        for generation in stale:
            if generation not in being_stopped:
                self._stop_on(event.node, generation, graceful=False, because=f"generation {generation} is over")
        if counted_on < 0:
            # A node that comes back with old ranks alive is not used again before they are ended.
            node.state = NodeState.CLEANING if self._stops_of(event.node) else NodeState.READY
        self._note_missing(event)
        self._form_if_possible()

    def _generation_on(self, name: str) -> int:
        """The generation that may run on a node: the gang's, as long as the gang counts on the node or waits for it to stop there."""
        state, gang = self.state, self.state.gang
        if gang is None or name not in gang.nodes or state.nodes[name].state is not NodeState.READY or state.phase is JobPhase.WAITING:
            return -1
        return gang.generation

    def _note_missing(self, event: NodeHeard) -> None:
        """A node that restarted so fast that it was never silent may have lost its ranks. Their exits may be on their way: they get a moment."""
        state, gang = self.state, self.state.gang
        if gang is None or event.node not in gang.started or state.phase not in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.EXAMINING):
            return
        first = gang.nodes.index(event.node) * self._spec.ranks_per_node
        ranks = set(range(first, first + self._spec.ranks_per_node))
        gang.missing = (gang.missing - ranks) | (ranks - gang.exited - set(event.running.get(str(gang.generation), ())))
        if gang.missing:
            state.deadlines.setdefault("missing", state.at + self._policy.kill_wait_s)

    def _ranks_missing(self) -> None:
        gang = self.state.gang
        assert gang is not None
        for rank in sorted(gang.missing - gang.exited):
            node = gang.nodes[rank // self._spec.ranks_per_node]
            because = f"rank {rank} no longer runs on {node}, and nobody saw it end"
            exit = Exit(rank=rank, pid=0, kind=ExitKind.VANISHED, because=because)
            self._worker_exited(WorkerExited(at=self.state.at, node=node, generation=gang.generation, exit=exit))

    def _node_silent(self, event: NodeSilent) -> None:
        state = self.state
        node = state.nodes.get(event.node)
        if node is None or node.state in (NodeState.LOST, NodeState.GIVEN_UP):
            return
        self._lose(event.node, NodeState.LOST)
        if state.gang is not None and event.node in state.gang.nodes:
            finding = Finding(kind="silent_node", node=event.node, since=event.since, because=event.because)
            self._trouble(finding, began_at=event.since)
        self._stopped_if_done()

    # Profiles.

    def _profile_asked(self, event: ProfileAsked) -> None:
        """What is refused was told to whoever asked."""
        if not profiling.refused(self.state, event):
            begun = profiling.begin(self.state, why="asked", because=event.because, steps=event.steps, wish=event.id)
            ranks, exactly = event.ranks, bool(event.ranks)
            self._emit(ChooseRanks(id=self._id(), generation=begun.generation, because=event.because, ranks=ranks, exactly=exactly, all=event.all))

    def _capture_profile(self, slow: tuple[int, ...], beside: tuple[int, ...]) -> None:
        for node, ranks in profiling.chosen(self.state, slow, beside).items():
            profile = profiling.taking(self.state)
            assert profile is not None
            self._emit(
                CaptureProfile(
                    id=self._id(), generation=profile.generation, node=node, because=profile.because, ranks=ranks, steps=profile.steps, name=profile.name,
                    within_s=self._policy.profile_wait_s,
                )
            )  # fmt: skip
        self._profiled_if_done()

    def _profile_taken(self, event: EffectDone) -> None:
        profiling.took(self.state, event.profiles, event.missing)
        profile = profiling.taking(self.state)
        if profile is not None and profile.incident:
            self._keep(with_collectives(self.state.incidents[profile.incident - 1], event))
        self._profiled_if_done()

    def _profiled_if_done(self, because: str = "") -> None:
        if not self._awaiting("ChooseRanks") and not self._awaiting("CaptureProfile"):
            profiling.end(self.state, because)
