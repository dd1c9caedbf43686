"""Whom to evict so that another can start: found first, done only if it serves. Whole gangs; the cheapest that makes room, and nobody who could have stayed.

A victim costs the work since its last checkpoint and its restart, on all its GPUs, and a little more each time it was evicted before.
Who may be a victim: loose jobs, for whoever is on trial or due. Beyond those, for an administrator anybody who is not; for a job of a higher class, lower ones
of the same group; for a group below its quota, those of groups above theirs; the last two after their minimum run. Nobody falls below his guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.schedule.job import Job, Placement
from holdfast.schedule.place import Fleet, Health

May = Callable[[Job], bool]


@dataclass(frozen=True, slots=True)
class Moves:
    """Evictions and the place that they make, together or not at all."""

    placement: Placement
    victims: tuple[Job, ...]
    cost: float


def find_moves(
    fleet: Fleet, gpus: int, may: May, cost: Callable[[Job], float], *, loose_only: bool, held_for: Job | None = None, anywhere: bool = False,
    spoiled: float = 0.0, among: Iterable[int] | None = None, lent: Mapping[int, Mapping[Job, int]] | None = None,
) -> Moves | None:
    """The cheapest way to make room for a gang, or None where there is no way.

    `lent` are extras by node that go for it: they count as free. `held_for` may also use the nodes that are held for it, and who may go `anywhere`
    those of others too. `spoiled` is what it costs to leave a GPU beside it that is free of firm jobs, so that these stand together. `among` says
    where to look; everywhere where it is not given.
    """
    looked_at = among if among is not None else range(len(fleet.total))
    if loose_only:  # The cheap question first: few nodes have anybody who is loose.
        free, loose, total = fleet.free, fleet.loose, fleet.total
        looked_at = [node for node in looked_at if free[node] + loose[node] >= (gpus if gpus < total[node] else total[node])]
    room = fleet.free
    if lent:
        room = list(room)
        for node, extras in lent.items():
            room[node] += sum(extras.values())
    nodes = [node for node in looked_at if fleet.is_open(node) or (fleet.held and _for_it(fleet, node, held_for, anywhere))]
    if gpus > fleet.gpus_max:
        return _over_nodes(fleet, room, gpus, nodes, may, cost)
    best: Moves | None = None
    best_price: tuple[float, int, int] | None = None
    for node in nodes:
        if fleet.total[node] < gpus:
            continue
        found = _on_node(fleet, room[node], node, gpus, may, cost)
        # Cheapest first; of equals the fullest node, so that whole nodes stay whole.
        if found is not None:
            priced = (found.cost + spoiled * (fleet.free[node] + fleet.loose[node] - gpus), fleet.free[node], node)
            if best_price is None or priced < best_price:
                best, best_price = found, priced
    return best


def _for_it(fleet: Fleet, node: int, held_for: Job | None, anywhere: bool) -> bool:
    holder = fleet.holder[node]
    return fleet.health[node] is Health.GOOD and holder is not None and (anywhere or holder is held_for)


def _on_node(fleet: Fleet, free: int, node: int, gpus: int, may: May, cost: Callable[[Job], float]) -> Moves | None:
    if free >= gpus:
        return Moves(((node, gpus),), (), 0.0)
    here = [(cost(job), job.number, job) for job in fleet.on[node] if may(job)]
    here.sort()
    chosen: list[tuple[float, int, Job]] = []
    for one in here:
        chosen.append(one)
        free += fleet.on[node][one[2]]
        if free >= gpus:
            break
    else:
        return None
    spared = list(chosen)
    for one in reversed(chosen):  # Dearest first: a small one taken early may not be needed beside a large one taken late.
        if free - fleet.on[node][one[2]] >= gpus:
            free -= fleet.on[node][one[2]]
            spared.remove(one)
    return Moves(((node, gpus),), tuple(job for _, _, job in spared), sum(price for price, _, _ in spared))


def _over_nodes(fleet: Fleet, room: Sequence[int], gpus: int, nodes: Iterable[int], may: May, cost: Callable[[Job], float]) -> Moves | None:
    priced = []
    for node in nodes:
        found = _on_node(fleet, room[node], node, fleet.total[node], may, cost)
        if found is not None:
            priced.append((found.cost, node, found.victims))
    priced.sort(key=lambda one: one[:2])
    placement = fleet.gathered(gpus, (node for _, node, _ in priced))
    if placement is None:
        return None
    victims = {node: those for _, node, those in priced}
    needed: dict[int, Job] = {}
    for node, wanted in placement:
        free = room[node] + sum(fleet.on[node][job] for job in victims[node])
        for job in sorted(victims[node], key=lambda job: (-cost(job), job.number)):  # The last node may be used in part.
            if free - fleet.on[node][job] >= wanted and all(number == node or number not in dict(placement) for number, _ in job.placement):
                free -= fleet.on[node][job]
            else:
                needed[job.number] = job
    chosen = tuple(needed[number] for number in sorted(needed))
    return Moves(placement, chosen, sum(cost(job) for job in chosen))
