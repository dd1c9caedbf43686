"""Filling: memory of a rank grows and will soon be used up. The gang is started again before it is, at the step it is at: it saves, and nothing is done again.
The core asks here; works on the core's state, which has one owner still.

    memory_leak     what it holds between steps grows: it starts again as it is, which gives all of it back
    memory_peak     what it holds within a step grows: smaller micro-batches, as after an out-of-memory

What `recover/memory.py` would do after the crash is done before it, counted by the same budgets and refused by the same policy. Where it may not be done, or
did not bring the job further the last time, the gang runs on, which is told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.core import asking, verifying
from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.finding import Finding
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobPhase, Mode
from holdfast.domain.plan import Plan, Rung
from holdfast.domain.state import State
from holdfast.recover.candidates import forbidden
from holdfast.recover.memory import adjust

LEAK, PEAK = "memory_leak", "memory_peak"
_RUNS_ON: Final = "the gang runs on: "


def found(state: State, finding: Finding) -> bool:
    """Whether the gang is to start again at once. The first reason why not is told."""
    gang, spec = state.gang, state.spec
    assert gang is not None and spec is not None
    incident = next((one for one in reversed(state.incidents) if one.is_open and any(known.key == finding.key for known in one.findings)), None)
    if finding.kind not in (LEAK, PEAK) or incident is None or not incident.stands or incident.plans:
        return False
    diagnosis = _diagnosis(state, finding)
    plan = _plan(state, diagnosis)
    if isinstance(plan, str):
        if not any(line.what.startswith(_RUNS_ON) for line in incident.story):
            state.keep(incident.tell(state.at, f"{_RUNS_ON}{plan}"))
        return False
    incident = replace(incident, diagnoses=(diagnosis,), plans=(plan,))
    if spec.policy.mode is not Mode.AUTO:
        state.keep(incident.tell(state.at, asking.proposal(incident, spec.job)))
        return False
    state.keep(incident)
    act(state, incident)
    return True


def act(state: State, incident: Incident) -> None:
    """The plan is carried out: the gang is to save and to start again."""
    plan, diagnosis = incident.plans[-1], incident.diagnoses[-1]
    state.keep(incident.act(state.at, plan))
    state.attempts.append(verifying.attempt(state, diagnosis, plan.rung, diagnosis.node))
    state.fitting, state.renewing = plan.fitting or state.fitting, plan.because


def is_planned(incident: Incident) -> bool:
    return incident.stands and bool(incident.plans) and any(one.kind in (LEAK, PEAK) for one in incident.findings) and not incident.plans[-1].drop


def settled(state: State) -> None:
    """A gang works: it was started again before its memory was full."""
    for incident in state.incidents:
        if is_planned(incident) and not incident.is_open and not incident.outcome and incident.acted:
            begins = f", from step {state.gang.restore_step}" if state.gang is not None and state.gang.restore_step >= 0 else ""
            said = f"{verifying.WORKED}: all ranks work again {state.at - incident.acted[-1]:.1f} s later{begins}"
            state.keep(replace(incident.tell(state.at, said), outcome=verifying.WORKED, costs=state.bill(incident.acted[-1])))


def _diagnosis(state: State, finding: Finding) -> Diagnosis:
    return Diagnosis(
        cause=Cause.OUT_OF_MEMORY, permanent=False, confidence=0.9, because=finding.because, ranks=finding.ranks, node=finding.node, step=state.step,
        fingerprint=f"{finding.kind}:{finding.of or 'host'}", memory="size" if finding.of else "", leak=finding.grew if finding.kind == LEAK else "",
        micro_batch=finding.micro_batch, evidence=(finding.because,),
    )  # fmt: skip


def _plan(state: State, diagnosis: Diagnosis) -> Plan | str:
    gang, spec, history = state.gang, state.spec, state.attempts
    assert gang is not None and spec is not None
    forbids = forbidden(Rung.RESPAWN, diagnosis.cause, history, spec.policy, state.at)
    if state.phase is not JobPhase.RUNNING or not gang.beats or not gang.ready:
        return "it does not save when it is told to leave"
    if forbids or (spec.policy.max_restarts is not None and len(history) >= spec.policy.max_restarts):
        return forbids or f"all {spec.policy.max_restarts} restarts are used up"
    adjustment = adjust(diagnosis, state.fitting, history, spec.resources)
    if adjustment is None or adjustment.fitting is None or (diagnosis.leak and adjustment.fitting != state.fitting):
        return adjustment.because if adjustment is not None and adjustment.fitting is None else "nothing that could be changed would help"
    grows = "" if diagnosis.leak else f"{diagnosis.because}; "  # Of a leak the adjustment tells it.
    return Plan(rung=Rung.RESPAWN, because=f"before its memory is full: {grows}{adjustment.because}", fitting=adjustment.fitting)
