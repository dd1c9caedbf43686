"""Verifying: whether a remedy has worked. It is called so when steps go on, the loss goes on where it was, and the same fault was not seen again for
`verify_s`. When it was, it came back; when the numbers are not what they were, it is unsound: both count against the rung. The core asks here; works on the
core's state, which has one owner still.

Is wrong    when the loss is not reported: then only the steps are known.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.finding import NUMBERS
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.state import Attempt, State

DEADLINE = "verify"
WORKED, CAME_BACK, UNSOUND = "worked", "came_back", "unsound"


def begin(state: State) -> None:
    """The gang works again: from now on it is watched."""
    assert state.spec is not None
    state.deadlines[DEADLINE] = state.at + state.spec.policy.verify_s


def passed(state: State, because: str) -> None:
    """The window is over, or the job is, and nothing came back."""
    last = _last(state)
    if last is not None and not last.outcome and not any(one.is_open and not one.stands for one in state.incidents):
        off = next((one for incident in _beside(state, last) for one in incident.findings if one.kind in NUMBERS), None)
        outcome, said = (WORKED, because) if off is None else (UNSOUND, f"training does not go on where it was: {off.because}")
        _keep(state, replace(last.tell(state.at, f"{outcome}: {said}"), outcome=outcome))


def judge(state: State, incident: Incident, diagnosis: Diagnosis) -> None:
    """A fault was diagnosed: is it the one before, within its window?"""
    assert state.spec is not None
    state.deadlines.pop(DEADLINE, None)
    attempt, last = state.attempts[-1] if state.attempts else None, _last(state)
    if attempt is None or diagnosis.cause in (Cause.NODE_LOST, Cause.UNKILLABLE):
        return  # That a node is lost again is no remedy's failure.
    during = any(line.what.startswith("acting:") for line in incident.story)  # The gang has not worked since the plan before.
    soon = last is not None and last.closed_at is not None and incident.began_at - last.closed_at <= state.spec.policy.verify_s
    if (attempt.cause, attempt.fingerprint) != (diagnosis.cause, diagnosis.fingerprint):
        return
    if during or soon:
        state.attempts[-1] = replace(attempt, came_back=True)
    if soon and not during and last is not None and not last.outcome:
        said = f"{CAME_BACK}: the same again {incident.began_at - (last.closed_at or 0.0):.1f} s later, as incident {incident.id}"
        _keep(state, replace(last.tell(state.at, said), outcome=CAME_BACK))


def attempt(state: State, diagnosis: Diagnosis, rung: int, node: str) -> Attempt:
    assert state.gang is not None
    return Attempt(
        cause=diagnosis.cause, fingerprint=diagnosis.fingerprint, step=diagnosis.step, progressed=False, rung=rung, node=node, nodes=len(state.gang.nodes),
        at=state.at,
    )  # fmt: skip


def _beside(state: State, last: Incident) -> list[Incident]:
    """What stood beside the gang since the remedy."""
    return [one for one in state.incidents if one.stands and last.closed_at is not None and one.opened_at >= last.closed_at]


def _last(state: State) -> Incident | None:
    """The newest that a remedy has resolved."""
    return next((one for one in reversed(state.incidents) if one.phase is IncidentPhase.RESOLVED and not one.stands and one.plans), None)


def _keep(state: State, incident: Incident) -> None:
    state.incidents[incident.id - 1] = incident
