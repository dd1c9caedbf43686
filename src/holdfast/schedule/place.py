"""Where a gang can stand: GPUs of nodes, all or nothing, smallest domain first, best fit inside.

A gang that fits on one node gets one node, the fullest that has room. A larger one gets whole nodes, of one domain where one has enough, else of as few as will
do. Nodes are kept by how many GPUs are free, so that a place is found without looking at nodes that have none.

A node may be `held` for a job that waits for it, `suspect` (takes only small preemptible work), `draining` (nothing new) or `out`. Only the others are open.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.errors import UserError
from holdfast.schedule.job import Job, Placement


class Health(enum.Enum):
    GOOD = "good"
    SUSPECT = "suspect"
    DRAINING = "draining"
    OUT = "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    name: str
    gpus: int
    domain: str = ""


class Fleet:
    """The nodes by number, and who stands on them."""

    def __init__(self, nodes: Sequence[NodeRoom]) -> None:
        if not nodes or any(node.gpus < 1 for node in nodes):
            sizes = sorted({node.gpus for node in nodes})
            raise UserError(f"a cluster of {len(nodes)} nodes with {sizes} GPUs cannot run anything; expected nodes, each with a GPU at least")
        self.nodes = tuple(nodes)
        self.total = [node.gpus for node in nodes]
        self.free = list(self.total)
        self.loose = [0] * len(nodes)  # GPUs of jobs that may be evicted, and extras.
        self.health = [Health.GOOD] * len(nodes)
        self.holder: list[Job | None] = [None] * len(nodes)
        self.on: list[dict[Job, int]] = [{} for _ in nodes]
        self.extras_on: list[dict[Job, int]] = [{} for _ in nodes]
        self.gpus_max = max(self.total)  # Of one node.
        self.held: dict[int, None] = {}
        self.suspects: list[int] = []
        self.free_gpus = self.capacity_gpus = self.total_gpus = sum(self.total)  # The last with nodes that are out of service.
        names = {name: number for number, name in enumerate(dict.fromkeys(node.domain for node in nodes))}
        self._domain = [names[node.domain] for node in nodes]
        self._by_free: list[dict[int, None]] = [{} for _ in range(self.gpus_max + 1)]  # Dicts for their order: the same story every time.
        self._whole: list[dict[int, None]] = [{} for _ in names]  # Free nodes by domain,
        self._whole_gpus = 0
        self._reach = [0] * (self.gpus_max + 1)  # Open nodes by what they would have free without loose jobs,
        self._reach_whole_gpus = 0  # and the GPUs of those that would be wholly free.
        for node in range(len(nodes)):
            self._enter(node)

    # Who stands where.

    def take(self, job: Job, placement: Placement, *, extra: bool = False) -> None:
        for node, gpus in placement:
            assert gpus <= self.free[node], f"{job} takes {gpus} GPUs of {self.nodes[node].name}, which has {self.free[node]}"
            self._change(node, -gpus, gpus if extra else 0)
            (self.extras_on if extra else self.on)[node][job] = gpus

    def give(self, job: Job, placement: Placement, *, extra: bool = False) -> None:
        for node, gpus in placement:
            del (self.extras_on if extra else self.on)[node][job]
            self._change(node, gpus, -gpus if job.loose or extra else 0)

    def loosen(self, job: Job) -> None:
        job.loose = True
        for node, gpus in job.placement:
            self._change(node, 0, gpus)

    def hold(self, nodes: Iterable[int], job: Job) -> None:
        for node in nodes:
            self._leave(node)
            self.holder[node] = job
            self.held[node] = None
            self._enter(node)

    def let_go(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self._leave(node)
            self.holder[node] = None
            self.held.pop(node, None)
            self._enter(node)

    def judge(self, node: int, health: Health) -> None:
        """What is thought of a node has changed. Who stands there already is not touched."""
        self._leave(node)
        self.capacity_gpus += self.total[node] * ((health is not Health.OUT) - (self.health[node] is not Health.OUT))
        self.health[node] = health
        self.suspects = [number for number, known in enumerate(self.health) if known is Health.SUSPECT]
        self._enter(node)

    # Looking for a place.

    def fits(self, gpus: int) -> bool:
        """Whether an open place is free."""
        if gpus > self.gpus_max:
            return self._whole_gpus >= gpus
        return any(self._by_free[gpus:])

    def could_fit(self, gpus: int) -> bool:
        """Whether an open place would be free if loose jobs and extras were not there; whose they are decides whether they may go."""
        if gpus > self.gpus_max:
            return self._reach_whole_gpus >= gpus
        return any(self._reach[gpus:])

    def could_fit_with(self, gpus: int, nodes: Iterable[int]) -> bool:
        """The same, with nodes that are held for the one who asks."""
        if gpus > self.gpus_max:
            return self._reach_whole_gpus + sum(self.total[node] for node in nodes if self.free[node] + self.loose[node] == self.total[node]) >= gpus
        return any(self.free[node] + self.loose[node] >= gpus for node in nodes)

    def find(self, gpus: int) -> Placement | None:
        if gpus > self.gpus_max:
            return self._find_whole(gpus)
        for nodes in self._by_free[gpus:]:
            if nodes:
                return ((next(iter(nodes)), gpus),)
        return None

    def find_among(self, gpus: int, nodes: Iterable[int]) -> Placement | None:
        """A place on one of these nodes, whatever is thought of them: the fullest that has room."""
        best = min((node for node in nodes if self.free[node] >= gpus), key=lambda node: self.free[node], default=None)
        return None if best is None else ((best, gpus),)

    def gathered(self, gpus: int, nodes: Iterable[int]) -> Placement | None:
        """A gang over these nodes, which are, or will be, wholly free: in the domain that fits best, else over the largest. They come as preferred."""
        by_domain: dict[int, list[int]] = {}
        for node in nodes:
            by_domain.setdefault(self._domain[node], []).append(node)
        room = {domain: sum(self.total[node] for node in members) for domain, members in by_domain.items()}
        enough = min((domain for domain in room if room[domain] >= gpus), key=lambda domain: (room[domain], domain), default=None)
        order = [enough] if enough is not None else sorted(room, key=lambda domain: (-room[domain], domain))
        chosen: list[tuple[int, int]] = []
        for node in (node for domain in order for node in by_domain[domain]):
            chosen.append((node, min(gpus, self.total[node])))
            gpus -= chosen[-1][1]
            if gpus == 0:
                return tuple(sorted(chosen))
        return None

    def near(self, gpus: int, nodes: Iterable[int], beside: Iterable[int]) -> int | None:
        """The one of these open nodes that has room and stands nearest to others: in a domain of theirs, else anywhere; of equals the fullest."""
        domains = {self._domain[node] for node in beside}
        roomy = (node for node in nodes if self.free[node] >= gpus and self.is_open(node))
        return min(roomy, key=lambda node: (self._domain[node] not in domains, self.free[node], node), default=None)

    def is_open(self, node: int) -> bool:
        return self.health[node] is Health.GOOD and self.holder[node] is None

    def _find_whole(self, gpus: int) -> Placement | None:
        return self.gathered(gpus, (node for nodes in self._whole for node in nodes)) if self._whole_gpus >= gpus else None

    # Keeping the books.

    def _change(self, node: int, free: int, loose: int) -> None:
        self._leave(node)
        self.free[node] += free
        self.free_gpus += free
        self.loose[node] += loose
        self._enter(node)

    def _enter(self, node: int) -> None:
        if self.health[node] is not Health.GOOD or self.holder[node] is not None:
            return
        free, total = self.free[node], self.total[node]
        reach = free + self.loose[node]
        self._by_free[free][node] = None
        self._reach[reach] += 1
        if free == total:
            self._whole[self._domain[node]][node] = None
            self._whole_gpus += total
        if reach == total:
            self._reach_whole_gpus += total

    def _leave(self, node: int) -> None:
        if self.health[node] is not Health.GOOD or self.holder[node] is not None:
            return
        free, total = self.free[node], self.total[node]
        reach = free + self.loose[node]
        del self._by_free[free][node]
        self._reach[reach] -= 1
        if free == total:
            del self._whole[self._domain[node]][node]
            self._whole_gpus -= total
        if reach == total:
            self._reach_whole_gpus -= total
