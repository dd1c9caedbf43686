"""Copies: always in another domain, one owner a holder, nothing moved without need, as many owners served as can be."""

from __future__ import annotations

import time
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.held import Held
from holdfast.recover.copies import Assignment, Common, assign, newest_common, sources

NAMES = [f"n{index}" for index in range(7)]
FLEETS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(("a", "b", "c")), min_size=1, max_size=6)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Owners, nodes and what was before: right, wrong, of nodes that are gone, one holder named twice."""
    nodes = draw(FLEETS)
    owners = draw(st.lists(st.sampled_from(sorted(nodes)), unique=True))
    before = draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NAMES)))
    return owners, nodes, before


def best(owners: list[str], nodes: dict[str, str], before: dict[str, str]) -> tuple[int, int]:
    """By trying everything: the most owners that can have a holder, and of those ways the most holders that stay."""
    reached: dict[frozenset[str], tuple[int, int]] = {frozenset(): (0, 0)}
    for owner in owners:
        further = dict(reached)
        for taken, (served, stayed) in reached.items():
            for node in nodes:
                if node not in taken and nodes[node] != nodes[owner]:
                    now = (served + 1, stayed + (before.get(owner) == node))
                    further[taken | {node}] = max(now, further.get(taken | {node}, (0, 0)))
        reached = further
    return max(reached.values())


@given(cases())
def test_a_holder_is_alive_in_another_domain_and_holds_for_one_owner(case: tuple[list[str], dict[str, str], dict[str, str]]) -> None:
    owners, nodes, before = case
    made = assign(owners, nodes, before)
    assert all(nodes[holder] != nodes[owner] for owner, holder in made.holders.items())
    assert len(set(made.holders.values())) == len(made.holders)
    assert set(made.holders) | set(made.without) == set(owners)
    assert not set(made.holders) & set(made.without)
    assert all(made.without.values())


@settings(max_examples=400, deadline=None)
@given(cases())
def test_no_other_way_serves_more_owners_or_moves_fewer_copies(case: tuple[list[str], dict[str, str], dict[str, str]]) -> None:
    owners, nodes, before = case
    made = assign(owners, nodes, before)
    assert (len(made.holders), sum(before.get(owner) == holder for owner, holder in made.holders.items())) == best(owners, nodes, before)


@given(cases(), st.randoms(use_true_random=False))
def test_nothing_changes_when_it_is_asked_again_in_whatever_order(case: tuple[list[str], dict[str, str], dict[str, str]], shuffler: Random) -> None:
    owners, nodes, before = case
    made = assign(owners, nodes, before)
    assert assign(owners, nodes, made.holders) == made
    other = list(nodes.items())
    shuffler.shuffle(other)
    assert assign(owners, dict(other), before) == made


def test_a_holder_is_moved_only_for_an_owner_that_would_have_none() -> None:
    nodes = {"a1": "a", "a2": "a", "b1": "b"}
    assert assign(["b1"], nodes, {"b1": "a1"}).holders == {"b1": "a1"}
    assert assign(["a1", "b1"], nodes, {"b1": "a2"}).holders == {"a1": "b1", "b1": "a2"}
    four = {"a1": "a", "b1": "b", "c1": "c", "a2": "a"}
    assert assign(["c1", "a1"], four, {"c1": "b1"}).holders == {"c1": "b1", "a1": "c1"}  # There was room.
    assert assign(["c1", "a1", "a2"], four, {"c1": "b1"}).holders == {"c1": "a1", "a1": "c1", "a2": "b1"}  # There was none.


def test_copies_of_one_domain_are_spread_over_all_others() -> None:
    nodes = {f"{rack}{index}": rack for rack in "abcd" for index in range(3)}
    made = assign(sorted(nodes), nodes, {})
    pairs = Counter((nodes[owner], nodes[holder]) for owner, holder in made.holders.items())
    assert set(pairs.values()) == {1}
    assert len(pairs) == 12


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({"a1": "rack-1", "a2": "rack-1"}, "all 2 nodes are in domain rack-1; give nodes of another domain"),
        ({"a1": "rack-1"}, "all 1 nodes are in domain rack-1; give nodes of another domain"),
        (
            {"a0": "rack-1", "a1": "rack-1", "b1": "rack-2"},
            "every node of another domain than rack-1 (1 of 3) holds a copy already; give more nodes of another domain",
        ),
        ({"b1": "rack-2"}, "a1 is gone, and no copy of its state is known"),
    ],
)
def test_an_owner_without_a_holder_is_told_why(nodes: dict[str, str], said: str) -> None:
    assert assign(sorted({"a1", *nodes}), nodes, {}).without["a1"] == said


def test_the_copy_of_an_owner_that_is_gone_is_given_to_nobody_else() -> None:
    assert assign(["a1", "b1"], {"a1": "a", "c1": "c"}, {"b1": "c1"}) == Assignment(
        holders={"b1": "c1"}, without={"a1": "every node of another domain than a (1 of 2) holds a copy already; give more nodes of another domain"}
    )


@pytest.mark.parametrize("domains", [1000, 32, 3, 2])
def test_a_thousand_nodes_take_less_than_a_second(domains: int) -> None:
    nodes = {f"n{index:04}": f"d{index % domains:04}" for index in range(1000)}
    begin = time.process_time()  # Measured: 0.1 s in the worst case, a domain for each node.
    made = assign(sorted(nodes), nodes, {})
    assert time.process_time() - begin < 1.0
    assert len(made.holders) == 1000


def test_a_thousand_nodes_with_half_of_them_in_one_domain_are_all_served() -> None:
    nodes = {f"n{index:04}": "big" if index % 2 else f"d{index:04}" for index in range(1000)}
    small = [node for node in nodes if nodes[node] != "big"]
    ring = dict(zip(small, small[1:] + small[:1], strict=True))  # What was before is in the way of every owner in the big one.
    begin = time.process_time()
    assert len(assign(sorted(nodes), nodes, ring).holders) == 1000
    assert time.process_time() - begin < 1.0


def of(step: int, *ranks: int, world: int = 4, generation: int = 1) -> list[Held]:
    return [Held(generation=generation, step=step, rank=rank, world_size=world) for rank in ranks]


def test_the_newest_common_state_is_one_of_which_every_rank_is_there() -> None:
    held = {"n1": [*of(10, 0, 1), *of(20, 0, 1)], "n2": [*of(10, 2, 3), *of(20, 2)]}
    assert newest_common(held) == Common(generation=1, step=10, world_size=4)
    assert newest_common({**held, "n3": of(20, 3)}) == Common(generation=1, step=20, world_size=4)


def test_there_is_no_common_state_when_a_rank_is_missing() -> None:
    assert newest_common({}) is None
    assert newest_common({"n1": []}) is None
    assert newest_common({"n1": of(10, 0, 1), "n2": of(10, 2)}) is None
    assert newest_common({"n1": of(10, 0, 1, 2, 4)}) is None  # Rank 4 of 4 is none.


def test_a_later_generation_is_newer_even_at_an_earlier_step() -> None:
    held = {"n1": [*of(90, 0, 1, 2, 3), *of(40, 0, 1, world=2, generation=2)]}
    assert newest_common(held) == Common(generation=2, step=40, world_size=2)


def test_ranks_of_two_generations_or_of_two_sizes_do_not_make_one_state() -> None:
    assert newest_common({"n1": of(10, 0, 1), "n2": of(10, 2, 3, generation=2)}) is None
    assert newest_common({"n1": of(10, 0, 1), "n2": of(10, 2, 3, world=5)}) is None


HELD = st.builds(Held, generation=st.integers(0, 2), step=st.integers(0, 2), rank=st.integers(0, 2), world_size=st.integers(1, 3))


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(HELD, max_size=12)))
def test_the_newest_common_state_is_whole_and_no_newer_one_is(held: dict[str, list[Held]]) -> None:
    have = {(one.generation, one.step, one.world_size, one.rank) for kept in held.values() for one in kept}
    whole = [key for key in {key[:3] for key in have} if all((*key, rank) in have for rank in range(key[2]))]
    newest = newest_common(held)
    assert (newest and (newest.generation, newest.step, newest.world_size)) == max(whole, default=None)


NEWEST = Common(generation=1, step=10, world_size=4)


def test_a_node_that_holds_a_rank_gets_it_from_itself() -> None:
    held = {"n1": of(10, 0, 1, 2, 3), "n2": of(10, 2, 3)}
    assert sources(held, NEWEST, {0: "n1", 1: "n1", 2: "n2", 3: "n2"}) == {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


def test_what_must_be_fetched_is_spread_over_its_holders() -> None:
    held = {"n1": of(10, 0, 1, 2, 3), "n2": of(10, 0, 1, 2, 3), "n3": of(9, 0, 1, 2, 3)}
    found = sources(held, NEWEST, dict.fromkeys(range(4), "n3"))
    assert Counter(found.values()) == {"n1": 2, "n2": 2}


def test_a_holder_that_alone_has_a_rank_is_spared_the_others() -> None:
    held = {"n1": of(10, 0, 1, 2, 3), "n2": of(10, 0)}
    assert sources(held, NEWEST, dict.fromkeys(range(4), "n3")) == {0: "n2", 1: "n1", 2: "n1", 3: "n1"}


def test_a_rank_that_nobody_will_run_has_a_source_too() -> None:
    assert sources({"n1": of(10, 0, 1, 2, 3)}, NEWEST, {0: "n2", 1: "n2"}) == dict.fromkeys(range(4), "n1")
