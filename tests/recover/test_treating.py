"""Training gone wrong: which remedy comes first, which next, and when there is none."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.diagnosis import TRAINING, Cause, Diagnosis
from holdfast.domain.job import Budget, MayChange, Policy
from holdfast.domain.learned import Learned
from holdfast.domain.learned import Remedy as Remembered
from holdfast.domain.plan import Plan, Remedy, Rung
from holdfast.domain.state import Attempt
from holdfast.domain.treatment import Treatment, Window
from holdfast.recover.candidates import Fleet
from holdfast.recover.treating import place_of, treat

ALONE = Fleet(gang=("n0",), spares=(), lost=(), checkpoint="step-20", checkpoint_step=20)
TWO = replace(ALONE, gang=("n0", "n1"))
MAY = Policy(may_change=MayChange(rate_min=0.25, clip_min=1.0, warm_up_max=100))


def wrong(cause: Cause = Cause.NOT_FINITE, step: int = 31, **more: object) -> Diagnosis:
    return replace(Diagnosis(cause=cause, permanent=False, confidence=0.9, because="it is NaN", step=step, sound=step - 1), **more)  # type: ignore[arg-type]


def after(diagnosis: Diagnosis, plan: Plan, treatment: Treatment = Treatment()) -> Attempt:  # noqa: B008
    return Attempt(
        cause=diagnosis.cause, fingerprint="", step=diagnosis.step, progressed=False, rung=plan.rung, node=plan.suspect, remedy=plan.remedy,
        place=place_of(diagnosis, treatment), ranks=diagnosis.ranks,
    )  # fmt: skip


def tried(diagnosis: Diagnosis, policy: Policy, fleet: Fleet = ALONE) -> list[Plan]:
    """All that is done when nothing helps: what comes after what is left out is wrong too."""
    plans: list[Plan] = []
    history: list[Attempt] = []
    treatment = Treatment()
    while not plans or plans[-1].rung is not Rung.STOP:
        plans.append(treat(diagnosis, history, fleet, policy, treatment))
        history.append(after(diagnosis, plans[-1], treatment))
        treatment = plans[-1].treatment or treatment
        assert len(plans) < 30, plans
    return plans


def test_the_first_thing_is_to_do_the_same_again_and_then_the_data_is_left_out() -> None:
    diagnosis = wrong()
    first = treat(diagnosis, [], ALONE, Policy(), Treatment())
    assert (first.rung, first.remedy, first.at_most, first.treatment, first.suspect) == (Rung.ROLL_BACK, Remedy.REPLAY, 30, None, "")
    second = treat(diagnosis, [after(diagnosis, first)], ALONE, Policy(), Treatment())
    assert second.remedy == Remedy.SKIP
    assert second.treatment == Treatment(left_out=(Window(first=30, last=30),))
    assert [one.name for one in second.candidates] == ["replay", "skip", "change", "older", "stop"]
    assert all(one.because for one in second.candidates)


def test_what_helped_in_earlier_jobs_comes_first() -> None:
    rows = (Remembered(cause="not_finite", rung="replay", failed=9.0), Remembered(cause="not_finite", rung="skip", worked=9.0))
    first = treat(wrong(), [], ALONE, Policy(), Treatment(), Learned(remedies=rows))
    assert first.remedy == Remedy.SKIP


def test_what_no_checkpoint_is_old_enough_for_is_not_possible() -> None:
    plan = treat(wrong(step=31), [], replace(ALONE, none_before=30), Policy(), Treatment())
    assert plan.rung is Rung.STOP
    assert "no checkpoint from step 30 or before is there" in plan.because


def test_what_was_left_out_before_counts_in_the_place_and_in_the_budget() -> None:
    known = Treatment(left_out=(Window(first=3, last=6),))
    diagnosis = wrong()
    plan = treat(diagnosis, [after(diagnosis, Plan(rung=Rung.ROLL_BACK, remedy="replay", because=""), known)], ALONE, Policy(), known)
    assert plan.treatment == Treatment(left_out=(Window(first=3, last=6), Window(first=34, last=34)))
    full = Treatment(left_out=(Window(first=3, last=10),))
    plan = treat(diagnosis, [after(diagnosis, Plan(rung=Rung.ROLL_BACK, remedy="replay", because=""), full)], ALONE, Policy(), full)
    assert plan.remedy == Remedy.OLDER
    assert "9 steps would be left out in all, and 8 may be" in plan.candidates[1].because


def test_one_rank_alone_is_computed_elsewhere_and_a_spare_is_better_than_a_swap() -> None:
    diagnosis = wrong(ranks=(1,))
    swapped = treat(diagnosis, [], replace(TWO, blamed="n1"), Policy(), Treatment())
    assert (swapped.suspect, swapped.deal, swapped.drop) == ("n1", ("n1", "n0"), ())
    spared = treat(diagnosis, [], replace(TWO, blamed="n1", spares=("n2",)), Policy(), Treatment())
    assert (spared.suspect, spared.deal, spared.drop, spared.take) == ("n1", (), ("n1",), ("n2",))


def test_a_fault_that_follows_its_node_is_the_nodes_and_one_that_stays_with_its_ranks_is_not() -> None:
    fleet = replace(TWO, blamed="n1")
    diagnosis = wrong(ranks=(1,))
    history = [after(diagnosis, treat(diagnosis, [], fleet, Policy(), Treatment()))]
    followed = treat(wrong(ranks=(0,)), history, replace(fleet, gang=("n1", "n0"), least=1), Policy(), Treatment())
    assert (followed.retire, followed.drop, followed.take) == ("n1", ("n1",), ())
    nobody = treat(wrong(ranks=(0,)), history, replace(fleet, gang=("n1", "n0")), Policy(), Treatment())
    assert nobody.remedy == Remedy.SKIP
    assert "no other node is there" in nobody.candidates[0].because
    stayed = treat(wrong(ranks=(1,)), history, replace(fleet, gang=("n1", "n0"), blamed="n0"), Policy(), Treatment())
    assert (stayed.remedy, stayed.retire) == (Remedy.SKIP, "")


def test_hyper_parameters_are_changed_only_within_their_limits() -> None:
    diverged = wrong(Cause.DIVERGED)
    plans = tried(diverged, MAY)
    changes = [plan.treatment for plan in plans if plan.remedy == Remedy.CHANGE]
    assert changes == [
        Treatment(rate=0.5, clip=1.0, warm_up=100, warm_up_from=30), Treatment(rate=0.25, clip=1.0, warm_up=100, warm_up_from=30),
    ]  # fmt: skip
    assert plans[0].remedy == Remedy.CHANGE
    assert all(plan.remedy != Remedy.CHANGE for plan in tried(diverged, Policy()))
    assert all(plan.remedy != Remedy.SKIP for plan in tried(diverged, MAY)), "a jump alone is no leave to drop data"
    assert any(plan.remedy == Remedy.SKIP for plan in tried(diverged, replace(MAY, skip_batches=4)))


def test_what_nothing_helps_against_ends_with_all_that_was_tried() -> None:
    plans = tried(wrong(), Policy())
    assert plans[0].remedy == Remedy.REPLAY
    assert plans[-1].permanent
    assert "hopeless" in plans[-1].because
    assert "not mended by replay 1 time, skip" in plans[-1].because
    windows = [plan.treatment.left_out for plan in plans if plan.treatment is not None]
    assert [sum(map(len, window)) for window in windows] == [1, 4, 8], "ever more is left out, within the budget of 8"


def test_replicas_that_disagree_are_no_matter_of_data_or_hyper_parameters() -> None:
    plans = tried(wrong(Cause.REPLICAS_DISAGREE, sound=10), MAY, replace(TWO, blamed="n1"))
    assert [plan.name for plan in plans] == ["replay", "replay", "replay", "stop"]
    assert plans[0].at_most == 10


def test_a_bit_that_flips_elsewhere_or_beside_bad_data_is_another_matter() -> None:
    """Replicas that were alike in between did not go wrong in the same place, and a replay of theirs says nothing of data."""
    first = wrong(Cause.REPLICAS_DISAGREE, step=64, sound=0)
    history = [after(first, treat(first, [], ALONE, Policy(), Treatment()))]
    for second in (wrong(Cause.REPLICAS_DISAGREE, step=128, sound=64), wrong(step=66)):
        plan = treat(second, history, ALONE, Policy(), Treatment())
        assert plan.remedy == Remedy.REPLAY
        assert "tried" not in next(one for one in plan.candidates if one.name == "replay").because


def test_policies_and_persons_have_the_last_word() -> None:
    diagnosis = wrong()
    never = treat(diagnosis, [], ALONE, Policy(never=("roll_back",)), Treatment())
    assert never.rung is Rung.STOP
    assert "--never" in never.because
    history = [after(diagnosis, Plan(rung=Rung.ROLL_BACK, remedy="replay", because=""))]
    spent = treat(diagnosis, history, ALONE, Policy(budgets=(Budget(count=1, within_s=100.0, rung="roll_back"),)), Treatment(), at=50.0)
    assert spent.rung is Rung.STOP
    assert "budget is used up" in spent.because
    assert treat(diagnosis, history, ALONE, Policy(max_restarts=1), Treatment()).rung is Rung.STOP
    assert treat(diagnosis, [], ALONE, Policy(), Treatment(), only="skip").remedy == Remedy.SKIP
    assert treat(diagnosis, [], ALONE, Policy(), Treatment(), only="change").rung is Rung.STOP, "what is not possible is not done"


@given(
    cause=st.sampled_from(TRAINING), step=st.integers(1, 60), budget=st.none() | st.integers(0, 20), may=st.booleans(), nodes=st.integers(1, 3),
    spares=st.integers(0, 2), blamed=st.integers(0, 3),
)  # fmt: skip
def test_whatever_happens_it_ends_and_no_limit_is_passed(
    cause: Cause, step: int, budget: int | None, may: bool, nodes: int, spares: int, blamed: int
) -> None:  # fmt: skip
    policy = replace(MAY if may else Policy(), skip_batches=budget)
    names = tuple(f"n{number}" for number in range(nodes))
    fleet = replace(ALONE, gang=names, spares=tuple(f"s{number}" for number in range(spares)), blamed=names[blamed] if blamed < nodes else "")
    for plan in tried(wrong(cause, step), policy, fleet):
        changed = plan.treatment or Treatment()
        assert changed.draws_left_out <= (8 if budget is None else budget)
        assert policy.may_change.rate_min <= changed.rate <= 1.0
        assert plan.at_most <= step - 1
        assert not plan.deal or sorted(plan.deal) == sorted(names)
