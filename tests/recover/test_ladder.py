"""The ladder: permanent causes end it at once, budgets are kept, only nodes that are there are taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.job import Policy
from holdfast.domain.plan import Rung
from holdfast.domain.state import Attempt
from holdfast.recover.ladder import Fleet, decide

CAUSES = st.sampled_from(Cause)
DIAGNOSES = st.builds(
    Diagnosis, cause=CAUSES, permanent=st.booleans(), confidence=st.just(0.9), because=st.just("it broke"), step=st.integers(-1, 3),
    fingerprint=st.sampled_from(("a", "b")), node=st.sampled_from(("", "n1", "n2")),
)  # fmt: skip
ATTEMPTS = st.builds(Attempt, cause=CAUSES.map(str), fingerprint=st.sampled_from(("a", "b")), step=st.integers(-1, 3), progressed=st.booleans())
HISTORIES = st.lists(ATTEMPTS, max_size=30)
POLICIES = st.builds(Policy, max_restarts=st.none() | st.integers(0, 5), restarts_in_a_row=st.integers(1, 6))
NAMES = st.sets(st.sampled_from([f"n{index}" for index in range(1, 8)]))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    gang = tuple(sorted(draw(NAMES) | {"n1"}))
    lost = draw(NAMES)
    return Fleet(gang=gang, spares=tuple(sorted(draw(NAMES) - set(gang) - lost)), lost=tuple(sorted(lost)), checkpoint=draw(st.sampled_from(("", "step-4"))))


@given(DIAGNOSES, HISTORIES, fleets(), POLICIES)
def test_a_permanent_cause_is_never_tried_again(diagnosis: Diagnosis, history: list[Attempt], fleet: Fleet, policy: Policy) -> None:
    plan = decide(diagnosis, history, fleet, policy)
    if diagnosis.permanent:
        assert plan.rung is Rung.STOP
        assert plan.permanent


@given(DIAGNOSES, HISTORIES, fleets(), POLICIES)
def test_a_budget_is_never_exceeded(diagnosis: Diagnosis, history: list[Attempt], fleet: Fleet, policy: Policy) -> None:
    if decide(diagnosis, history, fleet, policy).rung is Rung.STOP:
        return
    assert policy.max_restarts is None or len(history) < policy.max_restarts
    if policy.max_restarts is None and diagnosis.cause not in (Cause.NODE_LOST, Cause.UNKILLABLE):
        row = []
        for attempt in reversed(history):
            if attempt.progressed:
                break
            row.append(attempt)
        assert sum(attempt.cause == diagnosis.cause for attempt in row) < policy.restarts_in_a_row


@given(DIAGNOSES, HISTORIES, fleets(), POLICIES)
def test_a_plan_has_a_reason_and_takes_only_nodes_that_are_there(diagnosis: Diagnosis, history: list[Attempt], fleet: Fleet, policy: Policy) -> None:
    plan = decide(diagnosis, history, fleet, policy)
    assert plan.because
    assert set(plan.take) <= set(fleet.spares)
    assert set(plan.drop) <= set(fleet.gang) & set(fleet.lost)
    assert plan.rung is not Rung.RESPAWN or not set(fleet.gang) & set(fleet.lost)


@given(DIAGNOSES, HISTORIES, fleets(), POLICIES)
def test_no_wait_is_longer_than_the_longest(diagnosis: Diagnosis, history: list[Attempt], fleet: Fleet, policy: Policy) -> None:
    assert 0.0 <= decide(diagnosis, history, fleet, policy).wait_s <= policy.backoff_max_s


FLEET = Fleet(gang=("n1",), spares=(), lost=())


def _fault(cause: Cause, *, step: int = -1, fingerprint: str = "a") -> Diagnosis:
    return Diagnosis(cause=cause, permanent=False, confidence=0.9, because="it broke", step=step, fingerprint=fingerprint)


def _past(cause: Cause, *, step: int = -1, fingerprint: str = "a", progressed: bool = False) -> Attempt:
    return Attempt(cause=cause, fingerprint=fingerprint, step=step, progressed=progressed)


def test_the_same_exception_at_the_same_step_is_permanent_the_second_time() -> None:
    plan = decide(_fault(Cause.EXCEPTION, step=7), [_past(Cause.EXCEPTION, step=7, progressed=True)], FLEET, Policy())
    assert (plan.rung, plan.permanent) == (Rung.STOP, True)


def test_a_start_that_fails_as_one_did_long_ago_is_tried_again_and_one_that_fails_twice_in_a_row_is_not() -> None:
    """Before it has restored anything a rank is at step 0, in a job that is at step 789."""
    failed = _past(Cause.EXIT_CODE, step=0)
    since = [failed, _past(Cause.HANG, step=709, fingerprint="b", progressed=True), _past(Cause.KILLED, step=789, fingerprint="c")]
    assert decide(_fault(Cause.EXIT_CODE, step=0), since, FLEET, Policy()).rung is Rung.RESPAWN
    assert decide(_fault(Cause.EXIT_CODE, step=0), [*since, failed], FLEET, Policy()).permanent


def test_another_step_or_another_fault_is_not_the_same() -> None:
    for past in (_past(Cause.EXCEPTION, step=6), _past(Cause.EXCEPTION, step=7, fingerprint="b")):
        assert decide(_fault(Cause.EXCEPTION, step=7), [past], FLEET, Policy()).rung is Rung.RESPAWN


def test_a_kill_from_outside_is_never_called_permanent() -> None:
    history = [_past(Cause.KILLED, step=7)] * 5
    assert decide(_fault(Cause.KILLED, step=7), history, FLEET, Policy()).rung is Rung.RESPAWN


def test_a_script_that_does_not_beat_and_runs_for_hours_between_faults_goes_on() -> None:
    history = [_past(Cause.EXCEPTION, progressed=True)] * 9
    assert decide(_fault(Cause.EXCEPTION), history, FLEET, Policy()).rung is Rung.RESPAWN


def test_but_not_for_ever_when_it_is_always_the_same_fault() -> None:
    """That it stayed up is all that is known of it: it may come to the same place each time."""
    history = [_past(Cause.EXCEPTION, progressed=True)] * 100
    assert decide(_fault(Cause.EXCEPTION), history, FLEET, Policy()).rung is Rung.STOP
    assert decide(_fault(Cause.EXCEPTION), [*history, _past(Cause.KILLED, fingerprint="b", progressed=True)], FLEET, Policy()).rung is Rung.RESPAWN
    assert decide(_fault(Cause.EXCEPTION, step=7), history, FLEET, Policy()).rung is Rung.RESPAWN, "one that beats shows whether it gets further"


def test_a_node_that_comes_back_only_to_be_lost_again_uses_up_a_budget() -> None:
    history = [_past(Cause.NODE_LOST, fingerprint="node_lost:n1")] * 10
    assert decide(_fault(Cause.NODE_LOST, fingerprint="node_lost:n1"), history, FLEET, Policy()).rung is Rung.STOP
    assert decide(_fault(Cause.NODE_LOST, fingerprint="node_lost:n2"), history, FLEET, Policy()).rung is Rung.RESPAWN


def test_a_poisoned_checkpoint_is_not_restored_again_and_the_one_before_it_is_tried_at_once() -> None:
    fleet = Fleet(gang=("n1",), spares=(), lost=(), checkpoint="step-40")
    for before in range(9):
        history = [_past(Cause.POISONED_CHECKPOINT, step=100 - 10 * number) for number in range(before)]
        plan = decide(_fault(Cause.POISONED_CHECKPOINT, step=4), history, fleet, Policy())
        assert (plan.rung, plan.distrust, plan.wait_s) == (Rung.RESPAWN, "step-40", 0.0)
        assert "step-40" in plan.because


def test_going_back_has_a_budget_that_progress_refills() -> None:
    history = [_past(Cause.POISONED_CHECKPOINT, step=100 - number) for number in range(10)]
    plan = decide(_fault(Cause.POISONED_CHECKPOINT, step=4), history, FLEET, Policy())
    assert (plan.rung, plan.permanent) == (Rung.STOP, False)
    history[-1] = _past(Cause.POISONED_CHECKPOINT, step=91, progressed=True)
    assert decide(_fault(Cause.POISONED_CHECKPOINT, step=4), history, FLEET, Policy()).rung is Rung.RESPAWN


def test_a_checkpoint_of_the_same_step_that_is_poisoned_again_is_not_the_checkpoints_fault() -> None:
    history = [_past(Cause.POISONED_CHECKPOINT, step=40, progressed=True), _past(Cause.KILLED, step=55)]
    plan = decide(_fault(Cause.POISONED_CHECKPOINT, step=40), history, FLEET, Policy())
    assert (plan.rung, plan.permanent, plan.distrust) == (Rung.STOP, True, "")
    assert "the data or the code there is a likelier cause" in plan.because


def test_a_checkpoint_is_distrusted_also_when_a_node_is_replaced() -> None:
    fleet = Fleet(gang=("n1",), spares=("n2",), lost=("n1",), checkpoint="step-40")
    plan = decide(_fault(Cause.POISONED_CHECKPOINT, step=40), [], fleet, Policy())
    assert (plan.rung, plan.distrust) == (Rung.REPLACE, "step-40")
    assert "step-40" in plan.because


def test_waits_double_from_one_second_to_the_longest() -> None:
    waits = [decide(_fault(Cause.VANISHED), [_past(Cause.NETWORK)] * count, FLEET, Policy()).wait_s for count in range(12)]
    assert waits == [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_nobody_waits_for_what_comes_from_outside() -> None:
    assert {decide(_fault(Cause.KILLED), [_past(Cause.NETWORK)] * count, FLEET, Policy()).wait_s for count in range(12)} == {0.0}
