"""One cycle: who starts where, who is evicted for whom, who holds which nodes. Everything that it decides is already so in the cluster when it returns.

    0  who lost nodes is mended
    1  administrators' work, whoever must go for it
    2  groups below their guaranteed quota, from those who borrow it
    3  trials, by share, up to their part of the cluster while somebody is due; loose jobs go for them
    4  those that are due, by age or share; loose jobs go for them; the first that do not fit get nodes reserved
    5  everybody else, by share, on what is free: nothing that fits stays idle unless it is held
    6  elastic jobs grow into what nobody can use

A job that starts in 1 or 4 is firm. One that starts in 3 or 5 is loose after its trial or minimum run: it may be evicted by 1 to 4, and not by 5. So a victim
cannot come back in the place of the one it went for: it is tried already, and only waiting makes it due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

from holdfast.schedule.cluster import Cluster
from holdfast.schedule.elastic import Lent, give_way, grow, lent_to, make_room
from holdfast.schedule.job import Job, Lane, Placement
from holdfast.schedule.mend import Mend, mend
from holdfast.schedule.place import Health
from holdfast.schedule.preempt import May, Moves, find_moves
from holdfast.schedule.reserve import backfill_place, may_reserve, part_for, reserve_for
from holdfast.schedule.tree import ROOT

_STEPPED_OVER = 8
_FIRM = (Lane.ADMIN, Lane.DUE, Lane.WHOLE)  # Who starts from these is not evicted for ordinary work.


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    job: str
    placement: Placement
    gpus: int
    firm: bool
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    job: str
    for_job: str  # Whose start it serves.


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    job: str
    gpus: int  # It has from now on.
    extras: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    job: str
    nodes: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What to do: mends, resizes that make room, evictions, starts, growth. Why a job waits is asked of `explain.why`, for the one that is asked about."""

    starts: tuple[Start, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    resizes: tuple[Resize, ...] = ()
    reservations: tuple[Reserved, ...] = ()
    mends: tuple[Mend, ...] = ()
    drained: tuple[int, ...] = ()  # Nodes that are empty now, to be repaired.


def decide(cluster: Cluster, now: float) -> Decisions:
    """The cycle. Costs nothing for who waits and cannot start."""
    cluster.tick(now)
    return _Cycle(cluster).run()


class _Cycle:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.now = cluster, cluster.now
        self.starts: list[Start] = []
        self.evictions: list[Eviction] = []
        self.resizes: list[Resize] = []
        self.mends: tuple[Mend, ...] = ()
        self.drained: list[int] = []

    def run(self) -> Decisions:
        cluster = self.cluster
        if cluster.wounded or cluster.care.draining:
            self._nurse()
        self._administrators()
        if cluster.tree.quota_accounts:
            self._guaranteed()
        self._trials()
        self._due()
        self._fill()
        if cluster.elastic:
            self._resized(grow(cluster, self.now))
        kept = tuple(Reserved(job=job.request.id, nodes=one.nodes, at=one.at) for job, one in cluster.reservations.items())
        return Decisions(
            starts=tuple(self.starts), evictions=tuple(self.evictions), resizes=tuple(self.resizes), reservations=kept, mends=self.mends,
            drained=tuple(self.drained),
        )  # fmt: skip

    def _nurse(self) -> None:
        """Who lost nodes goes on, those first whose turn had come; a sick node that is empty goes out."""
        cluster, fleet = self.cluster, self.cluster.fleet
        self.mends = tuple(mend(cluster, job, self.now) for job in sorted(cluster.wounded, key=lambda job: (not job.firm, job.number)))
        for node in [node for node in cluster.care.draining if not fleet.on[node] and not fleet.extras_on[node]]:
            cluster.judge(node, Health.OUT, self.now)
            self.drained.append(node)

    def _administrators(self) -> None:
        waiting, tried, why = self.cluster.waiting, set[int](), "administrators' work comes first"
        while (job := self._next(Lane.ADMIN, [size for size in waiting.sizes(Lane.ADMIN) if size not in tried])) is not None:
            if not (self._start_free(job, why, firm=True) or self._start_evicting(job, why, anybody=True)):
                tried |= {size for size in waiting.sizes(Lane.ADMIN) if size >= job.gpus}

    def _guaranteed(self) -> None:
        """The quota of a group is for the group: it is given back by whoever borrowed it, after their minimum run."""
        cluster = self.cluster
        for account in cluster.tree.quota_accounts:
            for lane in (Lane.DUE, Lane.WHOLE, Lane.TRIAL, Lane.REST):
                while True:
                    room = cluster.tree.quotas[account] - cluster.gpus[account]
                    job = self._next(lane, [size for size in cluster.waiting.sizes(lane, account) if size <= room], account)
                    if job is None:
                        break
                    why = f"{cluster.tree.name(account)} is below its quota"
                    if not (self._start_free(job, why) or self._start_evicting(job, why, from_borrowers=True)):
                        break

    def _trials(self) -> None:
        cluster = self.cluster
        waiting, fleet, why = cluster.waiting, cluster.fleet, "it is tried first: most jobs end soon"
        cap = cluster.trials_most()
        stuck = fleet.gpus_max + 1
        while waiting.sizes(Lane.TRIAL) and (cluster.trial_gpus < cap or not (cluster.reservations or waiting.sizes(Lane.DUE) or waiting.sizes(Lane.WHOLE))):
            sizes = [size for size in waiting.sizes(Lane.TRIAL) if size < stuck and (fleet.fits(size) or fleet.could_fit(size))]
            job = waiting.next(Lane.TRIAL, sizes) if sizes else None
            if job is None:
                return
            if self._above_ceiling(job):
                continue
            if not (self._start_free(job, why) or self._start_evicting(job, why)):
                stuck = job.gpus

    def _due(self) -> None:
        """Those that are due, in order: who has nodes reserved, then the queue, up to one that gets neither a place nor a reservation: nobody passes it."""
        cluster = self.cluster
        for reserved, kept in list(cluster.reservations.items()):
            self._above_ceiling(reserved)  # In a lower class, where there is one, it may start now.
            if (cluster.tree.limited and not cluster.permits(reserved)) or cluster.above_ceiling(reserved):
                cluster.drop_reservation(reserved)  # Others of its account started meanwhile: nobody is to wait for it while it waits for them.
                continue
            old = self.now - kept.made_at >= cluster.policy.reservation_kept_s
            if not self._start_due(reserved) and old and not self._start_moving(reserved):
                reserve_for(cluster, reserved, self.now)
        for lane in (Lane.DUE, Lane.WHOLE):
            while (job := cluster.waiting.next(lane, cluster.waiting.sizes(lane))) is not None:
                if self._above_ceiling(job) or self._start_due(job):
                    continue
                if not (may_reserve(cluster, job) and (self._start_moving(job) or reserve_for(cluster, job, self.now))):
                    return

    def _start_due(self, job: Job) -> bool:
        """A small one may rather take the place of a loose job beside other firm ones than stand on a free node and spoil it for a gang."""
        why = "its turn has come"
        if job.gpus < self.cluster.fleet.gpus_max:
            return self._start_evicting(job, why) or self._start_free(job, why, firm=True)
        return self._start_free(job, why, firm=True) or self._start_evicting(job, why)

    def _start_moving(self, job: Job) -> bool:
        """A place by moving smaller firm jobs closer together: they are due, so they start again beside others in this very cycle or soon."""
        cluster, fleet = self.cluster, self.cluster.fleet
        if job.gpus == 1:
            return False
        smaller_than = min(job.gpus, fleet.gpus_max)

        def may(victim: Job) -> bool:
            if victim.loose and cluster.tree.quota_accounts and cluster.spares(victim, job):
                return False
            fits = victim.loose or (victim.firm and victim.gpus < smaller_than and victim.request.preemptible and cluster.has_run_enough(victim))
            return fits and cluster.has_saved(victim)

        lent = lent_to(cluster, job)
        look = partial(find_moves, fleet, job.gpus, cost=cluster.eviction_cost, loose_only=False, held_for=job, among=part_for(fleet, job), lent=lent)
        moves = self._within_guarantees(look, may, job, lent)
        if moves is None:
            cluster.look_again(self.now)
            return False
        moved, used = sum(victim.gpus for victim in moves.victims if victim.firm), {node for node, _ in moves.placement}
        if moved:
            beside = (node for node, there in enumerate(fleet.on) if node not in used and any(one.firm and one.gpus < fleet.gpus_max for one in there))
            if moved > sum(fleet.free[node] + fleet.loose[node] for node in beside if fleet.is_open(node)):
                return False
        self._commit(job, moves, "its turn has come", lent)
        return True

    def _fill(self) -> None:
        """What is free on open nodes, to whoever fits; then what is held for others, to whoever will be gone in time."""
        cluster = self.cluster
        waiting, fleet, why = cluster.waiting, cluster.fleet, "nobody before it can use these GPUs now"
        for lane in (Lane.DUE, Lane.WHOLE, Lane.TRIAL, Lane.REST):
            while (job := self._next(lane, [size for size in waiting.sizes(lane) if fleet.fits(size)])) is not None:
                self._start_free(job, why)
        for lane in (Lane.TRIAL, Lane.REST):
            stuck = fleet.gpus_max + 1
            while fleet.held and (job := self._next(lane, [size for size in waiting.sizes(lane) if size < stuck and size <= fleet.free_gpus])) is not None:
                place = backfill_place(cluster, job, self.now)
                if place is None:
                    stuck = job.gpus
                else:
                    self._start(job, place, why)
        if any(job.extras for job in cluster.elastic):
            self._fill_from_extras()
        if fleet.suspects:
            self._fill_suspects()

    def _fill_from_extras(self) -> None:
        """What elastic jobs have grown by beyond their part, to accounts that are below theirs: least charged first."""
        cluster, why = self.cluster, "it is below its part, and others have grown beyond theirs"
        entitled = cluster.entitled()  # For what runs and waits, so that it is the same whoever starts.
        for lane in (Lane.DUE, Lane.WHOLE, Lane.TRIAL, Lane.REST):
            for user in cluster.waiting.users(lane):
                stuck = cluster.fleet.gpus_max + 1
                while (job := self._next(lane, [size for size in cluster.waiting.sizes(lane, user) if size < stuck], user)) is not None:
                    lent = lent_to(cluster, job, entitled=entitled)
                    if not (lent and self._start_on_extras(job, why, lent)):
                        stuck = job.gpus

    def _next(self, lane: Lane, sizes: Collection[int], account: int = ROOT) -> Job | None:
        """The next job of an account, or of all, that no limit or ceiling is in the way of, also above it."""
        cluster = self.cluster
        sizes = [size for size in sizes if size <= cluster.room_above(account)]
        while (job := cluster.waiting.next(lane, sizes, account)) is not None and self._above_ceiling(job):
            pass  # It stands elsewhere now.
        return job

    def _fill_suspects(self) -> None:
        """Suspect nodes, with small preemptible work; the first of the others in each lane are stepped over, a few at a time."""
        cluster, why = self.cluster, "it is small enough for a node that is in doubt"
        for lane in (Lane.TRIAL, Lane.REST):
            aside: list[Job] = []
            small = [size for size in cluster.waiting.sizes(lane) if size <= cluster.policy.small_gpus]
            while len(aside) < _STEPPED_OVER and (job := self._next(lane, small)) is not None:
                place = cluster.fleet.find_among(job.gpus, cluster.fleet.suspects)
                if place is None:
                    break
                if job.request.preemptible:
                    self._start(job, place, why)
                else:
                    aside.append(job)
                    cluster.waiting.remove(job)
            for job in aside:
                cluster.step_back(job)

    def _above_ceiling(self, job: Job) -> bool:
        """Whether a job is above the ceiling of its class. It stands in a lower one now; or, where there is none, aside until others of its class end."""
        cluster, because = self.cluster, self.cluster.above_ceiling(job)
        if because and (lower := cluster.lower_class(job.priority)) is not None:
            cluster.demote(job, lower, because)
        elif because and job not in cluster.reservations:
            cluster.hold_back(job)
        return bool(because)

    # Simulate, then commit.

    def _start_free(self, job: Job, why: str, *, firm: bool = False) -> bool:
        place = self.cluster.fleet.find(job.gpus)
        if place is None:
            return False
        self._start(job, place, why, firm=firm)
        return True

    def _start_evicting(self, job: Job, why: str, *, anybody: bool = False, from_borrowers: bool = False) -> bool:
        cluster, fleet = self.cluster, self.cluster.fleet
        beyond_loose, unsaved = anybody or from_borrowers or self._outranks(job), False

        def may(victim: Job) -> bool:
            nonlocal unsaved
            if anybody:
                return not victim.priority.crosses
            if victim.loose:
                if not beyond_loose and not cluster.has_saved(victim):
                    unsaved = True
                    return False
                return not cluster.tree.quota_accounts or not cluster.spares(victim, job)
            if not cluster.has_run_enough(victim) or not victim.request.preemptible or victim.priority.crosses:
                return False
            if from_borrowers:
                return not cluster.spares(victim, job) and not cluster.below_quota_now(victim)
            return victim.priority.rank < job.priority.rank and victim.line[1] == job.line[1]

        reserved = job in cluster.reservations
        if not (beyond_loose or fleet.could_fit(job.gpus) or (reserved and fleet.could_fit_with(job.gpus, cluster.reservations[job].nodes))):
            return False
        own, lent = job if reserved else None, lent_to(cluster, job)
        if lent and self._start_on_extras(job, why, lent, held_for=own, anywhere=anybody, firm=job.lane in _FIRM):
            return True
        look = partial(
            find_moves, fleet, job.gpus, cost=cluster.eviction_cost, loose_only=not beyond_loose, held_for=own, anywhere=anybody,
            spoiled=cluster.policy.spoiled_s if job.lane is Lane.DUE else 0.0, lent=lent,
        )  # fmt: skip
        moves = look(may=may) if anybody else self._within_guarantees(look, may, job, lent)
        if moves is None:
            if unsaved:
                cluster.look_again(self.now)
            return False
        self._commit(job, moves, why, lent)
        return True

    def _within_guarantees(self, look: Callable[..., Moves | None], may: May, job: Job, lent: Lent) -> Moves | None:
        """The cheapest moves that leave every guarantee whole: all victims together may break one, though none alone does."""
        kept = set[Job]()

        def may_still(victim: Job) -> bool:
            return victim not in kept and may(victim)

        moves = look(may=may_still)
        while moves is not None and self.cluster.tree.quota_accounts and (spared := self.cluster.spared(moves.victims, job, moves.placement, lent)):
            kept.update(spared)
            moves = look(may=may_still)
        return moves

    def _start_on_extras(
        self, job: Job, why: str, lent: Lent, *, held_for: Job | None = None, anywhere: bool = False, firm: bool = False,
    ) -> bool:  # fmt: skip
        """Where extras are all that must go. A job that fits on one node is looked for where there are some: elsewhere others have looked, or will."""
        moves = find_moves(
            self.cluster.fleet, job.gpus, lambda victim: False, self.cluster.eviction_cost, loose_only=False, held_for=held_for, anywhere=anywhere, lent=lent,
            among=sorted(lent) if job.gpus <= self.cluster.fleet.gpus_max else None,
        )  # fmt: skip
        if moves is None:
            return False
        self._resized(give_way(self.cluster, lent, moves.placement, self.now))
        self._start(job, moves.placement, why, firm=firm)
        return True

    def _resized(self, jobs: Iterable[Job]) -> None:
        self.resizes += [Resize(job=job.request.id, gpus=job.gpus_now, extras=job.extras) for job in jobs]

    def _commit(self, job: Job, moves: Moves, why: str, lent: Lent) -> None:
        for victim in moves.victims:
            self.cluster.evict(victim, self.now)
            self.evictions.append(Eviction(job=victim.request.id, for_job=job.request.id))
        self._resized(give_way(self.cluster, lent, moves.placement, self.now))
        self._start(job, moves.placement, why, firm=job.lane in _FIRM)

    def _outranks(self, job: Job) -> bool:
        """Whether somebody of its group runs in a lower class."""
        cluster, group = self.cluster, job.line[1]
        return any(one.rank < job.priority.rank and cluster.class_gpus(one.name, group) for one in cluster.policy.classes.values())

    def _start(self, job: Job, place: Placement, why: str, *, firm: bool = False) -> None:
        self._resized(make_room(self.cluster, job, self.now))
        self.cluster.start(job, place, self.now, firm=firm)
        self.starts.append(Start(job=job.request.id, placement=place, gpus=job.gpus, firm=job.firm, because=why))
