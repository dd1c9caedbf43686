"""Verifying: whether a remedy has worked. It is called so when steps go on, the loss goes on where it was, and no fault of the same cause was seen for
`verify_s`. When one was, it came back; when no step follows, or the numbers are not what they were, it is unsound: both count against the rung. The core asks
here; works on the core's state, which has one owner still.

    the gang works again ─► `verify_s` with steps, and nothing of it ─► worked
                         ├─► a fault of the same cause ─► came back
                         ├─► it hangs without a step done since, or its numbers are wrong ─► unsound
                         └─► a fault of another cause ─► not known yet: it is watched on, with the remedy of that one

Is wrong    when the loss is not reported: then only the steps are known; when no step is either: then only that its workers stay up. And when training goes
            wrong by itself so soon after a remedy: the remedy is blamed for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from holdfast.domain.diagnosis import TRAINING, Cause, Diagnosis
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
    """The window is over, and nothing came back. Who has done no step in it is watched on: steps may be longer than that, and a hang is found in time."""
    if any(one.is_open and not one.stands for one in state.incidents):
        return
    for one in list(_unproven(state)):
        off = next((found for incident in _beside(state, one) for found in incident.findings if found.kind in NUMBERS), None)
        if off is not None:
            _count_against(state, one, UNSOUND, f"training does not go on where it was: {off.because}")
        elif state.trial is not None and state.trial.incident == one.id:
            continue  # It has a proof of its own: training goes beyond the place.
        elif _stands_still(state, one):
            begin(state)
        else:
            prove(state, one, because)


def ended(state: State, because: str) -> None:
    """The job ran to its end, and nothing came back."""
    for one in list(_unproven(state)):
        prove(state, one, because)


def judge(state: State, incident: Incident, diagnosis: Diagnosis) -> None:
    """A fault was diagnosed: does it speak against a remedy that has not proved itself?"""
    assert state.spec is not None
    state.deadlines.pop(DEADLINE, None)
    if incident.acted:  # The gang has not worked since the plan before.
        last = state.attempts[-1] if state.attempts else None
        if last is not None and (last.cause, last.fingerprint) == (diagnosis.cause, diagnosis.fingerprint):
            state.attempts[-1] = replace(last, came_back=True)
        return
    unproven = list(_unproven(state))
    for one in unproven:
        after_s, moved, newest = incident.began_at - (one.closed_at or 0.0), not _stands_still(state, one), one is unproven[-1]
        if after_s > state.spec.policy.verify_s and moved:
            prove(state, one, f"nothing of it was seen for {state.spec.policy.verify_s:.0f} s")
        elif diagnosis.cause in (Cause.NODE_LOST, Cause.UNKILLABLE):
            continue  # That a node is lost again is no remedy's failure.
        elif diagnosis.cause == one.diagnoses[-1].cause:
            _count_against(state, one, CAME_BACK, f"{diagnosis.cause} again {after_s:.1f} s later, as incident {incident.id}")
        elif newest and diagnosis.cause in TRAINING:
            _count_against(state, one, UNSOUND, f"training does not go on where it was: {diagnosis.because}")
        elif newest and diagnosis.cause is Cause.HANG and not moved:
            _count_against(state, one, UNSOUND, f"no step was done after it: {diagnosis.because}")


def prove(state: State, incident: Incident, because: str) -> None:
    if not incident.outcome:
        state.keep(replace(incident.tell(state.at, f"{WORKED}: {because}"), outcome=WORKED))


def attempt(state: State, diagnosis: Diagnosis, rung: int, node: str) -> Attempt:
    assert state.gang is not None
    return Attempt(
        cause=diagnosis.cause, fingerprint=diagnosis.fingerprint, step=diagnosis.step, progressed=False, rung=rung, node=node, nodes=len(state.gang.nodes),
        at=state.at,
    )  # fmt: skip


def _count_against(state: State, incident: Incident, outcome: str, said: str) -> None:
    """The next rung comes before the one that failed, here and in later jobs."""
    state.keep(replace(incident.tell(state.at, f"{outcome}: {said}"), outcome=outcome))
    made = [place for place, one in enumerate(state.attempts) if incident.closed_at is not None and one.at <= incident.closed_at]
    if made:
        state.attempts[made[-1]] = replace(state.attempts[made[-1]], came_back=True)


def _unproven(state: State) -> Iterator[Incident]:
    """What remedies of this run have resolved, and nobody knows yet for how long."""
    since = state.attempts[0].at if state.attempts else float("inf")
    for one in state.incidents:
        if one.phase is IncidentPhase.RESOLVED and not one.stands and one.plans and not one.outcome and (one.closed_at or 0.0) >= since:
            yield one


def _stands_still(state: State, incident: Incident) -> bool:
    """Whether a gang that tells of its steps has told of none since."""
    return state.gang is not None and state.gang.beats and state.step <= incident.step_resolved


def _beside(state: State, last: Incident) -> list[Incident]:
    """What stood beside the gang since the remedy."""
    return [one for one in state.incidents if one.stands and last.closed_at is not None and one.opened_at >= last.closed_at]
