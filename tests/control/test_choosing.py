"""Whom to profile: the slow ones, and a healthy one beside them, elsewhere where there is an elsewhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.choosing import SLOW_MAX, Chosen, choose
from holdfast.domain.effect import ChooseRanks
from holdfast.domain.finding import Finding

NODES = ["n0", "n0", "n1", "n1"]
OWN_S = {0: 0.010, 1: 0.011, 2: 0.012, 3: 0.041}


def ask(*ranks: int, exactly: bool = False, every: bool = False) -> ChooseRanks:
    return ChooseRanks(id="e1", generation=1, because="", ranks=ranks, exactly=exactly, all=every)


def slow(rank: int) -> Finding:
    return Finding(kind="slow_rank", because="", ranks=(rank,))


def test_where_nothing_was_found_the_one_with_most_work_is_looked_at_and_not_called_slow() -> None:
    assert choose(ask(), [], OWN_S, NODES) == Chosen(slow=(), beside=(1, 3))


def test_the_slow_one_is_taken_and_beside_it_the_one_nearest_to_the_median_on_another_node() -> None:
    assert choose(ask(), [slow(3)], OWN_S, NODES) == Chosen(slow=(3,), beside=(1,))


def test_whom_a_finding_names_is_slow_whatever_the_last_second_says() -> None:
    assert choose(ask(), [slow(0), Finding(kind="log_flood", because="", ranks=(2,))], OWN_S, NODES) == Chosen(slow=(0,), beside=(2,))
    assert choose(ask(2), [], OWN_S, NODES) == Chosen(slow=(2,), beside=(1,))


def test_on_one_node_the_healthy_one_is_a_neighbour_and_of_one_rank_there_is_none() -> None:
    assert choose(ask(), [slow(1)], {0: 0.01, 1: 0.05}, ["n0", "n0"]) == Chosen(slow=(1,), beside=(0,))
    assert choose(ask(), [], {0: 0.01}, ["n0"]) == Chosen(slow=(), beside=(0,))


def test_before_all_are_measured_nobody_is_called_slow_whom_nobody_named() -> None:
    assert choose(ask(), [], {0: 0.01}, ["n0", "n0"]) is None
    assert choose(ask(), [slow(1)], {}, ["n0", "n0"]) == Chosen(slow=(1,), beside=(0,))


def test_named_ranks_are_taken_as_they_are_and_all_are_all() -> None:
    assert choose(ask(0, 3, exactly=True), [slow(1)], OWN_S, NODES) == Chosen(slow=(0, 3))
    assert choose(ask(every=True), [], OWN_S, NODES) == Chosen(slow=(), beside=(0, 1, 2, 3))


@given(st.dictionaries(st.integers(0, 12), st.floats(0.0, 9.0)), st.lists(st.integers(0, 20)), st.integers(1, 12))
def test_nobody_is_chosen_who_is_not_there_and_nobody_twice(own_s: dict[int, float], found: list[int], ranks: int) -> None:
    chosen = choose(ask(), [slow(rank) for rank in found], own_s, [f"n{rank // 3}" for rank in range(ranks)])
    if chosen is None:
        assert not set(found) & set(range(ranks))
        assert not set(range(ranks)) <= own_s.keys()
        return
    everybody = (*chosen.slow, *chosen.beside)
    assert len(set(everybody)) == len(everybody)
    assert all(0 <= rank < ranks for rank in everybody)
    assert len(chosen.slow) <= SLOW_MAX
    assert bool(chosen.slow) == bool(set(found) & set(range(ranks))), "nobody is slow whom nobody named"
    assert len(everybody) == min(ranks, max(1, len(chosen.slow)) + 1)
