"""Pairs of nodes, tested in two rounds: who is at fault is named where that is possible, and nobody is named who is not."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.pairing import Judged, Pair, first_round, judge, second_round


def passed(pairs: Sequence[Pair], bad: set[str]) -> dict[Pair, bool]:
    return {pair: not bad & set(pair) for pair in pairs}


def after_two_rounds(nodes: Sequence[str], bad: set[str]) -> Judged:
    results = passed(first_round(nodes), bad)
    results |= passed(second_round(nodes, results), bad)
    return judge(nodes, results)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[str], set[str]]:
    nodes = [f"node-{number}" for number in range(draw(st.integers(2, 40)))]
    nodes = draw(st.permutations(nodes))
    return nodes, set(draw(st.lists(st.sampled_from(nodes), unique=True, max_size=len(nodes))))


@given(fleets())
def test_nobody_is_called_bad_who_is_good_nor_good_who_is_bad(fleet: tuple[list[str], set[str]]) -> None:
    nodes, bad = fleet
    judged = after_two_rounds(nodes, bad)
    assert set(judged.bad) <= bad
    assert not set(judged.good) & bad
    assert sorted((*judged.bad, *judged.good, *judged.unclear)) == sorted(nodes)
    assert not judged.links


@given(fleets())
def test_everybody_is_judged_when_any_pair_of_the_first_round_passed(fleet: tuple[list[str], set[str]]) -> None:
    nodes, bad = fleet
    if any(passed(first_round(nodes), bad).values()):
        judged = after_two_rounds(nodes, bad)
        assert set(judged.bad) == bad
        assert not judged.unclear


@given(st.integers(3, 40), st.data())
def test_one_bad_node_of_three_or_more_is_always_named(count: int, data: st.DataObject) -> None:
    nodes = [f"node-{number}" for number in range(count)]
    bad = data.draw(st.sampled_from(nodes))
    assert after_two_rounds(nodes, {bad}).bad == (bad,)


@given(st.integers(6, 40), st.data())
def test_two_bad_nodes_of_six_or_more_are_always_named(count: int, data: st.DataObject) -> None:
    nodes = [f"node-{number}" for number in range(count)]
    bad = data.draw(st.lists(st.sampled_from(nodes), unique=True, min_size=2, max_size=2))
    assert set(after_two_rounds(nodes, set(bad)).bad) == set(bad)


@given(fleets())
def test_in_the_second_round_nobody_is_tested_with_itself_or_a_stranger(fleet: tuple[list[str], set[str]]) -> None:
    nodes, bad = fleet
    for a, b in second_round(nodes, passed(first_round(nodes), bad)):
        assert a != b
        assert {a, b} <= set(nodes)


def test_of_two_nodes_neither_is_named_and_that_is_said() -> None:
    judged = after_two_rounds(["a", "b"], {"a"})
    assert judged.bad == ()
    assert judged.unclear == ("a", "b")
    assert "known to be good" in judged.because[0]


def test_two_good_nodes_that_only_fail_together_have_a_bad_link() -> None:
    judged = judge(["a", "b", "c", "d"], {("a", "b"): False, ("c", "d"): True, ("a", "c"): True, ("b", "d"): True})
    assert judged.links == (("a", "b"),)
    assert judged.because == ("the link between a and b is bad: both pass with others",)
