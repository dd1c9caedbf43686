"""Copies: who holds a copy of whose snapshot, so that the loss of any one failure domain loses nothing.

A node is in a domain: what fails together (a rack, a switch, a power feed). Every owner, a node of the gang, has the state of its ranks in its own
memory; its holder, a node of another domain, has a copy. A node holds for at most one owner, since the copy takes as much memory as the owner's own state.
Where the mesh of the job is known and not all owners can have a holder, those come first whose state nobody in another domain holds.
Wrong when the domains told are not what fails together: two racks behind one switch that are called two domains are lost as one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.domain.held import Held

Part = tuple[int, str]  # Ranks of one owner, told by its place in the gang, of which all that is left is in one domain.
Owner = TypeVar("Owner", str, Part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    holders: dict[str, str]  # Owner -> the node that holds its copy.
    without: dict[str, str]  # Owner that has none -> why.


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Common:
    """A state that is there as a whole: each of its ranks is held by somebody. The newer one is the greater one."""

    generation: int
    step: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Copy the newest common state of `rank` from one node to another."""

    rank: int
    source: str
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    orders: tuple[Order, ...]
    without: dict[int, str]  # Rank that stays in one domain -> why.


def assign(owners: Sequence[str], nodes: Mapping[str, str], before: Mapping[str, str], first: Collection[str] = ()) -> Assignment:
    """Give as many `owners` as can be a holder among `nodes` (those alive, each with its domain; spares too).

    A holder in `before` that is still right stays, because a copy is gigabytes; it moves only if otherwise one more owner would have none.
    When a spare takes a node's place, `before` should name the spare as the owner: the copy is then already where it belongs, if the spare is of another
    domain than its holder.

    Where not all can have one, those in `first` do: owners of what nobody in another domain holds, by the mesh of the job.
    """
    kept = _still_right(owners, nodes, before)
    last = {owner: holder for owner, holder in kept.items() if owner not in nodes}  # The owner is gone: nobody may write over what may be the only copy.
    open_to = {node: domain for node, domain in nodes.items() if node not in last.values()}
    domain_of = {owner: nodes[owner] for owner in owners if owner in nodes}
    staying = {owner: holder for owner, holder in kept.items() if owner not in last}
    holders = last | _match(domain_of, open_to, staying)
    if any(owner in first and owner not in holders for owner in domain_of) and any(owner not in first for owner in holders):
        of_first = {owner: domain for owner, domain in domain_of.items() if owner in first}
        dear = _match(of_first, open_to, {owner: holder for owner, holder in staying.items() if owner in first})
        others = {owner: holder for owner, holder in staying.items() if owner not in first and holder not in dear.values()}
        holders = last | _match(domain_of, open_to, dear | others)
    return Assignment(
        holders={owner: holders[owner] for owner in owners if owner in holders},
        without={owner: _why_none(owner, nodes) for owner in owners if owner not in holders},
    )


def newest_common(held: Mapping[str, Collection[Held]]) -> Common | None:
    """The newest state of which every rank is held by at least one node; `held` tells of the nodes that are alive."""
    ranks: defaultdict[Common, set[int]] = defaultdict(set)
    for having in held.values():
        for one in having:
            if 0 <= one.rank < one.world_size:
                ranks[_state(one)].add(one.rank)
    return max((state for state, there in ranks.items() if len(there) == state.world_size), default=None)


def sources(held: Mapping[str, Collection[Held]], newest: Common, runs: Mapping[int, str]) -> dict[int, str]:
    """For each rank of `newest` the node to get it from: the one that `runs` it, if that has it, else a holder, none asked more than need be."""
    where = _where(held, newest)
    asked: Counter[str] = Counter()
    found: dict[int, str] = {}
    for rank in sorted(where, key=lambda rank: (len(where[rank]), rank)):  # Those with the least choice first.
        found[rank] = runs[rank] if runs.get(rank) in where[rank] else _least(where[rank], asked)
        if found[rank] != runs.get(rank):
            asked[found[rank]] += 1
    return dict(sorted(found.items()))


