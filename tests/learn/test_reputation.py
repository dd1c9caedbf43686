"""Reputation: rates that never go below nothing, a list that depends on what happened and on nothing else, and lemons that are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learn.given import FAULTS, NOW, SERVICE

from holdfast.learn.decay import DAY_S, HALF_LIFE_S, decayed_s, weight
from holdfast.learn.reputation import Fault, Rules, Service, reputations

WEEK = [Service(node=f"n{number}", since=NOW - 7 * DAY_S, until=NOW) for number in range(200)]


@given(st.floats(0.0, 1e9), st.floats(0.0, 1e9), st.floats(1.0, 1e8))
def test_a_weight_is_never_negative_and_never_above_one(at: float, now: float, half_life_s: float) -> None:
    assert 0.0 <= weight(at, now, half_life_s) <= 1.0


@given(st.floats(0.0, 1e8), st.floats(0.0, 1e7), st.floats(0.0, 2e8))
def test_decayed_time_is_never_negative_and_never_longer_than_the_time(since: float, long: float, now: float) -> None:
    assert -1e-6 <= decayed_s(since, since + long, now) <= long * (1 + 1e-9) + 1e-6


def test_half_is_forgotten_in_a_half_life() -> None:
    assert weight(NOW - HALF_LIFE_S, NOW) == pytest.approx(0.5)
    day = decayed_s(NOW - HALF_LIFE_S - 1.0, NOW - HALF_LIFE_S, NOW)
    assert day == pytest.approx(0.5, rel=1e-5)


@given(FAULTS, SERVICE)
def test_every_rate_is_positive_and_inside_its_limits(faults: list[Fault], service: list[Service]) -> None:
    thought = reputations(faults, service, NOW)
    for one in thought.nodes:
        assert 0.0 < one.all.low <= one.all.high
        assert one.all.times > 0.0
        assert 0.0 <= one.chance <= 1.0
    assert thought.expected_false >= 0.0


@given(FAULTS, SERVICE, st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_told_does_not_matter(faults: list[Fault], service: list[Service], dice: object) -> None:
    shuffled_faults, shuffled_service = list(faults), list(service)
    dice.shuffle(shuffled_faults)  # type: ignore[attr-defined]
    dice.shuffle(shuffled_service)  # type: ignore[attr-defined]
    assert reputations(faults, service, NOW) == reputations(shuffled_faults, shuffled_service, NOW)


def test_a_node_that_fails_far_more_often_than_others_is_on_the_list_with_its_reason() -> None:
    faults = [Fault(node="n7", cause="hang", at=NOW - day * DAY_S) for day in range(1, 6)]
    faults += [Fault(node=f"n{10 + number}", cause="crash", at=NOW - number * 0.5 * DAY_S) for number in range(10)]
    thought = reputations(faults, WEEK, NOW)
    assert [one.node for one in thought.lemons] == ["n7"]
    lemon = thought.nodes[0]
    assert "n7 failed 5 times, mostly hang" in lemon.because
    assert dict(lemon.causes)["hang"].times > 3.0
    assert thought.expected_false < 0.005 * len(WEEK)


def test_nobody_is_a_lemon_for_failing_once() -> None:
    assert not reputations([Fault(node="n1", cause="hang", at=NOW)], WEEK, NOW).lemons


def test_among_a_few_nodes_nobody_is_worse_than_the_others() -> None:
    faults = [Fault(node="n1", cause="hang", at=NOW - day * DAY_S) for day in range(6)]
    assert not reputations(faults, WEEK[:3], NOW).lemons
    assert reputations(faults, WEEK[:4], NOW).lemons


def test_where_everybody_fails_often_nobody_is_a_lemon() -> None:
    faults = [Fault(node=f"n{number}", cause="hang", at=NOW - day * DAY_S) for number in range(200) for day in range(1, 7)]
    assert not reputations(faults, WEEK, NOW).lemons


def test_a_fault_that_comes_again_within_minutes_is_one_fault() -> None:
    faults = [Fault(node="n1", cause="hang", at=NOW - DAY_S + 60.0 * number) for number in range(8)]
    assert reputations(faults, WEEK, NOW).nodes[0].seen == 1


def test_what_many_nodes_meet_at_once_is_shared_out() -> None:
    faults = [Fault(node=f"n{number}", cause="node_lost", at=NOW - day * DAY_S) for number in range(20) for day in (1, 2, 3)]
    thought = reputations(faults, WEEK, NOW)
    assert not thought.lemons
    assert max(one.all.faults for one in thought.nodes) == pytest.approx(3 / 20, rel=0.2)


def test_a_clock_that_was_set_back_makes_nothing_negative() -> None:
    faults = [Fault(node="n1", cause="hang", at=NOW + day * DAY_S) for day in range(1, 5)]
    thought = reputations(faults, [*WEEK, Service(node="n1", since=NOW, until=NOW + 5 * DAY_S)], NOW)
    assert thought.nodes[0].all.faults == pytest.approx(4.0)


def test_what_a_node_did_long_ago_is_forgotten() -> None:
    then = NOW - 20 * HALF_LIFE_S
    faults = [Fault(node="n1", cause="hang", at=then + day * DAY_S) for day in range(10)]
    assert not reputations(faults, WEEK, NOW, Rules()).lemons
