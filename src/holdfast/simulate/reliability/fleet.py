"""A fleet played from dice: one big job, failure by failure, many lives of it at once. It knows none of the formulas, and so can be asked whether they hold.

        start ──► train: work, save, work, save, … ──✗── recover: detect … restore ──► train from the newest state that survived ──✗── …
                                                            └──✗── another failure: recover anew

Where survivors go on they lose the step under way; where the gang is smaller meanwhile, it counts by its share, and stops once more when it is whole again.
A node that is missing for longer makes it smaller for longer.

Each life has dice of its own, and all lives take their next failure together, in NumPy: 54 days of 16,384 GPUs, a thousand times, in seconds. Every second
is in one bucket, and they add up to the horizon. Beyond the formulas it plays spares that run out, repair times with a tail, and failures that come in
clusters (Weibull gaps of a shape below 1) or that grow more likely with time (above 1).

It is a simulation: of one job, on nodes that fail on their own, with times that are given and not measured here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.goodput import Bucket
from holdfast.simulate.reliability.goodput import RECOVERY, Running

Floats = NDArray[np.float64]

BUCKETS = (Bucket.PRODUCTIVE, Bucket.SAVE, Bucket.RECOMPUTE, *RECOVERY, Bucket.SMALLER)
_WAIT, _RENDEZVOUS, _SMALLER = RECOVERY.index(Bucket.WAIT), BUCKETS.index(Bucket.RENDEZVOUS), BUCKETS.index(Bucket.SMALLER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """What the formulas leave out."""

    spares: int | None = None  # None: there is always one.
    repair_s: float = 86400.0  # Mean.
    repair_sigma: float = 0.0  # Of log-normal repair times; 0 for exponential ones.
    shape: float = 1.0  # Of the gaps between failures (Weibull); 1 for a constant rate.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    horizon_s: float
    seconds: Floats  # [life, bucket], in the order of BUCKETS.
    failures: NDArray[np.int64]  # [life]
    node_failures: NDArray[np.int64]
    without_spare: NDArray[np.int64]

    @property
    def goodput(self) -> Floats:
        """Of each life."""
        return self.seconds[:, 0] / self.horizon_s

    def parts(self) -> dict[Bucket, float]:
        """Share of the time by bucket, in the mean of all lives."""
        return dict(zip(BUCKETS, (self.seconds.mean(axis=0) / self.horizon_s).tolist(), strict=True))


def play(running: Running, horizon_s: float, lives: int, *, seed: int, chances: Chances | None = None) -> Lives:
    return _Played(running, horizon_s, lives, seed, chances or Chances()).to_the_end()


class _Played:
    def __init__(self, running: Running, horizon_s: float, lives: int, seed: int, chances: Chances) -> None:
        self.running, self.horizon_s, self.chances = running, horizon_s, chances
        self.dice = np.random.default_rng(seed)
        faults = running.faults
        self.shares = np.cumsum([fault.share for fault in faults])[:-1]
        self.lengths = np.array([*(fault.phases_s for fault in faults), (0.0,) * len(RECOVERY)])  # The last row is for who has no fault to recover from.
        self.takes_node = np.array([*(fault.needs_node for fault in faults), False])
        self.step = np.array([*(fault.live_s or 0.0 for fault in faults), 0.0])  # Of those that are answered by who lives on, else 0.
        self.smaller_s, self.grow_s = (np.array([*values, 0.0]) for values in zip(*((fault.smaller_s, fault.grow_s) for fault in faults), strict=True))
        self.lacking = np.array([*(1.0 - fault.kept for fault in faults), 0.0])
        self.behind = np.array([fault.behind_s for fault in faults])
        self.near = self.behind <= running.interval_s + running.stall_s
        self.now = np.zeros(lives)
        self.work = np.zeros(lives)  # Seconds of work in the state that training goes on from.
        self.safe = np.zeros((lives, len(faults)))  # The same in the state that would survive each kind.
        self.fault = np.full(lives, len(faults))
        self.wait = np.zeros(lives)
        self.ready_at = np.zeros((lives, chances.spares)) if chances.spares else None
        self.seconds = np.zeros((lives, len(BUCKETS)))
        self.failures, self.node_failures, self.without_spare = np.zeros((3, lives), dtype=np.int64)

    def to_the_end(self) -> Lives:
        while (self.now < self.horizon_s).any():
            self._one_failure()
        self.seconds[:, 0] = self.work - self.seconds[:, _SMALLER]
        self.seconds[:, 2] -= self.work  # What was worked and is not there at the end was done again.
        return Lives(
            horizon_s=self.horizon_s, seconds=self.seconds, failures=self.failures, node_failures=self.node_failures, without_spare=self.without_spare
        )

    def _one_failure(self) -> None:
        """From one failure of each life to its next, or to the horizon."""
        gaps, left = self._gaps(), self.horizon_s - self.now
        struck = gaps < left
        time = np.where(struck, gaps, left)
        trained = self._grow(self._recover(time))
        worked, saves = self._train(trained)
        at = self.now + time
        self.work = np.where(struck, self.work, self.work + worked)
        kinds = np.searchsorted(self.shares, self.dice.random(len(at)), side="right")
        self._go_back(struck, kinds, trained, worked, saves)
        self.now = np.where(struck, at, self.horizon_s)
        self.failures += struck
        self.fault = np.where(struck, kinds, len(self.behind))
        self._take_spares(struck & self.takes_node[self.fault])

    def _gaps(self) -> Floats:
        count, shape = len(self.now), self.chances.shape
        if not self.running.per_s:
            return np.full(count, np.inf)
        drawn: Floats = self.dice.weibull(shape, count)
        return drawn / math.gamma(1.0 + 1.0 / shape) / self.running.per_s

    def _recover(self, time: Floats) -> Floats:
        """Spend `time` on the recovery, phase by phase; what is left of it is for training."""
        lengths = self.lengths[self.fault]
        lengths[:, _WAIT] = np.where(self.lacking[self.fault] > 0.0, 0.0, self.wait)
        ends = np.cumsum(lengths, axis=1)
        self.seconds[:, 3:_SMALLER] += np.clip(time[:, None] - (ends - lengths), 0.0, lengths)
        trained: Floats = np.maximum(time - ends[:, -1], 0.0)
        return trained

    def _grow(self, left: Floats) -> Floats:
        """Of what is left for training a part is done by fewer, and after it they stop once more, which loses them the step under way."""
        lacking, grow_s = self.lacking[self.fault], self.grow_s[self.fault]
        smaller_s = np.where(lacking > 0.0, self.smaller_s[self.fault] + self.wait, 0.0)
        self.seconds[:, _SMALLER] += lacking * np.minimum(left, smaller_s)
        grown = np.clip(left - smaller_s, 0.0, grow_s)
        broken_off = np.where((grow_s > 0.0) & (left > smaller_s), self.dice.random(len(left)) * self.step[self.fault], 0.0)
        broken_off = np.minimum(broken_off, left - grown)
        self.seconds[:, _RENDEZVOUS] += grown
        self.seconds[:, 2] += broken_off
        trained: Floats = left - grown - broken_off
        return trained

    def _train(self, trained: Floats) -> tuple[Floats, Floats]:
        """Work done and saves finished in so long, from right after a save on."""
        interval_s, stall_s = self.running.interval_s, self.running.stall_s
        saves = np.floor(trained / (interval_s + stall_s))
        rest = trained - saves * (interval_s + stall_s)
        worked = saves * interval_s + np.minimum(rest, interval_s)
        self.seconds[:, 1] += trained - worked
        self.seconds[:, 2] += worked
        return worked, saves

    def _go_back(self, struck: NDArray[np.bool_], kinds: NDArray[np.int64], trained: Floats, worked: Floats, saves: Floats) -> None:
        """To the newest save that had reached the place which survives this kind; or, with those who live on, to the last step."""
        round_s = self.running.interval_s + self.running.stall_s
        began = (trained > 0.0) & struck
        arrived = np.clip(np.floor((trained[:, None] - self.behind) / round_s), 0.0, saves[:, None]) * self.running.interval_s
        # What a gang was restored from is by then in every memory again, unless survivors had it; further away it is only when it has been sent there again.
        from_a_save = self.step[self.fault] == 0.0
        safe = np.where(self.near & from_a_save[:, None], self.work[:, None], self.safe)
        safe = np.maximum(safe, np.where(arrived > 0.0, self.work[:, None] + arrived, 0.0))
        self.safe = np.where(began[:, None], safe, self.safe)
        reached = np.take_along_axis(self.safe, kinds[:, None], axis=1)[:, 0]
        # Struck during a recovery from a save: nothing newer was there to lose.
        again = np.where(self.near[kinds] & from_a_save, self.work, np.minimum(self.work, reached))
        step = self.step[kinds]
        reached = np.where(step > 0.0, self.work + worked - np.minimum(worked, self.dice.random(len(step)) * step), reached)
        self.work = np.where(began, reached, np.where(struck, again, self.work))
        self.safe = np.where(struck[:, None], np.minimum(self.safe, self.work[:, None]), self.safe)

    def _take_spares(self, takes: NDArray[np.bool_]) -> None:
        """Each lost node is repaired and becomes a spare; whoever needs one takes the first that is ready."""
        self.wait[:] = 0.0
        self.node_failures += takes
        if self.chances.spares is None:
            return
        if self.ready_at is None:
            raise ValueError("without any spare a lost node ends the job; give at least one, or None for as many as are needed")
        wanted_at = self.now + self.lengths[self.fault, :_WAIT].sum(axis=1)
        lives = np.arange(len(takes))
        first = self.ready_at.argmin(axis=1)
        ready = self.ready_at[lives, first]
        self.wait = np.where(takes, np.maximum(ready - wanted_at, 0.0), 0.0)
        self.without_spare += takes & (ready > self.now)
        repaired_at = self.now + self._repairs(len(takes))
        self.ready_at[lives, first] = np.where(takes, np.maximum(ready, repaired_at), ready)

    def _repairs(self, count: int) -> Floats:
        sigma = self.chances.repair_sigma
        if not sigma:
            return self.dice.exponential(self.chances.repair_s, count)
        return self.dice.lognormal(math.log(self.chances.repair_s) - sigma * sigma / 2.0, sigma, count)
