"""Worth: the same node is left only on evidence, for a spare that is there, and the same tables decide the same."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from recover.test_ladder import DIAGNOSES, HISTORIES, POLICIES, fleets

from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.job import Policy
from holdfast.domain.learned import Learned, Remedy
from holdfast.domain.plan import Rung
from holdfast.domain.state import Attempt
from holdfast.recover.ladder import Fleet, decide

TRIES, COSTS = st.floats(0.0, 50.0), st.floats(0.0, 1e4)
TABLES = st.lists(
    st.builds(
        Remedy, cause=st.sampled_from([str(cause) for cause in Cause]), fingerprint=st.sampled_from(("", "a", "b")),
        rung=st.sampled_from(("respawn", "replace")), again=st.booleans(), worked=TRIES, failed=TRIES, worked_s=COSTS, failed_s=COSTS,
    ),
    max_size=6,
).map(lambda rows: Learned(version="v1", remedies=tuple(rows)))  # fmt: skip

DIAGNOSIS = Diagnosis(cause=Cause.EXCEPTION, permanent=False, confidence=0.9, because="ECC", ranks=(0,), step=5, fingerprint="ecc")
FLEET = Fleet(gang=("n1", "n2"), spares=("n3",), lost=(), blamed="n1")
STUBBORN = Learned(version="v7", remedies=(Remedy(cause="exception", fingerprint="ecc", rung="respawn", failed=4.0, failed_s=180.0),))


@given(DIAGNOSES, HISTORIES, fleets(), POLICIES, TABLES, st.sampled_from(("", "n1", "n2", "n9")))
def test_whatever_was_learned_only_spares_that_are_there_are_taken_and_budgets_hold(
    diagnosis: Diagnosis, history: list[Attempt], fleet: Fleet, policy: Policy, learned: Learned, blamed: str
) -> None:
    fleet = replace(fleet, blamed=blamed)
    plan, plain = decide(diagnosis, history, fleet, policy, learned), decide(diagnosis, history, fleet, policy)
    assert plan.learned == "v1"
    assert plan == decide(diagnosis, history, fleet, policy, learned)
    assert set(plan.take) <= set(fleet.spares)
    assert set(plan.drop) <= set(fleet.gang)
    assert plain.rung is not Rung.STOP or plan.rung in (Rung.STOP, Rung.REPLACE)
    assert not diagnosis.permanent or plan.rung is Rung.STOP
    assert policy.max_restarts is None or plan.rung is Rung.STOP or len(history) < policy.max_restarts


def test_a_node_on_which_a_respawn_never_helped_is_left_for_a_spare_and_the_plan_says_why() -> None:
    plan = decide(DIAGNOSIS, [], FLEET, Policy(), STUBBORN)
    assert (plan.rung, plan.drop, plan.take, plan.learned) == (Rung.REPLACE, ("n1",), ("n3",), "v7")
    assert "respawn helped 0.0 of 4.0 times" in plan.because
    assert "replace was not tried yet" in plan.because


def test_without_evidence_the_ladder_stays_as_it_is() -> None:
    once = replace(STUBBORN, remedies=(replace(STUBBORN.remedies[0], failed=1.0),))
    for learned in (None, Learned(version="v1"), once):
        plain = replace(decide(DIAGNOSIS, [], FLEET, Policy()), candidates=())
        assert replace(decide(DIAGNOSIS, [], FLEET, Policy(), learned), learned="", candidates=()) == plain


def test_without_a_spare_or_for_a_node_that_was_left_before_it_is_a_respawn() -> None:
    for fleet in (replace(FLEET, spares=()), replace(FLEET, blamed=""), replace(FLEET, avoided=("n1",)), replace(FLEET, avoided=("n3",))):
        assert decide(DIAGNOSIS, [], fleet, Policy(), STUBBORN).rung is Rung.RESPAWN


def test_what_another_node_did_not_cure_either_is_not_moved_again_and_again() -> None:
    cured = Remedy(cause="exception", fingerprint="ecc", rung="replace", failed=6.0, failed_s=300.0)
    learned = replace(STUBBORN, remedies=(*STUBBORN.remedies, cured))
    assert decide(DIAGNOSIS, [], FLEET, Policy(), learned).rung is Rung.RESPAWN


def test_what_follows_the_job_wherever_it_goes_is_no_reason_to_leave_a_healthy_node() -> None:
    for cause in (Cause.KILLED, Cause.OUT_OF_MEMORY):
        rows = tuple(replace(STUBBORN.remedies[0], cause=str(cause), fingerprint=fingerprint) for fingerprint in ("", "signal"))
        diagnosis = replace(DIAGNOSIS, cause=cause, fingerprint="signal")
        assert decide(diagnosis, [], FLEET, Policy(), replace(STUBBORN, remedies=rows)).rung is not Rung.REPLACE
