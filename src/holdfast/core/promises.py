"""What must always hold of the core's state, whatever happened: asked after each step in tests and in simulation, and never in production."""

from __future__ import annotations

from holdfast.core import asking, profiling, replicas
from holdfast.domain.effect import CONTROL
from holdfast.domain.incident import IncidentPhase
from holdfast.domain.job import JobPhase
from holdfast.domain.state import NodeState, State


def check(state: State) -> None:
    gang, awaited = state.gang, {pending.kind for pending in state.pending.values()}
    assert (state.outcome is None) == (state.phase is not JobPhase.ENDED), "a job has an outcome when, and only when, it has ended"
    assert sum(incident.is_open and not incident.stands for incident in state.incidents) <= 1, "the gang is stopped for one story at a time"
    assert all(incident.id == number for number, incident in enumerate(state.incidents, start=1)), "an incident is found by its number"
    assert all(incident.phase is IncidentPhase.NOTICED for incident in state.incidents if incident.is_open and incident.stands), "what stands is watched"
    assert abs(sum(state.ledger.totals().values()) - state.ledger.wall_s) < 1e-6 * max(1.0, state.ledger.wall_s), "every second is in one bucket"
    for before, after in zip(state.ledger.spans, state.ledger.spans[1:], strict=False):
        assert before.until == after.since, "spans meet"
    assert state.interval is None or state.interval.every > 0, "what is chosen is a number of steps"
    assert not state.fitting.too_big or 0 < state.fitting.micro_batch < state.fitting.too_big, "what did not fit is not tried again"
    waits = bool({"ChooseRanks", "CaptureProfile"} & awaited)
    assert (profiling.taking(state) is not None) == waits, "a profile waits for somebody, and nobody is waited for without one"
    assert all(one.ended_at is not None for one in state.profiles[:-1]), "one profile is taken at a time"
    for pending in state.pending.values():
        assert pending.kind == "StopGang" or pending.generation <= state.generation + 1, "nothing is started of a generation after the next"
        usable = pending.node == CONTROL or state.nodes[pending.node].state in (NodeState.READY, NodeState.CLEANING)
        assert usable, f"{pending.kind} waits for {pending.node}, which is {state.nodes[pending.node].state}"
    if state.outcome is not None:
        assert not state.pending and not state.deadlines, "an ended job waits for nothing"
        assert not any(incident.is_open for incident in state.incidents), "an ended job has no open story"
        return
    if gang is not None and state.spec is not None:
        assert len(set(gang.nodes)) == len(gang.nodes), "a node is in a gang once"
        assert state.spec.least_nodes <= len(gang.nodes) <= state.spec.nodes, "a gang is neither smaller nor larger than was asked for"
        formed = state.phase in (JobPhase.STARTING, JobPhase.RUNNING)
        assert not formed or len(gang.nodes) % replicas.block(state) == 0, "a gang is made of whole replicas"
    assert set(state.draining) <= state.cordoned.keys(), "a node that the gang is to leave gets no new ranks either"
    assert not state.moving or state.phase in (JobPhase.STOPPING, JobPhase.WAITING), "a gang that is moved does not run"
    assert asking.DEADLINE not in state.deadlines or (state.phase is JobPhase.WAITING and asking.waiting(state) is not None), "who is asked is asked something"
    match state.phase:
        case JobPhase.STARTING:
            assert state.pending, "a start waits for somebody"
        case JobPhase.EXAMINING:
            assert "CaptureStacks" in awaited, "an examination waits for stacks"
        case JobPhase.STOPPING:
            assert {"StopGang", "PartGang"} & awaited, "a stop waits for a node"
        case JobPhase.WAITING if state.spec is not None:
            assert state.deadlines, "a wait has an end"
        case JobPhase.RUNNING:
            assert gang is not None and gang.started == set(gang.nodes), "a running gang is up on all its nodes"
            assert all(state.nodes[name].state is NodeState.READY for name in gang.nodes), "a running gang stands on ready nodes"