def missing(
    gang: Sequence[str], ranks_per_node: int, nodes: Mapping[str, str], holders: Mapping[str, str], held: Mapping[str, Collection[Held]]
) -> Missing:
    """Say which copies to make so that each rank of the newest common state is in two domains again.

    `gang` is in the order of the ranks and may name nodes that are gone, `nodes` are those alive, `holders` is what `assign` said of both. A state goes to
    its owner, else to the owner's holder; where one of them is gone, or still has what it held for another, to a node with room, and only if there is none
    left to the one that holds least. What a node has counts until a newer state is common, so nobody may drop it before.
    """
    held = {node: held.get(node, ()) for node in nodes}
    newest = newest_common(held)
    where = _where(held, newest) if newest else {}
    carried = _carried(gang, ranks_per_node, where)
    wanted: list[tuple[int, str]] = []
    homeless: defaultdict[Part, list[int]] = defaultdict(list)
    for rank, having in where.items():
        home, *others = {nodes[node] for node in having}
        if others:
            continue
        place = rank // ranks_per_node
        owner = gang[place] if place < len(gang) else ""  # None when the state is that of a larger gang.
        holder = holders.get(owner, "")
        if nodes.get(owner, home) != home:
            wanted.append((rank, owner))
        elif nodes.get(holder, home) != home and carried[holder] <= {place}:
            wanted.append((rank, holder))
        else:
            homeless[place, home].append(rank)
    found = _shelter(list(homeless), nodes, set(holders.values()), carried)
    wanted += [(rank, to) for part, to in found.items() for rank in homeless[part]]
    asked: Counter[str] = Counter()
    orders = []
    for rank, to in sorted(wanted):
        orders.append(Order(rank=rank, source=_least(where[rank], asked), to=to))
        asked[orders[-1].source] += 1
    without = {rank: _why_one_domain(home, nodes) for (place, home), ranks in homeless.items() if (place, home) not in found for rank in ranks}
    return Missing(orders=tuple(orders), without=dict(sorted(without.items())))


