"""Leave a slow node, or stay: by what it costs, and only where that is clear."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.domain.job import Budget, Policy
from holdfast.domain.plan import Plan, Rung
from holdfast.domain.state import Attempt
from holdfast.recover.candidates import Fleet
from holdfast.recover.costs import Costs
from holdfast.recover.slow import SLOW, Held, Stay, leave

HELD = Held(node="n2", share=0.9, stood_s=60.0, from_start=False, because="rank 1 takes ten times as long")
FLEET = Fleet(gang=("n1", "n2"), spares=("n3",), lost=(), costs=Costs(restart_s=20.0, again_s=500.0))


def _plan(held: Held = HELD, fleet: Fleet = FLEET, policy: Policy | None = None) -> Plan:
    plan = leave(held, fleet, policy or Policy())
    assert isinstance(plan, Plan), plan
    return plan


def _stays(held: Held = HELD, fleet: Fleet = FLEET, policy: Policy | None = None) -> Stay:
    said = leave(held, fleet, policy or Policy())
    assert isinstance(said, Stay), said
    return said


def test_a_spare_takes_the_place_of_a_node_that_costs_more_than_a_restart() -> None:
    plan = _plan()
    assert (plan.rung, plan.drop, plan.take) == (Rung.REPLACE, ("n2",), ("n3",))
    assert "staying is expected to cost 54 s more, and this 20 s" in plan.because


def test_what_is_not_worth_a_restart_yet_is_asked_again_when_it_is() -> None:
    held = replace(HELD, share=0.3)
    again_s = _stays(held).again_s
    assert again_s is not None
    _plan(replace(held, stood_s=held.stood_s + again_s))


def test_survivors_make_it_worth_it_sooner() -> None:
    held = replace(HELD, share=0.3, stood_s=30.0)
    assert _stays(held).again_s is not None
    assert _plan(held, replace(FLEET, can_rejoin="")).rung is Rung.REPLACE


def test_a_little_slower_is_left_alone_for_ever() -> None:
    assert _stays(replace(HELD, share=0.15, stood_s=1e6)).again_s is None


def test_what_was_slow_from_the_start_may_be_meant_and_must_cost_half_of_all() -> None:
    held = replace(HELD, share=0.4, stood_s=1e4, from_start=True)
    assert _stays(held).again_s is None
    assert _plan(replace(held, share=0.6)).rung is Rung.REPLACE
    assert _plan(replace(held, from_start=False)).rung is Rung.REPLACE


@pytest.mark.parametrize("spares", [(), ("n3",)], ids=["no spare", "one that is avoided"])
def test_without_a_spare_that_nothing_is_held_against_a_gang_of_one_size_stays(spares: tuple[str, ...]) -> None:
    assert "no spare is there" in _stays(fleet=replace(FLEET, spares=spares, avoided=spares)).because


def test_a_gang_that_may_be_smaller_goes_on_without_the_node_where_that_is_faster() -> None:
    four = replace(FLEET, gang=("n1", "n2", "n3", "n4"), spares=(), asked=4, least=2)
    assert (plan := _plan(replace(HELD, stood_s=120.0), four)).rung is Rung.SHRINK
    assert (plan.drop, plan.take) == (("n2",), ())
    assert "hardly faster" in _stays(replace(HELD, share=0.4, stood_s=1e4), four).because
    assert "are the least" in _stays(fleet=replace(four, least=4)).because
    assert "does not run on 3 nodes" in _stays(fleet=replace(four, refused={3: "it said so"})).because


def test_what_the_policy_forbids_is_not_done() -> None:
    assert "--never" in _stays(policy=Policy(never=("replace",))).because


def test_a_gang_is_not_called_smaller_that_would_take_a_spare_in_all_the_same() -> None:
    four = replace(FLEET, gang=("n1", "n2", "n3", "n4"), spares=("n5",), asked=4, least=2)
    because = _stays(replace(HELD, stood_s=120.0), four, Policy(never=("replace",))).because
    assert "replace: the policy forbids it (--never); shrink: n5 is there" in because


def test_budgets_count_what_was_done_before() -> None:
    policy = Policy(budgets=(Budget(count=1, within_s=3600.0, rung="replace"),))
    before = Attempt(cause=SLOW, fingerprint="", step=-1, progressed=True, rung=3, at=9.0)
    assert isinstance(leave(HELD, FLEET, policy, [before], at=100.0), Stay)
    assert isinstance(leave(HELD, FLEET, policy, [before], at=5000.0), Plan)


def test_where_a_replica_is_two_nodes_both_would_be_lost() -> None:
    four = replace(FLEET, gang=("n1", "n2", "n3", "n4"), spares=(), asked=4, least=2, block=2)
    assert (plan := _plan(replace(HELD, stood_s=300.0), four)).rung is Rung.SHRINK
    assert "2 of 4 nodes go on" in plan.because
    assert "hardly faster" in _stays(replace(HELD, share=0.6, stood_s=1e4), four).because
