"""Forecast: all that can be said of a job on a fleet, from its rate of failures and its times, in one value that tables, plots and JSON are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from holdfast.domain.goodput import Bucket
from holdfast.recover import shrink
from holdfast.simulate.reliability import copies, detection, failures, goodput, interval, repair, spares
from holdfast.simulate.reliability.fleet import Chances, play
from holdfast.simulate.reliability.goodput import Fault, Running
from holdfast.simulate.reliability.published import Shows
from holdfast.simulate.reliability.rates import Seen

_FAILURES_PLAYED = 2000  # Of one life, at most.
_SPARES_PLAYED = 200_000  # In all lives together; more of them are taken to be always enough.


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What a failure and a save cost, in seconds, and how failures are dealt over the kinds."""

    save_s: float
    detect_s: float
    replace_s: float
    restart_s: float  # Start, group build, first step.
    restore_s: float  # From the memory of its own node,
    fetch_s: float  # and so much more where a new node gets it over the network.
    hang_detect_s: float
    nan_found_s: float
    behind_s: float  # Copies on other nodes are so far behind.
    hang_share: float
    nan_share: float
    node_share: float  # Of those that neither hang nor turn to NaN.
    step_s: float

    def faults(self) -> tuple[Fault, ...]:
        explicit = 1.0 - self.hang_share - self.nan_share
        stays = Fault(
            name=Shows.EXIT, share=explicit * (1.0 - self.node_share), detect_s=self.detect_s, rendezvous_s=self.restart_s, restore_s=self.restore_s
        )
        goes = replace(
            stays, name=Shows.NODE, share=explicit * self.node_share, replace_s=self.replace_s, restore_s=self.restore_s + self.fetch_s,
            behind_s=self.behind_s, needs_node=True,
        )  # fmt: skip
        hangs = replace(goes, name=Shows.HANG, share=self.hang_share, detect_s=self.hang_detect_s)
        return stays, goes, hangs, replace(goes, name=Shows.NAN, share=self.nan_share, detect_s=self.nan_found_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    gpus: int
    gpus_per_node: int
    seen: Seen
    times: Times
    window_s: float
    interval_s: float | None = None  # None: the best one.
    seen_share: float = 0.999  # Of failures, by the detectors.
    spares: int | None = None  # None: as many as `stock_out` asks for.
    stock_out: float = 0.001
    repair_s: float = 86400.0
    copies: int = 2
    domain_nodes: int = 32
    replicas: int = 0  # Of data parallelism; 0: not known, and so nothing is said of shrinking.

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    def on(self, gpus: int) -> Fleet:
        return replace(self, gpus=gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A value at the rate, and at the lower and the upper limit of the rate."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    name: str
    halved: float  # Goodput,
    doubled: float
    tenfold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Goodput of the lives that were played."""

    mean: float
    low: float  # 90 of 100 lie between these.
    high: float
    waiting: float  # Share of the time that is spent waiting for nodes.


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    fleet: Fleet
    per_s: Limits
    running: Running
    failures_mean: float
    failures_most: int  # Not exceeded in 95 of 100 windows.
    undisturbed: float  # The chance of a window without any.
    any_seen: float  # By the detectors, at least one of them.
    none_missed: float
    rules: tuple[interval.Choice, ...]
    goodput: Limits
    parts: dict[Bucket, float]
    loss_per_failure_s: float
    simulated: Simulated | None
    in_repair: float
    repaired: tuple[tuple[float, float], ...]  # So many of all repairs are done within so many seconds, if they are exponential.
    spares: int
    stock_out: float
    spares_table: tuple[tuple[int, float], ...]
    shrink_from_s: float | None
    domain_lost_at_random: float
    domain_lost_spread: float
    partners_lost_per_s: float
    sensitivity: tuple[Sensitivity, ...]


def forecast(fleet: Fleet, *, lives: int = 0, seed: int = 0) -> Forecast:
    per_s, (low, high) = fleet.seen.per_s(fleet.gpus), fleet.seen.limits_per_s(fleet.gpus)
    now = running(fleet)
    mean = per_s * fleet.window_s
    in_repair = spares.in_repair(per_s * sum(fault.share for fault in now.faults if fault.needs_node), fleet.repair_s)
    count = spares.spares_for(fleet.stock_out, in_repair) if fleet.spares is None else fleet.spares
    shares = goodput.parts(now)
    return Forecast(
        fleet=fleet, running=now, per_s=Limits(value=per_s, low=low, high=high), failures_mean=mean, failures_most=failures.most_likely_below(0.95, mean),
        undisturbed=failures.survives(fleet.window_s, per_s), none_missed=detection.none_missed(fleet.seen_share, mean),
        any_seen=detection.any_seen(fleet.seen_share, mean),
        rules=interval.choices(fleet.times.save_s, per_s) if fleet.times.save_s else (),
        goodput=Limits(value=shares[Bucket.PRODUCTIVE], low=goodput.goodput(_at_rate(fleet, high)), high=goodput.goodput(_at_rate(fleet, low))),
        parts=shares, loss_per_failure_s=goodput.loss_per_failure_s(shares[Bucket.PRODUCTIVE], per_s),
        simulated=_simulated(fleet, now, count, lives, seed), in_repair=in_repair, spares=count, stock_out=spares.stock_out(count, in_repair),
        repaired=tuple((share, repair.done_by(share, mean_s=fleet.repair_s)) for share in (0.5, 0.95)),
        spares_table=tuple((number, spares.stock_out(number, in_repair)) for number in _around(count)),
        shrink_from_s=_shrink_from_s(fleet), **_copies(fleet, per_s), sensitivity=_sensitivity(fleet),
    )  # fmt: skip


def _simulated(fleet: Fleet, now: Running, count: int, lives: int, seed: int) -> Simulated | None:
    """The window, or as much of it as has enough failures to say what the whole of it would. Without any spare there is nothing to play."""
    if not lives or not count:
        return None
    known = Chances(spares=count if count * lives <= _SPARES_PLAYED else None, repair_s=fleet.repair_s)
    played = play(now, min(fleet.window_s, _FAILURES_PLAYED / now.per_s), lives, seed=seed, chances=known)
    ordered = sorted(played.goodput.tolist())
    tail = len(ordered) // 20
    return Simulated(mean=sum(ordered) / len(ordered), low=ordered[tail], high=ordered[-1 - tail], waiting=played.parts()[Bucket.WAIT])


def running(fleet: Fleet) -> Running:
    return _at_rate(fleet, fleet.seen.per_s(fleet.gpus))


def interval_curve(shown: Forecast, points: int) -> list[tuple[float, float]]:
    """Goodput over the interval, from a thirtieth of the one in use to thirty times it, evenly on a logarithmic scale."""
    base = shown.running.interval_s
    at = [base * 30.0 ** (2.0 * place / (points - 1) - 1.0) for place in range(points)]
    return [(interval_s, goodput.goodput(replace(shown.running, interval_s=interval_s))) for interval_s in at]


def _at_rate(fleet: Fleet, per_s: float) -> Running:
    """The interval is chosen for the rate that is expected, whatever the rate then is."""
    times = fleet.times
    interval_s = fleet.interval_s or interval.best_s(times.save_s, fleet.seen.per_s(fleet.gpus), step_s=times.step_s)
    return Running(per_s=per_s, interval_s=interval_s, stall_s=times.save_s, faults=times.faults())


def _around(count: int) -> list[int]:
    """Numbers worth showing: from none to a few more than `count`, itself among them, and not too many."""
    every = max(1, count // 20)
    return sorted({*range(0, count + 3 * every + 1, every), count})


def _shrink_from_s(fleet: Fleet) -> float | None:
    if fleet.replicas < 2:
        return None
    restart_s = fleet.times.restart_s + fleet.times.restore_s
    kept = (fleet.replicas - 1) / fleet.replicas
    return shrink.worth_shrinking_from_s(shrink.Smaller(kept=kept, shrink_s=restart_s, grow_s=restart_s, restart_s=restart_s))


def _copies(fleet: Fleet, per_s: float) -> dict[str, float]:
    """Of the nodes that make whole groups, and of a domain that is not larger than the fleet."""
    nodes = max(fleet.copies, fleet.nodes - fleet.nodes % fleet.copies)
    domain = min(fleet.domain_nodes, nodes)
    exposed_s = fleet.times.detect_s + fleet.times.replace_s + fleet.times.fetch_s + fleet.times.behind_s
    return {
        "domain_lost_at_random": copies.domain_lost(nodes, fleet.copies, domain, spread=False),
        "domain_lost_spread": copies.domain_lost(nodes, fleet.copies, domain, spread=True),
        "partners_lost_per_s": copies.partners_lost_per_s(nodes, node_per_s=per_s / fleet.nodes, exposed_s=exposed_s),
    }


_VARIED: dict[str, Callable[[Times, float], Times]] = {
    "a save": lambda times, by: replace(times, save_s=times.save_s * by),
    "detection of an exit or a lost node": lambda times, by: replace(times, detect_s=times.detect_s * by),
    "detection of a hang": lambda times, by: replace(times, hang_detect_s=times.hang_detect_s * by),
    "finding out about a NaN": lambda times, by: replace(times, nan_found_s=times.nan_found_s * by),
    "replacement of a node": lambda times, by: replace(times, replace_s=times.replace_s * by),
    "restart: group build, first step": lambda times, by: replace(times, restart_s=times.restart_s * by),
    "restore from memory": lambda times, by: replace(times, restore_s=times.restore_s * by),
    "state over the network": lambda times, by: replace(times, fetch_s=times.fetch_s * by),
}


def _sensitivity(fleet: Fleet) -> tuple[Sensitivity, ...]:
    """What dominates first."""
    rows = [_row("the rate of failures", lambda by: replace(fleet, seen=replace(fleet.seen, failures=fleet.seen.failures * by)))]
    rows += [_row(name, partial(_with_times, fleet, vary)) for name, vary in _VARIED.items()]
    return tuple(sorted(rows, key=lambda one: one.tenfold))


def _with_times(fleet: Fleet, vary: Callable[[Times, float], Times], by: float) -> Fleet:
    return replace(fleet, times=vary(fleet.times, by))


def _row(name: str, vary: Callable[[float], Fleet]) -> Sensitivity:
    halved, doubled, tenfold = (goodput.goodput(running(vary(by))) for by in (0.5, 2.0, 10.0))
    return Sensitivity(name=name, halved=halved, doubled=doubled, tenfold=tenfold)
