"""Copies: always in another domain, one owner a holder, nothing moved without need, as many owners served as can be; and no domain's loss loses anything."""

from __future__ import annotations

import time
from collections import Counter
from random import Random
from typing import Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.held import Held
from holdfast.recover.copies import Assignment, Common, Missing, Order, assign, missing, newest_common, sources

NAMES = [f"n{index}" for index in range(7)]
FLEETS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(("a", "b", "c")), min_size=1, max_size=6)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Owners, nodes and what was before: right, wrong, of nodes that are gone, one holder named twice."""
    nodes = draw(FLEETS)
    owners = draw(st.lists(st.sampled_from(sorted(nodes)), unique=True))
    before = draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NAMES)))
    return owners, nodes, before


def once(before: dict[str, str]) -> dict[str, str]:
    """Each holder for one owner."""
    return {owner: holder for holder, owner in {holder: owner for owner, holder in before.items()}.items()}


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


@given(cases(), st.sets(st.sampled_from(NAMES)))
def test_where_not_all_can_have_a_holder_those_who_come_first_do(case: tuple[list[str], dict[str, str], dict[str, str]], first: set[str]) -> None:
    owners, nodes, before = case
    made, plain = assign(owners, nodes, before, first), assign(owners, nodes, before)
    assert len(made.holders) == len(plain.holders), "nobody is served less for it"
    assert len(set(made.holders) & first) == best([owner for owner in owners if owner in first], nodes, {})[0]
    assert all(nodes[holder] != nodes[owner] for owner, holder in made.holders.items())
    assert len(set(made.holders.values())) == len(made.holders)


@settings(max_examples=400, deadline=None)
@given(cases())
def test_no_other_way_serves_more_owners_or_moves_fewer_copies(case: tuple[list[str], dict[str, str], dict[str, str]]) -> None:
    owners, nodes, before = case[0], case[1], once(case[2])
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


# What is missing after a loss.


How = Literal["not yet", "by the next spare", "by a spare of another domain than the copy"]


class Cluster:
    """A gang whose state of step 10 is in its own memory and, as a copy, where `assign` said."""

    def __init__(self, gang: dict[str, str], spares: dict[str, str], ranks_per_node: int) -> None:
        self.gang, self.nodes, self.ranks_per_node = sorted(gang), gang | spares, ranks_per_node
        self.assignment = assign(self.gang, self.nodes, {})
        self.held: dict[str, set[Held]] = {node: set() for node in self.nodes}
        for place, owner in enumerate(self.gang):
            for node in (owner, self.assignment.holders.get(owner)):
                if node:
                    self.held[node] |= set(self.ranks_of(place))

    def ranks_of(self, place: int) -> list[Held]:
        return of(10, *range(place * self.ranks_per_node, (place + 1) * self.ranks_per_node), world=len(self.gang) * self.ranks_per_node)

    def lose(self, lost: str) -> None:
        self.nodes = {node: domain for node, domain in self.nodes.items() if domain != lost}
        self.held = {node: self.held[node] for node in self.nodes}

    def assign_again(self, how: How) -> None:
        """Spares take the places of those that are gone, as far as they go, and with them the copies; or those places stay empty for now."""
        spares = sorted(self.nodes.keys() - set(self.gang)) if how != "not yet" else []
        before = dict(self.assignment.holders)
        for place, node in enumerate(self.gang):
            if node not in self.nodes and spares:
                copy_in = self.nodes[before[node]] if how == "by a spare of another domain than the copy" else ""
                self.gang[place] = min(spares, key=lambda spare: (self.nodes[spare] == copy_in, spare))
                spares.remove(self.gang[place])
                before[self.gang[place]] = before.pop(node)
        self.assignment = assign(self.gang, self.nodes, before)

    def copy(self) -> Missing:
        told = missing(self.gang, self.ranks_per_node, self.nodes, self.assignment.holders, self.held)
        world = len(self.gang) * self.ranks_per_node
        for order in told.orders:
            self.held[order.to] |= set(of(10, order.rank, world=world))
        return told

    def whole(self) -> bool:
        newest = newest_common(self.held)
        return newest is not None and newest.step == 10

    def domains_of(self, rank: int) -> set[str]:
        return {self.nodes[node] for node, kept in self.held.items() if any(one.rank == rank for one in kept)}

    def burden(self) -> int:
        """The most owners that any one node holds for."""
        whose = {node: {one.rank // self.ranks_per_node for one in kept} for node, kept in self.held.items()}
        return max(len(places - {self.gang.index(node)} if node in self.gang else places) for node, places in whose.items())


def fleet(sizes: tuple[int, ...], spares: int, ranks_per_node: int) -> Cluster:
    gang = {f"{domain}{index}": domain for domain, size in zip("abcdefgh", sizes, strict=False) for index in range(size)}
    return Cluster(gang, {f"{domain}-spare{index}": domain for domain in set(gang.values()) for index in range(spares)}, ranks_per_node)


@pytest.mark.parametrize("replaced", get_args(How))
@pytest.mark.parametrize("ranks_per_node", [1, 8])
@pytest.mark.parametrize("spares", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (4, 2, 1, 1), (3, 3, 2), (1,) * 8, (4, 4, 1), (5, 3, 2)])
def test_any_domain_may_be_lost_and_after_the_copies_are_made_again_any_second_one(
    sizes: tuple[int, ...], spares: int, ranks_per_node: int, replaced: How
) -> None:
    domains = "abcdefgh"[: len(sizes)]
    for first in domains:
        cluster = fleet(sizes, spares, ranks_per_node)
        assert not cluster.assignment.without
        cluster.lose(first)
        assert cluster.whole()
        cluster.assign_again(replaced)
        assert not cluster.copy().without
        assert all(len(cluster.domains_of(rank)) >= 2 for rank in range(len(cluster.gang) * ranks_per_node))
        assert cluster.copy() == Missing(orders=(), without={})
        rest, held = cluster.nodes, cluster.held
        for second in domains.replace(first, ""):
            cluster.nodes, cluster.held = rest, held
            cluster.lose(second)
            assert cluster.whole(), (first, second)


@pytest.mark.parametrize("ranks_per_node", [1, 8])
@pytest.mark.parametrize(("spares", "replaced"), [(1, "by a spare of another domain than the copy"), (2, "by the next spare")])
def test_with_enough_spares_no_node_comes_to_hold_for_two(spares: int, replaced: How, ranks_per_node: int) -> None:
    for first in "abcd":
        cluster = fleet((2, 2, 2, 2), spares, ranks_per_node)
        cluster.lose(first)
        cluster.assign_again(replaced)
        assert not cluster.assignment.without
        cluster.copy()
        assert cluster.burden() == 1


def test_only_what_was_lost_is_copied() -> None:
    cluster = fleet((2, 2, 2, 2), 1, 8)
    held_by = {holder: owner for owner, holder in cluster.assignment.holders.items()}
    lost = 2 + len({"a0", "a1", "a-spare0"} & held_by.keys())  # Two owners, and the copies that were there.
    cluster.lose("a")
    cluster.assign_again("by the next spare")
    assert len(cluster.copy().orders) == lost * 8


def test_the_copy_of_a_node_that_is_gone_is_copied_from_its_holder() -> None:
    told = missing(["a1", "c1"], 1, {"a1": "a", "b1": "b", "d1": "d"}, {"a1": "d1", "c1": "b1"}, {"a1": of(10, 0, world=2), "b1": of(10, 1, world=2)})
    assert told.orders == (Order(rank=0, source="a1", to="d1"), Order(rank=1, source="b1", to="a1"))


def test_a_node_with_room_is_taken_before_one_that_holds_already() -> None:
    nodes = {"a1": "a", "b1": "b", "d1": "d", "d2": "d"}
    told = missing(["a1", "c1"], 1, nodes, {"a1": "d1", "c1": "b1"}, {"a1": of(10, 0, world=2), "b1": of(10, 1, world=2), "d1": of(10, 0, world=2)})
    assert told.orders == (Order(rank=1, source="b1", to="d2"),)


def test_a_copy_that_was_begun_is_finished_where_it_was_begun() -> None:
    nodes = {"a1": "a", "b1": "b", "c1": "c", "d1": "d"}
    held = {"b1": of(10, 0, 1, 2), "d1": of(10, 1)}  # The owner of all three is gone; c1 would come first by name.
    held = {node: [Held(generation=1, step=10, rank=one.rank, world_size=3) for one in kept] for node, kept in held.items()}
    assert [(order.rank, order.to) for order in missing(["gone"], 3, nodes, {"gone": "b1"}, held).orders] == [(0, "d1"), (2, "d1")]


def test_a_holder_that_still_has_what_it_held_for_another_is_passed_over_while_there_is_room() -> None:
    nodes = {"a1": "a", "b1": "b", "c1": "c"}
    held = {"a1": of(10, 0, world=3), "b1": of(10, 1, 2, world=3), "c1": of(10, 1, 2, world=3)}  # b1 held for c1 and is to hold for a1.
    for more, to in (({"d1": "d"}, "d1"), ({"a2": "a"}, "b1"), ({}, "b1")):
        assert missing(["a1", "b1", "c1"], 1, nodes | more, {"a1": "b1", "b1": "c1"}, held).orders == (Order(rank=0, source="a1", to=to),)


@given(st.data(), FLEETS, st.integers(1, 3))
def test_what_is_ordered_can_be_done_is_enough_and_is_not_ordered_twice(data: st.DataObject, nodes: dict[str, str], ranks_per_node: int) -> None:
    gang = data.draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=4))  # Some are gone.
    world = len(gang) * ranks_per_node
    where = {rank: data.draw(st.sets(st.sampled_from(sorted(nodes)), min_size=1)) for rank in range(world)}
    before = data.draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NAMES)))
    held = {node: of(10, *(rank for rank in where if node in where[rank]), world=world) for node in nodes}
    told = missing(gang, ranks_per_node, nodes, assign(gang, nodes, before).holders, held)
    for order in told.orders:
        assert order.source in where[order.rank]
        assert order.to not in where[order.rank]
    after = {node: [*held[node], *of(10, *(order.rank for order in told.orders if order.to == node), world=world)] for node in nodes}
    for rank in range(world):
        assert (len({nodes[node] for node, kept in after.items() if any(one.rank == rank for one in kept)}) >= 2) != (rank in told.without)
    assert missing(gang, ranks_per_node, nodes, assign(gang, nodes, before).holders, after) == Missing(orders=(), without=told.without)


def test_older_states_and_nodes_that_are_gone_are_no_copies() -> None:
    nodes = {"a1": "a", "b1": "b"}
    held = {"a1": of(10, 0, world=1), "b1": of(9, 0, world=1), "c1": of(10, 0, world=1)}
    assert missing(["a1"], 1, nodes, {"a1": "b1"}, held).orders == (Order(rank=0, source="a1", to="b1"),)


def test_nothing_is_ordered_when_there_is_no_common_state() -> None:
    assert missing(["a1"], 1, {"a1": "a"}, {}, {"a1": []}) == Missing(orders=(), without={})


def test_a_rank_that_cannot_be_in_two_domains_is_told_why() -> None:
    told = missing(["a1", "a2"], 1, {"a1": "rack-1", "a2": "rack-1"}, {}, {"a1": of(10, 0, world=2), "a2": of(10, 1, world=2)})
    assert told == Missing(orders=(), without=dict.fromkeys((0, 1), "all 2 nodes are in domain rack-1; give nodes of another domain"))


def test_a_thousand_nodes_of_eight_ranks_that_lose_a_domain_take_less_than_a_second() -> None:
    cluster = Cluster({f"n{index:04}": f"d{index % 32:02}" for index in range(960)}, {f"s{index:04}": f"d{index % 32:02}" for index in range(40)}, 8)
    cluster.lose("d07")
    cluster.assign_again("by the next spare")
    begin = time.process_time()
    told = missing(cluster.gang, 8, cluster.nodes, cluster.assignment.holders, cluster.held)
    assert time.process_time() - begin < 1.0  # Measured: 0.06 s.
    assert not told.without
    asked = Counter(order.source for order in told.orders)
    assert max(asked.values()) <= 16
