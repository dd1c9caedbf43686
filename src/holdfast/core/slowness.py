"""Slowness: a rank is slow and the gang waits for it in every step. Whether its node is left is for `recover/slow.py`; the core asks here when, and what came
of it. Works on the core's state, which has one owner still.

    slow_rank stands ─► `slow_wait_s` later it is weighed ─► a plan: cordoned, drained, and the gang moves, with a save or with survivors
                          ▲        │                             └─► `--policy ask`, `advise`: it is said, and a person may approve it
                          └────────┴ not worth it yet
    the gang works without it ─► nobody is slow for `verify_s`: it worked │ whoever took its place is as slow: the rank itself is, and the node is given back

Ranks of several nodes that are slow at once have a cause in common, and nobody is moved for it. A slow node is better than none: it is given back when nodes
are short, and after `slow_back_s`, which doubles each time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.core import checks, leaving, membership, replicas, verifying
from holdfast.diagnose.together import leading
from holdfast.domain.finding import Finding
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobPhase
from holdfast.domain.state import Attempt, State
from holdfast.recover.slow import LEAST, SLOW, Held, Stay

WEIGH, PROVE, BACK = "slow since ", "faster without ", "slow no more "  # Deadlines, with a generation and a key, an incident and a node behind.
_BECAUSE: Final = "slow: "  # A cordon of ours begins so.
_OF_THE_NODE: Final = frozenset({SLOW, "throttled", "held_back", "busy_host", "lossy_network", "slow_peer", "gpu_fault"})  # What does not come along.
_BEGINNING_S: Final = 60.0  # Of a gang. Who is slow by then was not seen to keep up.


def found(state: State, finding: Finding) -> None:
    """It is weighed once it has stood for a while. A control that was restarted finds it again, and it has stood all the same. What costs little is left."""
    gang, spec = state.gang, state.spec
    assert gang is not None and spec is not None
    if finding.kind == SLOW and finding.share >= LEAST:
        state.deadlines.setdefault(f"{WEIGH}{gang.generation} {finding.key}", max(state.at, finding.since + spec.policy.slow_wait_s))


def ended(state: State, key: str) -> None:
    """The rank keeps up again. Where the gang has not moved yet, it stays."""
    state.deadlines.pop(f"{WEIGH}{state.generation} {key}", None)
    for incident in state.incidents:
        if incident.is_open and incident.stands and is_planned(incident) and not _standing(incident):
            _give_back(state, incident.plans[-1].drop[0])


def held(state: State, deadline: str) -> tuple[Incident, Held | Stay] | None:
    """What is to be weighed now that its time has come, or why it need not be; None: it is over."""
    gang, spec = state.gang, state.spec
    generation, _, key = deadline.removeprefix(WEIGH).partition(" ")
    incident = next((one for one in state.incidents if one.is_open and one.stands and any(known.key == key for known in _standing(one))), None)
    if gang is None or spec is None or state.phase is not JobPhase.RUNNING or int(generation) != gang.generation or incident is None or incident.plans:
        return None
    slow = _standing(incident)
    nodes = sorted({_node(state, one) for one in slow})
    if len(nodes) > 1:
        return incident, Stay(because=f"{', '.join(nodes)} are slow at once, so what they have in common is", again_s=spec.policy.slow_wait_s)
    if (first := leading(incident.findings)).kind not in _OF_THE_NODE:
        return incident, Stay(because=f"{first.kind} is why, and may come along to another node", again_s=spec.policy.slow_wait_s)
    if any(is_planned(one) and one.outcome == verifying.CAME_BACK and _ranks(one) & _ranks(incident) for one in state.incidents):
        return incident, Stay(because="the same rank was as slow on another node")
    if (rests_s := membership.rests_s(state)) > 0.0:
        return incident, Stay(because=f"the gang was given other nodes a moment ago, and is left in peace for {rests_s:.0f} s more", again_s=rests_s)
    since, share = min(one.since for one in slow), max(one.share for one in slow)
    from_start = since <= gang.started_at + _BEGINNING_S
    return incident, Held(node=nodes[0], share=share, stood_s=state.at - since, from_start=from_start, because=slow[0].because)


def stays(state: State, incident: Incident, deadline: str, why: Stay) -> None:
    """The first reason is told; what was not worth it is asked again, since spares come and time goes."""
    assert state.spec is not None
    if not any(line.what.startswith("stays: ") for line in incident.story):
        state.keep(incident.tell(state.at, f"stays: {why.because}"))
    state.deadlines[deadline] = state.at + (why.again_s or state.spec.policy.slow_back_s)


def attempts(state: State) -> list[Attempt]:
    """What was done about it before, as budgets count it."""
    moved = [(one.plans[-1].rung, at) for one in state.incidents if is_planned(one) for at in one.acted]
    return [Attempt(cause=SLOW, fingerprint="", step=-1, progressed=True, rung=rung, at=at) for rung, at in moved]


def act(state: State, incident: Incident) -> None:
    """The plan is carried out: the gang is to leave the node."""
    assert state.spec is not None
    plan, node = incident.plans[-1], incident.plans[-1].drop[0]
    state.keep(incident.act(state.at, plan))
    state.cordoned.setdefault(node, f"{_BECAUSE}{leading(incident.findings).because}")
    state.draining = tuple(dict.fromkeys((*state.draining, node)))
    checks.suspect(state, node, plan.because)
    times = sum(is_planned(one) and bool(one.acted) and one.plans[-1].drop == (node,) for one in state.incidents)
    state.deadlines[BACK + node] = state.at + state.spec.policy.slow_back_s * 2.0 ** (times - 1)


def settled(state: State) -> None:
    """A gang works. From now on it is watched whether it is well without the node."""
    assert state.spec is not None
    for incident in state.incidents:
        if _is_to_prove(state, incident):
            if not incident.costs:
                state.keep(replace(incident, costs=state.bill(incident.acted[-1])))
            state.deadlines.setdefault(f"{PROVE}{incident.id}", state.at + state.spec.policy.verify_s)


def proved(state: State, deadline: str) -> None:
    incident = state.incidents[int(deadline.removeprefix(PROVE)) - 1]
    if not _is_to_prove(state, incident):
        return
    plan, left = incident.plans[-1], incident.plans[-1].drop[0]
    slow = [one for other in state.incidents if other.is_open for one in _standing(other) if not plan.take or _node(state, one) == plan.take[0]]
    said = f"{slow[0].because}, also without {left}, which is given back" if slow else f"nobody is slow without {left}"
    outcome = verifying.CAME_BACK if slow else verifying.WORKED
    state.keep(replace(incident.tell(state.at, f"{outcome}: {said}"), outcome=outcome))
    if slow:
        _give_back(state, left)


def repaired(state: State, deadline: str) -> None:
    _give_back(state, deadline.removeprefix(BACK))


def spare_nobody(state: State) -> None:
    """Nodes are short."""
    if replicas.whole(state, len(membership.usable(state))) < replicas.least(state):
        lift_all(state)


def lift_all(state: State) -> None:
    for node in [name for name, why in state.cordoned.items() if why.startswith(_BECAUSE)]:
        _give_back(state, node)


def _give_back(state: State, node: str) -> None:
    """On probation: it is taken last. Not at all, where it is to go, or its check has shown worse meanwhile."""
    state.deadlines.pop(BACK + node, None)
    if state.cordoned.get(node, "").startswith(_BECAUSE):
        leaving.give_back_unless_it_goes(state, node)
        state.avoided = tuple(dict.fromkeys((*state.avoided, node)))
        check = state.checks.get(node)
        if check is not None and check.verdict == "retired":
            checks.conclude(state, node, check.verdict, check.said)


def is_planned(incident: Incident) -> bool:
    return incident.stands and bool(incident.plans) and any(one.kind == SLOW for one in incident.findings) and len(incident.plans[-1].drop) == 1


def _is_to_prove(state: State, incident: Incident) -> bool:
    if not is_planned(incident) or not incident.acted or incident.is_open or incident.outcome or state.gang is None:
        return False
    node = incident.plans[-1].drop[0]
    return node not in state.gang.nodes and state.cordoned.get(node, "").startswith(_BECAUSE)


def _standing(incident: Incident) -> list[Finding]:
    """Of its findings, those that a rank is slow, and still so."""
    return [one for one in incident.findings if one.kind == SLOW and one.key not in incident.ended]


def _ranks(incident: Incident) -> set[int]:
    return {rank for one in incident.findings if one.kind == SLOW for rank in one.ranks}


def _node(state: State, finding: Finding) -> str:
    assert state.gang is not None and state.spec is not None
    return finding.node or state.gang.nodes[finding.ranks[0] // state.spec.ranks_per_node]
