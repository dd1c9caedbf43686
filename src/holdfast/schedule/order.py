"""Who is next. Waiting jobs stand in lanes; inside a lane the tree is walked from the top, and at each level one child is chosen.

By share: the child that has been charged least for its weight. Where the children are users, the class of their first job comes before that.
By age, in the lane of those that are due: the child whose first job is due longest. It holds while somebody at that level has nothing overdue: what siblings do
not use is lent in order of age. When all of them have waited their patience out, each wants his own, and it goes by share again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping

from holdfast.schedule.job import Job, Lane
from holdfast.schedule.tree import ROOT, Tree

_Heap = list[tuple[int, float, int, int, Job]]  # Class (highest first), key, number, ticket, job.


class Waiting:
    """Jobs that wait, by lane, account and size. What left is dropped from a heap when it comes to its top."""

    def __init__(
        self, tree: Tree, *, by_age: Callable[[int], bool], age: Callable[[Job], float], charged: Callable[[int], float], room: Callable[[int], int | None],
    ) -> None:  # fmt: skip
        self._tree, self._age = tree, age
        self._by_age, self._charged, self._room = by_age, charged, room  # Of an account: order by age, charge for its weight, GPUs up to its limit.
        self._counts: list[dict[int, dict[int, int]]] = [{} for _ in Lane]
        self._kids: list[dict[int, dict[int, int]]] = [{} for _ in Lane]  # Children with somebody who waits.
        self._first: list[dict[int, dict[int, _Heap]]] = [{} for _ in Lane]  # By account and size; of groups only where age decides.

    lanes = tuple(Lane)

    def sizes(self, lane: Lane, account: int = ROOT) -> Collection[int]:
        """How many GPUs jobs of this lane want."""
        return self._counts[lane].get(account, {}).keys()

    def users(self, lane: Lane) -> list[int]:
        """Who has jobs of his own in this lane, least charged first."""
        mine = [account for account, sizes in self._counts[lane].items() if sizes and not self._kids[lane].get(account)]
        return sorted(mine, key=lambda account: ([self._charged(one) for one in self._tree.lines[account]], account))

    def count(self, lane: Lane, account: int = ROOT) -> int:
        return sum(self._counts[lane].get(account, {}).values())

    def wanted(self, lane: Lane) -> Mapping[int, int]:
        """How many jobs of this lane want so many GPUs."""
        return self._counts[lane].get(ROOT, {})

    def add(self, job: Job) -> None:
        job.ticket += 1
        lane, size = job.lane, job.gpus
        for account in job.line:
            counts = self._counts[lane].setdefault(account, {})
            counts[size] = counts.get(size, 0) + 1
            if account == job.account or lane is Lane.DUE:
                heap = self._first[lane].setdefault(account, {}).setdefault(size, [])
                rank = -job.priority.rank if account == job.account else 0
                heapq.heappush(heap, (rank, job.stands_at, job.number, job.ticket, job))
        for parent, child in zip(job.line, job.line[1:], strict=False):
            kids = self._kids[lane].setdefault(parent, {})
            kids[child] = kids.get(child, 0) + 1

    def remove(self, job: Job) -> None:
        job.ticket += 1
        for account in job.line:
            _less(self._counts[job.lane][account], job.gpus)
        for parent, child in zip(job.line, job.line[1:], strict=False):
            _less(self._kids[job.lane][parent], child)

    def next(self, lane: Lane, sizes: Collection[int], account: int = ROOT) -> Job | None:
        """The job of this lane, among those of these sizes, whose turn it is."""
        sizes = self._permitted(lane, account, sizes)
        if not sizes:
            return None
        children = self._kids[lane].get(account)
        if not children:
            return self._foremost(lane, account, sizes)
        if lane is Lane.DUE and not self._tree.limited and self._by_age(account):
            first = self._foremost(lane, account, sizes)
            assert first is not None, "somebody of a permitted size waits there"
            child = first.line[first.line.index(account) + 1]
            if self._kids[lane].get(child):  # A group: age alone decides.
                return self.next(lane, sizes, child)
        chosen = [(self._standing(lane, account, child, open_), child) for child in children if (open_ := self._permitted(lane, child, sizes))]
        if len(chosen) > 1 and not self._tree.limited:
            chosen = [min(chosen)]  # Nothing further down has a limit, so the first has a job to give.
        for _, child in sorted(chosen):
            job = self.next(lane, sizes, child)
            if job is not None:
                return job
        return None

    def _standing(self, lane: Lane, parent: int, child: int, sizes: Collection[int]) -> tuple[float, ...]:
        by_age = lane is Lane.DUE and self._by_age(parent)
        users = not self._kids[lane].get(child)
        if not users and not by_age:
            return (0, self._charged(child))
        first = self._foremost(lane, child, sizes)
        assert first is not None, "somebody of a permitted size waits there"
        return (-first.priority.rank if users else 0, -self._age(first) if by_age else self._charged(child), first.number)

    def _permitted(self, lane: Lane, account: int, sizes: Collection[int]) -> Collection[int]:
        there = self._counts[lane].get(account)
        if not there:
            return ()
        limited = self._tree.limits[account] is not None
        room = self._room(account) if limited else None
        return [size for size in sizes if size in there and (room is None or size <= room)]

    def _foremost(self, lane: Lane, account: int, sizes: Collection[int]) -> Job | None:
        """The first of an account: by class and age. Each size has its own queue, since the order between sizes changes as time goes by."""
        tops = [top for size in sizes if (top := self._top(lane, account, size)) is not None]
        if lane is not Lane.DUE:
            return min(tops)[-1] if tops else None
        return min(tops, key=lambda top: (top[0], -self._age(top[-1]), top[2]))[-1] if tops else None

    def oldest(self, lane: Lane) -> list[Job]:
        """Of each size; only where age decides."""
        return [top[-1] for size in self.sizes(lane) if (top := self._top(lane, ROOT, size)) is not None]

    def _top(self, lane: Lane, account: int, size: int) -> tuple[int, float, int, int, Job] | None:
        heap = self._first[lane].get(account, {}).get(size)
        while heap and heap[0][3] != heap[0][4].ticket:
            heapq.heappop(heap)
        return heap[0] if heap else None


def _less(counts: dict[int, int], key: int) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
