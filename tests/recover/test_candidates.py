"""Candidates: all rungs are weighed and kept with their figures; the least expected cost of what is possible is chosen, within what the policy allows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recover.test_ladder import DIAGNOSES, HISTORIES, fleets

from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import Budget, Policy
from holdfast.domain.plan import Rung
from holdfast.domain.state import Attempt
from holdfast.recover.candidates import Fleet
from holdfast.recover.costs import Costs, NodeWait, costs_of, node_wait
from holdfast.recover.ladder import decide
from holdfast.recover.shrink import worth_shrinking_from_s

LOST = Diagnosis(cause=Cause.NODE_LOST, permanent=False, confidence=0.9, because="n2 is silent", node="n2", fingerprint="node_lost:n2")
HANG = Diagnosis(cause=Cause.HANG, permanent=False, confidence=0.9, because="rank 1 hangs", ranks=(1,), fingerprint="hang:silent_rank")
FLEET = Fleet(
    gang=("n1", "n2", "n3"), spares=(), lost=("n2",), asked=3, least=2, costs=Costs(restart_s=4.0, again_s=1.0, measured=3),
    node_wait=NodeWait(seconds=60.0, rests_on="believed"),
)  # fmt: skip
RUNGS = [rung.name.lower() for rung in Rung if rung is not Rung.STOP]


@given(DIAGNOSES, HISTORIES, fleets(), st.sets(st.sampled_from(RUNGS)), st.integers(0, 3), st.integers(0, 7))
def test_what_is_chosen_is_possible_and_what_is_forbidden_or_used_up_is_not(
    diagnosis: Diagnosis, history: list[Attempt], fleet: Fleet, never: set[str], count: int, least: int
) -> None:
    policy = Policy(never=tuple(sorted(never)), budgets=(Budget(count=count, within_s=10.0, rung="replace"),))
    history = [replace(one, rung=Rung.REPLACE, at=float(number)) for number, one in enumerate(history)]
    plan = decide(diagnosis, history, replace(fleet, least=least), policy, at=float(len(history)))
    assert [one.rung for one in plan.candidates] == sorted(one.rung for one in plan.candidates)
    chosen = next(one for one in plan.candidates if one.rung is plan.rung)
    assert chosen.possible
    assert plan.rung.name.lower() not in never
    used = sum(one.at > len(history) - 10.0 for one in history)
    assert plan.rung is not Rung.REPLACE or used < count
    assert plan.rung is not Rung.SHRINK or least <= fleet.usable < fleet.whole
    assert all(one.because and one.cost_s >= 0.0 and 0.0 <= one.risk <= 1.0 for one in plan.candidates)


def test_without_a_spare_the_gang_goes_on_smaller_when_a_node_is_long_in_coming_and_the_rule_is_told_with_its_figures() -> None:
    plan = decide(LOST, [], FLEET, Policy())
    assert plan.rung is Rung.SHRINK
    assert "2 of 3 nodes go on" in plan.because
    assert "5.0 + 0.33 x 55.0 + 4.0 = 27.3 s" in plan.because
    waiting = next(one for one in plan.candidates if one.rung is Rung.REPLACE)
    assert waiting.cost_s == pytest.approx(65.0)


def test_a_node_that_comes_soon_is_waited_for_as_long_as_that_is_worth_it() -> None:
    fleet = replace(FLEET, node_wait=NodeWait(seconds=1.0, rests_on="the mean of 3 that came back"))
    plan = decide(LOST, [], fleet, Policy())
    assert (plan.rung, plan.patience_s) == (Rung.REPLACE, worth_shrinking_from_s(fleet.smaller))


def test_a_spare_that_is_ready_is_better_than_fewer_nodes() -> None:
    assert decide(LOST, [], replace(FLEET, spares=("n4",)), Policy()).take == ("n4",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"least": 3}, "the gang has one size"),
        ({"refused": {2: "batch_size is 9 for 2 ranks"}}, "does not run on 2 nodes: batch_size is 9"),
    ],
)
def test_where_it_cannot_be_smaller_that_is_said_and_nodes_are_waited_for(change: dict[str, object], says: str) -> None:
    plan = decide(LOST, [], replace(FLEET, **change), Policy())  # type: ignore[arg-type]
    assert (plan.rung, plan.patience_s) == (Rung.REPLACE, None)
    assert says in next(one.because for one in plan.candidates if one.rung is Rung.SHRINK)


def test_where_too_few_are_left_all_are_waited_for_no_longer_than_that_is_worth_once_they_are_enough() -> None:
    fleet = replace(FLEET, lost=("n1", "n2"))
    plan = decide(LOST, [], fleet, Policy())
    assert (plan.rung, plan.patience_s) == (Rung.REPLACE, worth_shrinking_from_s(fleet.smaller))
    assert fleet.smaller.kept == pytest.approx(2 / 3), "the gang that is formed then has the least that there may be"
    assert "until 2 are there" in plan.because
    assert "1 nodes are left, and 2 are the least" in next(one.because for one in plan.candidates if one.rung is Rung.SHRINK)
    assert decide(LOST, [], fleet, Policy(never=("shrink",))).patience_s is None


def test_a_policy_that_forbids_every_rung_ends_the_job_and_says_so() -> None:
    plan = decide(LOST, [], FLEET, Policy(never=tuple(RUNGS)))
    assert (plan.rung, plan.permanent) == (Rung.STOP, False)
    assert "shrink: the policy forbids it" in plan.because


def test_what_came_back_on_the_same_node_is_answered_by_the_next_rung_up_and_not_by_the_same_again() -> None:
    fleet = Fleet(gang=("n1", "n2"), spares=("n3",), lost=(), blamed="n2")
    tried = Attempt(cause=HANG.cause, fingerprint=HANG.fingerprint, step=5, progressed=True, rung=Rung.RESPAWN, node="n2", came_back=True)
    assert decide(HANG, [], fleet, Policy()).rung is Rung.RESPAWN
    assert decide(HANG, [replace(tried, came_back=False)], fleet, Policy()).rung is Rung.RESPAWN
    assert decide(HANG, [tried], replace(fleet, blamed="n1"), Policy()).rung is Rung.RESPAWN, "it was another node"
    plan = decide(HANG, [tried], fleet, Policy())
    assert (plan.rung, plan.drop, plan.take) == (Rung.REPLACE, ("n2",), ("n3",))
    assert decide(HANG, [tried], replace(fleet, spares=()), Policy()).rung is Rung.RESPAWN, "where nothing else is left it is tried again, within its budget"


def test_a_remedy_that_did_not_hold_is_believed_in_less() -> None:
    tried = Attempt(cause=HANG.cause, fingerprint="other", step=5, progressed=True, rung=Rung.RESPAWN, came_back=True)
    fleet = Fleet(gang=("n1",), spares=(), lost=())
    risks = [next(one.risk for one in decide(HANG, [tried] * count, fleet, Policy()).candidates if one.rung is Rung.RESPAWN) for count in range(4)]
    assert risks == sorted(set(risks))


@given(st.text(min_size=1, max_size=20), st.integers(0, 12))
def test_jitter_only_shortens_a_wait_and_is_the_same_each_time(job: str, faults: int) -> None:
    fault = Diagnosis(cause=Cause.VANISHED, permanent=False, confidence=0.9, because="it broke", fingerprint="a")
    history = [Attempt(cause=Cause.NETWORK, fingerprint="a", step=-1, progressed=False)] * faults
    fleet = Fleet(gang=("n1",), spares=(), lost=())
    plain, early = decide(fault, history, fleet, Policy()).wait_s, decide(fault, history, fleet, Policy(), job=job).wait_s
    assert 0.75 * plain <= early <= plain
    assert early == decide(fault, history, fleet, Policy(), job=job).wait_s


def test_costs_are_the_means_of_this_jobs_own_bills() -> None:
    assert (costs_of([]).measured, costs_of([], 2.5).restart_s) == (0, 2.5)
    closed = Incident(id=1, generation=1, opened_at=0.0, began_at=0.0, phase=IncidentPhase.RESOLVED, closed_at=9.0)
    bills = [{Bucket.STOP: 1.0, Bucket.RENDEZVOUS: 2.0, Bucket.WAIT: 50.0}, {Bucket.STOP: 2.0, Bucket.RESTORE: 1.0, Bucket.RECOMPUTE: 4.0}]
    found = costs_of([replace(closed, costs={str(bucket): seconds for bucket, seconds in bill.items()}) for bill in bills])
    assert (found.restart_s, found.again_s, found.measured) == (3.0, 2.0, 2)


def test_rejoins_and_restarts_are_told_apart_and_each_costs_what_it_did() -> None:
    closed = Incident(id=1, generation=1, opened_at=0.0, began_at=0.0, phase=IncidentPhase.RESOLVED, closed_at=9.0)
    rejoin = replace(closed, kept=True, costs={str(Bucket.STOP): 0.1, str(Bucket.RENDEZVOUS): 0.2})
    restart = replace(closed, costs={str(Bucket.STOP): 4.0, str(Bucket.RECOMPUTE): 6.0})
    only = costs_of([rejoin] * 30, 2.5)
    assert (only.restart_s, only.again_s, only.measured, only.rejoins) == (2.5, 0.0, 0, 20), "thirty rejoins say nothing of a restart"
    both = costs_of([rejoin, restart, rejoin])
    assert (both.restart_s, both.again_s, both.rejoin_s) == (4.0, 6.0, pytest.approx(0.3))
    fleet = Fleet(gang=("n1", "n2"), spares=(), lost=(), costs=both, can_rejoin="")
    assert (fleet.rejoin_s, replace(fleet, goes_back=True).rejoin_s) == (pytest.approx(0.3), pytest.approx(6.3))
    assert replace(fleet, costs=costs_of([restart])).rejoin_s == 2.0, "what is believed before one was seen"


def test_how_long_a_node_is_expected_to_take_is_what_others_took() -> None:
    assert node_wait([], otherwise_s=60.0).seconds == 60.0
    assert node_wait([2.0, 4.0], otherwise_s=60.0).seconds == 3.0
    assert node_wait([2.0, 4.0], otherwise_s=60.0, cleaning_s=5.0).seconds == 5.0