def _carried(gang: Sequence[str], ranks_per_node: int, where: Mapping[int, Sequence[str]]) -> defaultdict[str, set[int]]:
    """For each node the owners, told by their places in the gang, of whom it holds anything, itself left out."""
    own = {node: place for place, node in enumerate(gang)}
    carried: defaultdict[str, set[int]] = defaultdict(set)
    for rank, having in where.items():
        for node in having:
            if own.get(node) != rank // ranks_per_node:
                carried[node].add(rank // ranks_per_node)
    return carried


def _shelter(parts: Sequence[Part], nodes: Mapping[str, str], holding: set[str], carried: Mapping[str, set[int]]) -> dict[Part, str]:
    """A node of another domain for each of `parts`: one that holds some of it already, one with room, or the one that holds least."""
    begun: dict[Part, str] = {}
    for node in sorted(nodes.keys() - holding):
        fitting = [part for part in parts if carried.get(node) == {part[0]} and nodes[node] != part[1] and part not in begun]
        begun.update(dict.fromkeys(fitting[:1], node))
    used = set(begun.values())
    room = {node: domain for node, domain in nodes.items() if node in used or (node not in holding and not carried.get(node))}
    found = _match({part: part[1] for part in parts}, room, begun)
    load = Counter({node: max(len(carried.get(node, ())), node in holding) for node in nodes})
    load.update(found.values())
    for part in sorted(set(parts) - found.keys()):
        if away := [node for node in nodes if nodes[node] != part[1]]:
            found[part] = _least(away, load)
            load[found[part]] += 1
    return found


def _still_right(owners: Sequence[str], nodes: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    kept: dict[str, str] = {}
    taken: set[str] = set()
    for owner in owners:
        holder = before.get(owner, "")
        if holder in nodes and holder not in taken and nodes[holder] != nodes.get(owner):
            kept[owner] = holder
            taken.add(holder)
    return kept


def _match(domain_of: Mapping[Owner, str], nodes: Mapping[str, str], kept: Mapping[Owner, str]) -> dict[Owner, str]:
    """A largest matching of owners (`domain_of`) to `nodes` of another domain that leaves as much of `kept` as it can.

    Since any node of another domain will do, an augmenting path never needs more than one move. Say an owner at home in H finds no free node outside H,
    and one inside H is free. Whoever is not of H and has a node outside H can take the free one and leave its own; if there is nobody like that, all
    nodes outside H serve owners of H already, and no matching serves more.
    """
    holders = dict(kept)
    free: defaultdict[str, list[str]] = defaultdict(list)
    for node in sorted(nodes.keys() - set(kept.values()), reverse=True):  # Taken from the end: by name.
        free[nodes[node]].append(node)
    ring = sorted(free)
    crowd = Counter(domain_of.values())
    spread: defaultdict[str, Counter[str]] = defaultdict(Counter)  # By owner's domain and holder's: the copies of one domain go to all others alike.
    for owner, holder in kept.items():
        spread[domain_of[owner]][nodes[holder]] += 1

    def place(owner: Owner, node: str) -> None:
        if owner in holders:
            spread[domain_of[owner]][nodes[holders[owner]]] -= 1
        holders[owner] = node
        spread[domain_of[owner]][nodes[node]] += 1

    stuck = []
    # The largest domain first: it has the least choice.
    for owner in sorted(domain_of.keys() - kept.keys(), key=lambda owner: (-crowd[domain_of[owner]], domain_of[owner], owner)):
        home = domain_of[owner]
        start = bisect_left(ring, home)  # Each domain begins with the one after it, or all would fill the first.
        away = [domain for domain in ring[start:] + ring[:start] if domain != home and free[domain]]
        if away:
            copies = spread[home]
            place(owner, free[min(away, key=lambda domain: copies.get(domain, 0))].pop())
        else:
            stuck.append(owner)
    for owner in stuck:
        home = domain_of[owner]
        able = [other for other, node in holders.items() if domain_of[other] != home and nodes[node] != home]
        if able and free[home]:
            moved = min(able, key=lambda other: (other in kept, spread[home].get(nodes[holders[other]], 0), other))
            left = holders[moved]
            place(moved, free[home].pop())
            place(owner, left)
    return holders


def _why_none(owner: str, nodes: Mapping[str, str]) -> str:
    if owner not in nodes:
        return f"{owner} is gone, and no copy of its state is known"
    elsewhere = sum(domain != nodes[owner] for domain in nodes.values())
    if not elsewhere:
        return _why_one_domain(nodes[owner], nodes)
    return f"every node of another domain than {nodes[owner]} ({elsewhere} of {len(nodes)}) holds a copy already; give more nodes of another domain"


def _why_one_domain(domain: str, nodes: Mapping[str, str]) -> str:
    return f"all {len(nodes)} nodes are in domain {domain}; give nodes of another domain"


def _where(held: Mapping[str, Collection[Held]], state: Common) -> dict[int, list[str]]:
    """For each rank of `state` the nodes that have it, by name."""
    where: defaultdict[int, list[str]] = defaultdict(list)
    for node in sorted(held):
        for rank in sorted({one.rank for one in held[node] if _state(one) == state and 0 <= one.rank < one.world_size}):
            where[rank].append(node)
    return dict(sorted(where.items()))


def _state(one: Held) -> Common:
    return Common(generation=one.generation, step=one.step, world_size=one.world_size)


def _least(nodes: Sequence[str], asked: Mapping[str, int]) -> str:
    return min(nodes, key=lambda node: (asked.get(node, 0), node))
