"""Deciding: from a gang that has stopped to an act.

    nothing of it is left ─► the cause, by `diagnose` ─► the rung, by `recover` ─► it is acted on, or proposed to a person
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.core import asking, checks, membership, rejoining, replicas, slowness, standing, treating, verifying
from holdfast.core.base import PERMANENT_CODE
from holdfast.core.forming import Forming
from holdfast.diagnose.collectives import sharpen
from holdfast.diagnose.first_cause import diagnose
from holdfast.diagnose.taxonomy import CLASSES, Permanence
from holdfast.domain.diagnosis import TRAINING, Cause, Diagnosis
from holdfast.domain.event import StopAsked
from holdfast.domain.finding import NUMBERS, Finding
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import JobPhase, Mode, Outcome
from holdfast.domain.plan import Plan, Rung
from holdfast.domain.state import Gang, NodeState
from holdfast.recover.costs import costs_of, node_wait
from holdfast.recover.ladder import Fleet, decide
from holdfast.recover.memory import adjust
from holdfast.recover.slow import Stay, leave
from holdfast.recover.treating import treat

CORRECTED = 0.95  # How sure a person's word makes it.
_OF_THE_SIZE = (Cause.EXCEPTION, Cause.EXIT_CODE, Cause.OUT_OF_MEMORY)  # What a script may come to on fewer nodes than it was written for.


class Deciding(Forming):
    __slots__ = ()

    def _stopped_if_done(self) -> None:
        """When nothing of the generation is left anywhere: say what it was, choose what to do, and do it."""
        state, gang = self.state, self.state.gang
        if state.phase is not JobPhase.STOPPING or gang is None:
            return
        of_it = (gang.generation, gang.kept_of)
        if any(pending.kind in ("StopGang", "PartGang") and pending.generation in of_it for pending in state.pending.values()):
            return
        incident = self._open_incident()
        if state.stop is not None:
            self._stopped_as_asked(state.stop, gang)
            return
        if self._ran_to_its_end(gang):
            self._finish("every rank ran to its end before it had to stop")
            return
        if gang.waiting and state.moving and (rejoining.cannot(state) or rejoining.goes_back(state)):
            self._stop_waiting(gang, state.moving)
            return
        if state.moving:
            self._enter(JobPhase.WAITING, state.moving)
            state.ledger.enter(Bucket.RENDEZVOUS, state.at)
            self._form_if_possible()
            self._wait_for_nodes()
            return
        assert incident is not None
        self._diagnose_and_decide(gang, incident)

    def _diagnose_and_decide(self, gang: Gang, incident: Incident) -> None:
        state = self.state
        state.ledger.enter(Bucket.DIAGNOSE, state.at)
        incident = self._note_how_far_it_was(incident)
        diagnosis = self._judged(incident)
        if diagnosis.step < 0 <= state.step:
            diagnosis = replace(diagnosis, step=state.step)
        if state.attempts and self._ran_healthily():
            state.attempts[-1] = replace(state.attempts[-1], progressed=True)
        verifying.judge(state, incident, diagnosis)
        plan = self._agreed_to(diagnosis, incident.plans[-1]) if state.approved == incident.id else self._decide(diagnosis)
        if gang.waiting and (not rejoining.keeps(state, plan) or rejoining.cannot(state)):
            gang.not_asked = rejoining.cannot(state)  # For the plan that is made when they are gone.
            self._stop_waiting(gang, plan.because)
            return
        plan = self._with_holders(plan, diagnosis)
        self._note_attempt(diagnosis, plan)
        incident = replace(
            incident, diagnoses=(*incident.diagnoses, diagnosis), plans=(*incident.plans, plan),
            exits_judged=len(incident.exits), findings_judged=len(incident.findings),
        )  # fmt: skip
        incident = incident.tell(state.at, f"diagnosed: {diagnosis.cause} ({diagnosis.confidence:.0%}): {diagnosis.because}")
        self._keep(incident.tell(state.at, plan.held) if plan.held else incident)
        self._act(plan, diagnosis)

    def _stopped_as_asked(self, stop: StopAsked, gang: Gang) -> None:
        if self._ran_to_its_end(gang):
            self._finish("every rank ran to its end before it had to stop")
            return
        if len(gang.reached) == self.state.world_size:
            self.state.step = max(self.state.step, min(gang.reached.values()))
            self.state.step_best = max(self.state.step_best, self.state.step)
        self._end(Outcome.STOPPED, stop.code, stop.because)

    def _ran_to_its_end(self, gang: Gang) -> bool:
        """What did so on NaN, or with replicas that differ, has nothing to show for it."""
        incident = self._open_incident()
        found = incident.findings[incident.findings_judged :] if incident is not None else ()
        gone_wrong = any(one.kind in NUMBERS and treating.breaks(self.state, one) for one in found)
        return len(gang.finished) == self.state.world_size and not gone_wrong

    def _finish(self, because: str) -> None:
        incident, gang = self._open_incident(), self.state.gang
        assert gang is not None
        if incident is not None:
            self._close(incident, IncidentPhase.RESOLVED, because, step_after=max(gang.restore_step, -1))
        treating.passed(self.state)
        verifying.ended(self.state, because)
        self._end(Outcome.FINISHED, 0, because)

    def _stop_waiting(self, gang: Gang, because: str) -> None:
        """They were kept for a rejoin that is not what is to be done."""
        gang.waiting = {}
        state = self.state
        state.ledger.enter(Bucket.STOP, state.at)
        self._stop_standing(gang, graceful=False, because=because)
        self._stopped_if_done()

    # What it was.

    def _judged(self, incident: Incident) -> Diagnosis:
        """What is wrong, by all that came since the last plan."""
        findings = [one for one in incident.findings[incident.findings_judged :] if treating.breaks(self.state, one)]
        diagnosis = diagnose(incident.exits[incident.exits_judged :], findings, incident.stacks, first_try_on=self._first_try_on())
        if diagnosis.cause in TRAINING and diagnosis.sound < 0:
            assert self.state.gang is not None
            diagnosis = replace(diagnosis, sound=max(0, self.state.gang.restore_step))  # All ranks restored the same.
        return self._as_corrected(sharpen(diagnosis, incident.collectives, incident.communication))

    def _as_corrected(self, diagnosis: Diagnosis) -> Diagnosis:
        """Where a person has said what a failure of this fingerprint is, that is what it is; and whether trying again can help follows from it."""
        learned = self._spec.learned
        said = dict(learned.corrections).get(diagnosis.fingerprint, "") if learned is not None and diagnosis.fingerprint else ""
        if said not in CLASSES:
            return diagnosis
        because = f"{said}, as somebody corrected an earlier one of the same fingerprint: {diagnosis.because}"
        permanent = CLASSES[said].permanence is Permanence.PERMANENT
        return replace(diagnosis, corrected=said, permanent=permanent, confidence=max(diagnosis.confidence, CORRECTED), because=because)

    def _note_how_far_it_was(self, incident: Incident) -> Incident:
        """The dead, and those who have left, tell exactly how far they were; what was told before may be seconds old."""
        state = self.state
        left = state.gang.reached.values() if state.gang is not None else ()
        reached = [step for step in (*(exit.step for exit in incident.exits[incident.exits_judged :]), *left) if step >= 0]
        if reached:
            state.step = max(state.step, min(reached))
            state.step_best = max(state.step_best, state.step)
        return replace(incident, step_before=max(incident.step_before, state.step))

    def _ran_healthily(self) -> bool:
        """A script that does not beat shows progress only by staying up."""
        gang = self.state.gang
        assert gang is not None
        return not gang.beats and gang.started_at > 0 and self.state.at - gang.started_at >= self._policy.healthy_s

    def _first_try_on(self) -> dict[int, str] | None:
        """The node of each rank, where this is the first fault of the run and its first gang has made no step. Where steps are not told of it must have ended
        soon."""
        gang = self.state.gang
        assert gang is not None
        if self.state.attempts or gang.ready or self._ran_healthily():
            return None
        return {rank: node for node in gang.nodes for rank in self._ranks_on(gang, node)}

    def _lost_ranks(self, gang: Gang, diagnosis: Diagnosis) -> set[int]:
        """Those that broke, and all on nodes that are not there."""
        away = (rank for node in gang.nodes if self.state.nodes[node].state is not NodeState.READY for rank in self._ranks_on(gang, node))
        return {rank for rank in diagnosis.ranks if 0 <= rank < self.state.world_size}.union(away)

    def _blamed(self, diagnosis: Diagnosis, gang: Gang) -> str:
        """The node to blame: as diagnosed, else the one on which all culprits ran."""
        nodes = {gang.nodes[rank // self._spec.ranks_per_node] for rank in diagnosis.ranks if 0 <= rank < self.state.world_size}
        return diagnosis.node or (nodes.pop() if len(nodes) == 1 else "")

    # What to do.

    def _agreed_to(self, diagnosis: Diagnosis, plan: Plan) -> Plan:
        """What a person has agreed to, by what is known now. Where that is not possible any more, what is comes before the person again."""
        made = plan if plan.rung is Rung.STOP else self._decide(diagnosis, only=plan.name)
        if made.name == plan.name:
            return made
        self.state.approved = 0
        return self._decide(diagnosis)

    def _ask_anew(self) -> None:
        """Nodes went or came while a plan waits for a person: what is proposed, and what else there is to choose, is by what is there now."""
        incident = asking.waiting(self.state)
        assert incident is not None
        diagnosis = incident.diagnoses[-1]
        plan = self._with_holders(self._decide(diagnosis), diagnosis)
        incident = replace(incident, plans=(*incident.plans[:-1], plan))
        said = asking.proposal(incident, self._spec.job)
        if said != self.state.because and len(incident.story) < standing.STORY_LINES:  # A node may come and go for as long as nobody answers.
            incident = incident.tell(self.state.at, said)
        self._keep(incident)
        if plan.rung is Rung.STOP:
            self._act(plan, diagnosis)
        else:
            self._enter(JobPhase.WAITING, said)

    def _with_holders(self, plan: Plan, diagnosis: Diagnosis) -> Plan:
        """And who else holds what was lost."""
        state, gang = self.state, self.state.gang
        assert gang is not None
        if plan.rung is Rung.STOP or diagnosis.cause in TRAINING:
            return plan
        return replicas.with_holders(state, plan, self._lost_ranks(gang, diagnosis), lives=bool(gang.waiting), kept=not rejoining.goes_back(state))

    def _decide(self, diagnosis: Diagnosis, *, only: str = "") -> Plan:
        """`only`: what a person has chosen."""
        state, gang = self.state, self.state.gang
        assert gang is not None
        spec, policy = self._spec, self._policy
        answered = state.phase is JobPhase.WAITING  # The last attempt is of the plan that the person did not want.
        history = state.attempts[:-1] if answered else state.attempts
        adjustment = adjust(diagnosis, state.fitting, history, spec.resources)
        if adjustment is None and not answered:
            self._note_refused(diagnosis, gang)
        slowness.spare_nobody(state)
        fleet = self._fleet(gang, blamed=self._blamed(diagnosis, gang), can_rejoin=rejoining.cannot(state))
        if diagnosis.cause in TRAINING:
            return treat(diagnosis, history, fleet, policy, state.treatment, spec.learned, at=state.at, only=only)
        return decide(diagnosis, history, fleet, policy, spec.learned, at=state.at, job=spec.job, adjustment=adjustment, only=only)

    def _fleet(self, gang: Gang, *, blamed: str, can_rejoin: str) -> Fleet:
        state, spec, policy, usable = self.state, self._spec, self._policy, membership.usable(self.state)
        cleaning = self._count(NodeState.CLEANING)
        return Fleet(
            gang=gang.nodes, spares=tuple(name for name in usable if name not in gang.nodes), lost=tuple(sorted(state.nodes.keys() - set(usable))),
            checkpoint=gang.restore or "", checkpoint_step=gang.restore_step, blamed=blamed, avoided=state.avoided,
            asked=spec.nodes, least=replicas.least(state), block=replicas.block(state),
            refused={int(nodes): why for nodes, why in state.refused.items()}, costs=costs_of(state.incidents, self._first_s()),
            can_rejoin=can_rejoin, goes_back=rejoining.goes_back(state), none_before=state.none_before,
            node_wait=node_wait(
                state.absences, otherwise_s=policy.node_wait_s, cleaning_s=policy.kill_wait_s if len(usable) + cleaning >= spec.nodes else None
            ),
        )  # fmt: skip

    def _first_s(self) -> float | None:
        took_s = self.state.first_step_s
        return None if took_s is None else took_s + self._policy.abort_grace_s

    def _note_attempt(self, diagnosis: Diagnosis, plan: Plan) -> None:
        state, gang = self.state, self.state.gang
        assert gang is not None
        state.attempts.append(treating.attempt(state, verifying.attempt(state, diagnosis, plan.rung, self._blamed(diagnosis, gang)), diagnosis, plan))

    def _note_refused(self, diagnosis: Diagnosis, gang: Gang) -> None:
        """A script that fails before its first step on fewer nodes, in the same way twice, and took steps on more, does not run on so few."""
        state, count, last = self.state, len(gang.nodes), self.state.attempts[-1] if self.state.attempts else None
        if count == self._spec.nodes or gang.ready or state.step_best < 0 or diagnosis.cause not in _OF_THE_SIZE:
            return
        if diagnosis.permanent or (last is not None and (last.fingerprint, last.nodes) == (diagnosis.fingerprint, count)):
            state.refused[str(count)] = diagnosis.because

    def _act(self, plan: Plan, diagnosis: Diagnosis) -> None:
        state = self.state
        incident = self._open_incident()
        assert incident is not None
        if plan.rung is Rung.STOP:
            outcome, code = (Outcome.PERMANENT, PERMANENT_CODE) if plan.permanent else (Outcome.FAILED, diagnosis.own_code)
            self._end(outcome, code, plan.because)
            return
        if self._policy.mode is not Mode.AUTO and state.approved != incident.id:
            said = asking.proposal(incident, self._spec.job)
            self._keep(incident.tell(state.at, said))
            self._enter(JobPhase.WAITING, said)
            state.ledger.enter(Bucket.WAIT, state.at)
            state.deadlines[asking.DEADLINE] = state.at + self._policy.answer_wait_s
            return
        state.approved = 0
        self._keep(incident.move(IncidentPhase.ACTING, at=state.at, because=f"{plan.name}: {plan.because}"))
        left = [name for name in plan.drop if state.nodes[name].state is NodeState.READY and name not in state.cordoned]
        state.avoided = (*state.avoided, *left)
        for name in left:
            checks.suspect(state, name, plan.because)
        state.fitting = plan.fitting or state.fitting
        if plan.rung is Rung.ROLL_BACK:
            treating.begin(state, plan, diagnosis, incident.id)
        if plan.distrust:
            state.distrusted = (*state.distrusted, plan.distrust)
            state.poisoned = (*state.poisoned, plan.distrust) if diagnosis.cause is Cause.POISONED_CHECKPOINT else state.poisoned
        self._enter(JobPhase.WAITING, plan.because)
        state.ledger.enter(Bucket.WAIT if plan.wait_s else Bucket.REPLACE if plan.rung is Rung.REPLACE else Bucket.RENDEZVOUS, state.at)
        if plan.rung is Rung.SHRINK or (plan.retire and not plan.take):
            state.smaller = plan.because
        elif len(plan.take) < len(plan.drop):
            state.smaller = ""  # Nodes are waited for, also where a gang before this one was smaller.
        if plan.wait_s:
            state.deadlines["back_off"] = state.at + plan.wait_s
        self._form_if_possible()
        self._wait_for_nodes()

    def _advise(self, finding: Finding) -> None:
        """A gang that still runs is left as it is, and what would be done is said."""
        state, gang = self.state, self.state.gang
        assert gang is not None
        standing.found(state, finding)
        incident = next(one for one in reversed(state.incidents) if one.is_open and any(known.key == finding.key for known in one.findings))
        if incident.plans and not slowness.is_planned(incident):
            return
        diagnosis = diagnose((), incident.findings, {})
        incident = replace(incident, diagnoses=(diagnosis,), plans=(self._decide(diagnosis),))
        self._keep(incident.tell(state.at, asking.proposal(incident, self._spec.job)))

    def _weigh_slow(self, deadline: str) -> bool:
        """A rank has been slow for a while. Whether the gang is to leave its node now; a person may be asked first."""
        state, gang = self.state, self.state.gang
        found = slowness.held(state, deadline)
        if found is None or gang is None:
            return False
        incident, held = found
        fleet = self._fleet(gang, blamed="", can_rejoin=rejoining.why_not(state, whole=True))
        plan = held if isinstance(held, Stay) else leave(held, fleet, self._policy, [*state.attempts, *slowness.attempts(state)], at=state.at)
        if isinstance(plan, Stay):
            slowness.stays(state, incident, deadline, plan)
            return False
        incident = replace(incident, plans=(plan,))
        if self._policy.mode is not Mode.AUTO:
            self._keep(incident.tell(state.at, asking.proposal(incident, self._spec.job)))
            return False
        slowness.act(state, incident)
        return True
