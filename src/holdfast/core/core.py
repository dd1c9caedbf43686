"""The core: all that is known about a job, and what to do next. Read this first.

    event ──► Core.step ──► effects          pure: no clock, no I/O, no randomness, no log

One story runs through it. A gang is formed on nodes, its store and its ranks are started, it runs. Something goes wrong: an exit, a finding, a node that
falls silent. An incident opens; where a rank hangs, stacks are captured before anything is killed; the gang is stopped; when every node says that nothing
of it is left, `diagnose` names the cause and `recover` chooses the rung; a new generation is formed. Each second of it lands in one bucket of the ledger.

Whatever arrives late carries an old generation and is dropped. Whatever is asked has an id and a deadline, and silence past it is an answer too.

The story is told in eight files, one class each, and `Core` is all of them. Each calls what stands below it, and nothing above:

    core.py       every event comes in here: jobs, answers, deadlines, what people say
    running.py    a gang that is up, and what is seen of it and its nodes
    checking.py   a node that was left for another is checked
    stopping.py   something is wrong, or somebody asks: the gang is stopped
    restoring.py  the checkpoint a new gang restores was found, or none was
    deciding.py   what it was, and what to do
    forming.py    nodes, a generation, its store, its ranks
    base.py       the state, effects and who must answer them, incidents
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from holdfast.core import asking, base, filling, leaving, membership, pauses, profiling, promises, replicas, slowness, standing, treating, verifying
from holdfast.core.base import BROKEN_CODE, with_collectives
from holdfast.core.running import Running
from holdfast.domain.effect import Effect
from holdfast.domain.event import (
    CheckAsked,
    CheckpointSaved,
    EffectDone,
    EffectFailed,
    Event,
    FindingEnded,
    FindingMade,
    GangRestored,
    IntervalChosen,
    JobResumed,
    JobSubmitted,
    MeshSeen,
    NodeCordoned,
    NodeHeard,
    NodeSilent,
    NodeUncordoned,
    NodeWarmed,
    PlanApproved,
    PlanVetoed,
    ProfileAsked,
    ProgressSeen,
    StopAsked,
    Ticked,
    TreatmentUndone,
    WorkerExited,
)
from holdfast.domain.finding import NUMBERS, Finding
from holdfast.domain.fitting import Fitting
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobPhase, Outcome
from holdfast.domain.state import Pending, Store
from holdfast.domain.treatment import Treatment

AWAY_S = 2.0  # A deadline that is answered this late was not missed by the others: control was not there to see it kept.


class Core(Running):
    """`step` is the only way in, its return value the only way out."""

    __slots__ = ()

    def step(self, event: Event) -> tuple[Effect, ...]:
        state = self.state
        if isinstance(event, JobResumed):
            left_at = max(state.at, min(event.ran_until, event.at))
            state.ledger.run_to(left_at)
            state.ledger.enter(Bucket.DOWN, left_at)
        self._excuse_absence(event)
        state.at = max(state.at, event.at)
        state.ledger.run_to(state.at)
        self._out = []
        if state.outcome is None or isinstance(event, JobResumed):
            usable = membership.usable(state) if asking.DEADLINE in state.deadlines else None
            self._take(event)
            if usable is not None and asking.DEADLINE in state.deadlines and membership.usable(state) != usable:
                self._ask_anew()
        return tuple(self._out)

    def next_deadline(self) -> float | None:
        """When the shell should send `Ticked`, if nothing else happens before."""
        times = [*self.state.deadlines.values(), *(pending.deadline for pending in self.state.pending.values())]
        return min(times, default=None) if self.state.outcome is None else None

    def check(self) -> None:
        """What must always hold, for tests and simulation: called after each step there."""
        promises.check(self.state)

    def _excuse_absence(self, event: Event) -> None:
        """Control itself was away, or slept through a deadline. Nobody could be heard meanwhile, so the time it was away counts against nobody."""
        state, due = self.state, self.next_deadline()
        back = isinstance(event, Ticked) and event.away
        if due is None or (event.at - due <= AWAY_S and not back):
            return
        away_s = max(0.0, event.at - state.at)
        state.deadlines = {name: deadline if leaving.is_fixed(name) else deadline + away_s for name, deadline in state.deadlines.items()}
        # What was due just when control went may have been answered already, and is said again.
        least = event.at + AWAY_S if back else 0.0
        state.pending = {id: replace(pending, deadline=max(pending.deadline + away_s, least)) for id, pending in state.pending.items()}

    def _take(self, event: Event) -> None:
        match event:
            case JobSubmitted() | JobResumed():
                self._submitted(event)
            case NodeHeard():
                self._node_heard(event)
            case NodeWarmed(node=node):
                if node in self.state.nodes:
                    self.state.nodes[node].warm = True
            case MeshSeen():
                replicas.take(self.state, event)
            case NodeSilent():
                self._node_silent(event)
            case WorkerExited():
                self._worker_exited(event)
            case FindingMade():
                self._finding_made(event)
            case FindingEnded():
                standing.ended(self.state, event, calm_s=self._policy.calm_s)
                pauses.ended(self.state, event)
                slowness.ended(self.state, event.key)
            case GangRestored() | ProgressSeen() | CheckpointSaved():
                self._progressed(event)
            case IntervalChosen():
                self._interval_chosen(event)
            case EffectDone():
                self._effect_done(event)
            case EffectFailed():
                self._effect_failed(event)
            case StopAsked():
                self._stop_asked(event)
            case ProfileAsked():
                self._profile_asked(event)
            case PlanApproved() | PlanVetoed() | NodeCordoned() | NodeUncordoned() | CheckAsked() | TreatmentUndone():
                self._person_said(event)
            case Ticked():
                self._ticked()
            case _:
                assert_never(event)

    def _submitted(self, event: JobSubmitted | JobResumed) -> None:
        state = self.state
        if isinstance(event, JobResumed):
            # Nothing of the earlier run is alive, and its nodes report anew. What was learned stays.
            self._give_up_incident("the run ended before it was resolved")
            standing.close_all(state, "the run ended")
            profiling.end(state, "the run ended")
            if state.outcome is Outcome.PERMANENT:
                # Whoever runs it again has changed something; it may have been that, and not the checkpoints.
                state.distrusted, state.poisoned = tuple(name for name in state.distrusted if name not in state.poisoned), ()
            state.nodes, state.pending, state.deadlines, state.attempts = {}, {}, {}, []
            state.gang, state.store, state.outcome, state.stop, state.code, state.step = None, None, None, None, 0, -1
            state.smaller, state.moving, state.renewing, state.refused, state.draining = "", "", "", {}, ()
            leaving.lift_all(state)
            slowness.lift_all(state)
            state.trial, state.at_most, state.none_before, state.deal = None, -1, -1, ()
            if state.spec is not None and state.spec.argv != event.spec.argv:
                state.treatment = Treatment()  # What a draw was may be another thing now.
            state.fitting = state.fitting.upwards() if state.spec is not None and state.spec.argv == event.spec.argv else Fitting()
        state.spec = event.spec
        state.mesh, state.mesh_said, state.left_over = event.spec.mesh, "", ()
        state.avoided = event.spec.learned.suspects if event.spec.learned is not None else ()
        state.generation = max(state.generation, event.spec.generations_before)
        state.ledger.enter(Bucket.START, state.at)
        self._enter(JobPhase.WAITING, f"waiting for {event.spec.nodes} node{'s' if event.spec.nodes != 1 else ''}")
        self._wait_for_nodes()

    # What people say.

    def _person_said(self, event: asking.Said) -> None:
        """What is refused was told to whoever said it."""
        state = self.state
        if asking.refused(state, event):
            return
        match event:
            case NodeCordoned(goes_at=float()):
                leaving.noticed(state, event)
                self._ticked()  # It may have to be left at once.
            case NodeCordoned():
                state.cordoned[event.node] = event.because
                if event.drain and state.gang is not None and event.node in state.gang.nodes and event.node not in state.draining:
                    state.draining = (*state.draining, event.node)
            case NodeUncordoned():
                (leaving.lift if event.withdrawn else leaving.give_back)(state, event.node)
                self._form_if_possible()
            case CheckAsked():
                self._check_asked(event)
            case TreatmentUndone():
                state.treatment = treating.undone(state)
            case PlanApproved() | PlanVetoed():
                incident = asking.waiting(state)
                assert incident is not None
                self._plan_answered(event, incident)

    def _plan_answered(self, event: PlanApproved | PlanVetoed, incident: Incident) -> None:
        state, plan = self.state, incident.plans[-1]
        state.deadlines.pop(asking.DEADLINE, None)
        who = event.who or "somebody"
        said = f"approved by {who}"
        broken = next((one for one in incident.findings if treating.breaks(state, one)), None)
        if isinstance(event, PlanVetoed):
            said = f"vetoed by {who}{': ' if event.because else ''}{event.because}"
            if not event.instead:
                self._keep(incident.tell(state.at, said))
                if not incident.stands:
                    self._end(Outcome.STOPPED, incident.diagnoses[-1].own_code, f"its plan was vetoed by {who}")
                return
            plan = asking.chosen(plan, event)
        state.approved = incident.id
        if isinstance(event, PlanVetoed) and not incident.stands:
            plan = self._agreed_to(incident.diagnoses[-1], plan)
        self._keep(replace(incident, plans=(*incident.plans[:-1], plan)).tell(state.at, f"{said}; to be done: {plan.name}"))
        if incident.stands and broken is not None:
            self._trouble(broken, began_at=broken.since, examine=broken.kind not in NUMBERS)
        elif incident.stands:
            state.approved = 0
            (filling if filling.is_planned(incident) else slowness).act(state, state.incidents[incident.id - 1])
            self._move_if_due()
        else:
            if state.attempts:
                state.attempts[-1] = treating.attempt(state, replace(state.attempts[-1], rung=plan.rung), incident.diagnoses[-1], plan)
            self._act(plan, incident.diagnoses[-1])

    # Answers and deadlines.

    def _effect_done(self, event: EffectDone) -> None:
        state, gang = self.state, self.state.gang
        pending = self._answered(event)
        if pending is None:
            return
        current = gang is not None and pending.generation == gang.generation
        match pending.kind:
            case "StartStore":
                state.store = Store(generation=pending.generation, node=pending.node, port=event.port, hosted=event.hosted)
                self._start_if_ready()
            case "FindCheckpoint" if gang is not None and current:
                self._checkpoint_found(gang, event)
            case "StartGang" if gang is not None and current:
                gang.started.add(pending.node)
                if pending.node == gang.nodes[0]:
                    own = {"arguments": " ".join(self._spec.argv), "world size": str(state.world_size)}
                    state.started_with = {**(event.surroundings or state.started_with), **own}
                if state.phase is JobPhase.STARTING and gang.started == set(gang.nodes):
                    self._gang_up()
            case "CaptureStacks":
                incident = self._open_incident()
                if incident is not None:
                    self._keep(with_collectives(replace(incident, stacks={**incident.stacks, **event.stacks}), event))
                self._examined_if_done()
            case "ChooseRanks" if current:
                self._capture_profile(event.slow, event.beside)
            case "CaptureProfile":
                self._profile_taken(event)
            case "CheckNode":
                self._checked(passed=event.passed, said=event.said, port=event.port)
            case "StopGang":
                self._note_why_not(event.cannot)
                self._stopped_on(pending.node)
            case "PartGang" if gang is not None and current:
                gang.waiting |= event.waiting
                gang.reached |= event.reached
                self._note_given_up(event.cannot)
                self._stopped_on(pending.node)

    def _effect_failed(self, event: EffectFailed) -> None:
        pending = self._answered(event)
        if pending is not None:
            self._failed(pending, event.because, permanent=event.permanent, unkillable=event.unkillable)

    def _failed(self, pending: Pending, because: str, *, permanent: bool = False, unkillable: tuple[int, ...] = ()) -> None:
        state, gang = self.state, self.state.gang
        current = gang is not None and pending.generation == gang.generation
        match pending.kind:
            case "StartStore" | "StartGang" if current and state.phase is JobPhase.STARTING:
                kind = "not_startable" if permanent else "start_failed"
                self._trouble(Finding(kind=kind, node=pending.node, since=state.at, because=because), began_at=state.at)
            case "FindCheckpoint" if current:
                # Starting fresh over checkpoints that cannot be read would lose them.
                self._end(Outcome.BROKEN, BROKEN_CODE, f"the checkpoints cannot be read: {because}")
            case "CaptureStacks":
                self._examined_if_done()
            case "ChooseRanks" | "CaptureProfile":
                profiling.lost(state, pending.node, because)
                self._profiled_if_done(because)
            case "CheckNode":
                self._checked(passed=False, said=because)
            case "StopGang" | "PartGang":
                self._node_not_stopped(pending, because, unkillable)

    def _answered(self, event: EffectDone | EffectFailed) -> Pending | None:
        """What this answers. None: it was answered, or given up, before; or another one was asked, who alone can say what runs there."""
        pending = self.state.pending.get(event.effect)
        if pending is None or pending.node != event.node:
            return None
        return self.state.pending.pop(event.effect)

    def _ticked(self) -> None:
        state = self.state
        for id, pending in sorted(state.pending.items()):
            if pending.deadline <= state.at and id in state.pending:
                del state.pending[id]
                self._failed(pending, f"{pending.node} did not answer {pending.kind} within its time")
        for name in sorted(name for name, at in state.deadlines.items() if at <= state.at):
            if state.deadlines.pop(name, None) is not None:
                self._came_due(name)

    def _came_due(self, name: str) -> None:
        """The time that was set under this name has come."""
        state = self.state
        match name:
            case "back_off":
                self._form_if_possible()
                self._wait_for_nodes()
            case "nodes":
                self._nodes_did_not_come()
            case asking.DEADLINE:
                self._end(Outcome.STOPPED, BROKEN_CODE, f"nobody answered within {self._policy.answer_wait_s:.0f} s: {state.because}")
            case base.TIME:
                self._out_of_time()
            case "patience":
                self._out_of_patience()
            case verifying.DEADLINE:
                verifying.passed(state, f"nothing of it was seen for {self._policy.verify_s:.0f} s")
            case treating.DEADLINE:
                treating.passed(state)
            case "missing":
                self._ranks_missing()
            case "rejoin":
                self._rejoin_failed()
            case "unguarded":
                self._unguarded()
            case _ if name.startswith(leaving.LEAVE):
                leaving.begin(state, name.removeprefix(leaving.LEAVE))
                self._move_if_due()
            case _ if name.startswith(leaving.LAST):
                self._last_call(name.removeprefix(leaving.LAST))
            case _ if name.startswith(slowness.WEIGH):
                if self._weigh_slow(name):
                    self._move_if_due()
            case _ if name.startswith(slowness.PROVE):
                slowness.proved(state, name)
            case _ if name.startswith(slowness.BACK):
                slowness.repaired(state, name)
            case _ if name.startswith(standing.CALM):
                standing.calmed(state, name, calm_s=self._policy.calm_s)
