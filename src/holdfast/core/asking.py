"""Asking: what a person may say to a running job, and what is refused with a reason. The core asks here, and control before it writes anything down.

    a plan waits (`--policy ask`, `advise`)  ─► approve: it is carried out · veto: the job is stopped, ready to be resumed, or another rung is taken
    a node is cordoned                       ─► it gets no ranks of a new generation · drained: the running gang leaves it too, at the next save
"""

from __future__ import annotations

from holdfast.core import membership, treating
from holdfast.domain.event import CheckAsked, NodeCordoned, NodeUncordoned, PlanApproved, PlanVetoed, TreatmentUndone
from holdfast.domain.incident import Incident
from holdfast.domain.plan import Plan
from holdfast.domain.state import NodeState, State
from holdfast.domain.treatment import Treatment

DEADLINE = "answer"
Said = PlanApproved | PlanVetoed | NodeCordoned | NodeUncordoned | CheckAsked | TreatmentUndone


def waiting(state: State) -> Incident | None:
    """The incident whose plan waits for a person: the gang is gone, or still runs and is left as it is."""
    if DEADLINE in state.deadlines:
        return next((one for one in reversed(state.incidents) if one.is_open and not one.stands and one.plans), None)
    return next((one for one in reversed(state.incidents) if one.is_open and one.stands and one.plans and not one.acted), None)


def proposal(incident: Incident, job: str) -> str:
    """In one sentence, with what a person can do."""
    plan = incident.plans[-1]
    return f"waiting for a person: would {plan.name}: {plan.because}; `holdfast approve {job}` lets it, `holdfast veto {job}` does not"


def refused(state: State, said: Said) -> str:
    """Why it cannot be done; empty when it can."""
    if state.outcome is not None or state.spec is None:
        return "the job has ended"
    match said:
        case PlanApproved() | PlanVetoed():
            incident = waiting(state)
            if incident is None:
                return "no plan waits for an answer" + ("" if state.spec.policy.mode != "auto" else "; plans are carried out as they are made (--policy auto)")
            return _refused_instead(incident.plans[-1], said.instead) if isinstance(said, PlanVetoed) and said.instead else ""
        case TreatmentUndone():
            if state.treatment == Treatment():
                return "training does what the script says: nothing was changed"
            return "" if treating.undone(state) != state.treatment else f"nothing can be taken back: {state.treatment}, and that is behind"
        case NodeCordoned(node=node) | NodeUncordoned(node=node) | CheckAsked(node=node):
            if node not in state.nodes:
                return f"there is no node {node!r}; there are {', '.join(sorted(state.nodes)) or 'none yet'}"
            if isinstance(said, CheckAsked):
                return _refused_check(state, node)
            if isinstance(said, NodeUncordoned) and said.withdrawn:
                return "" if node in state.notices else f"no notice of {node} is known"
            return f"{node} is not cordoned" if isinstance(said, NodeUncordoned) and node not in state.cordoned else ""


def _refused_check(state: State, node: str) -> str:
    if state.nodes[node].state is not NodeState.READY:
        return f"{node} is not there to be checked: {membership.why_not_used(state, node)}"
    if _runs_on(state, node):
        return f"{node} is in the gang, and a check would disturb it: `holdfast drain` has the gang leave it"
    return ""


def _refused_instead(plan: Plan, instead: str) -> str:
    found = next((one for one in plan.candidates if one.name == instead), None)
    if found is None:
        return f"{instead!r} is no rung; there are {', '.join(one.name for one in plan.candidates or (plan,))}"
    return "" if found.possible else f"{instead} is not possible: {found.because}"


def agreed(state: State, said: Said) -> str:
    """What will come of it, once it is written down."""
    match said:
        case PlanApproved():
            return "approved: it is carried out"
        case PlanVetoed(instead=instead):
            what = "the job is stopped, and can be resumed" if state.outcome is not None else "the gang runs on as it is"
            return f"vetoed: {instead} instead" if instead else f"vetoed: {what}"
        case CheckAsked(node=node):
            return f"{node} is checked, once the gang works and other checks are over; `holdfast nodes` says what comes of it"
        case TreatmentUndone():
            return "training is as the script says from the next save on; data that was passed over stays out"
        case NodeUncordoned(node=node):
            return f"{node} may be given ranks again"
        case NodeCordoned(node=node):
            if node in state.draining:
                return f"{node} is cordoned, and the gang leaves it at the next save" + (f"; {why}" if (why := membership.waits_to_leave(state)) else "")
            return f"{node} is cordoned: it gets no ranks of a new generation" + ("; the gang runs on there" if _runs_on(state, node) else "")


def _runs_on(state: State, node: str) -> bool:
    return state.gang is not None and node in state.gang.nodes


def chosen(plan: Plan, said: PlanVetoed) -> Plan:
    """Another one of its candidates in its place. What that takes against a fault is decided anew (`Deciding._agreed_to`)."""
    found = next(one for one in plan.candidates if one.name == said.instead)
    because = f"{said.who or 'somebody'} chose it instead of {plan.name}" + (f": {said.because}" if said.because else "")
    take = plan.take if found.rung is plan.rung else ()
    return Plan(rung=found.rung, remedy=found.remedy, because=because, drop=plan.drop, take=take, candidates=plan.candidates)
