"""What was asked of `holdfast plan`, made into a fleet: each figure given, measured in a job, or published, and its source beside it.

What cannot be is refused in one sentence, with what to give instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.cli.job import known_job, state_of
from holdfast.cli.words import count, duration
from holdfast.control.interval import failures_of
from holdfast.detect.rules.units import BadNumber, duration_s
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident
from holdfast.domain.state import State
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory
from holdfast.settings import state_root
from holdfast.simulate.reliability import published
from holdfast.simulate.reliability.capacity import Workload
from holdfast.simulate.reliability.forecast import Fleet, Times
from holdfast.simulate.reliability.published import Shows
from holdfast.simulate.reliability.rates import Seen, given

_RESTORE_S_PER_GB = (0.138 + 1.4) / 7.55  # Copied back and registered: benchmarks/checkpoint.py on one H200.
_GPUS_PER_NODE = 8
_PER_S_MAX = 10.0
_HOUR_S, _DAY_S, _FAILURES_MIN = 3600.0, 86400.0, 3  # Of three failures the true rate lies within 14 times, of one within 220 times.
_YEARS_MAX = 1000  # No time is longer, so that whatever is counted in it can be counted.
_LARGE = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_MEASURED_HERE = "measured by Holdfast's benchmarks"

# What is taken where nothing is given or measured, by flag.
_USUAL: dict[str, tuple[float, str]] = {
    "save-cost": (published.SAVE_STALL.worst_s, published.SAVE_STALL.source),
    "step": (published.STEP_S, "Llama 3 405B on 16,384 GPUs"),
    "detect": (3.7, f"a lost node, slowest of 6, {_MEASURED_HERE}"),
    "hang-detect": (120.0, "the limit of a gang that waits on its GPUs"),
    "nan-found": (published.NAN_FOUND.best_s, published.NAN_FOUND.source),
    "replace": (published.REPLACEMENT.worst_s, published.REPLACEMENT.source),
    "restart": (published.GROUP_BUILD.worst_s + published.FIRST_STEP.worst_s, f"{published.GROUP_BUILD.source}; {published.FIRST_STEP.source}"),
    "restore": (1.54, f"7.55 GB on one GPU, {_MEASURED_HERE}"),
    "fetch": (published.STATE_OVER_NETWORK.worst_s, published.STATE_OVER_NETWORK.source),
    "behind": (2.0, "3.6 GB of a node at 15 Gb/s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options as they were typed."""

    gpus: int | None
    gpus_per_node: int | None
    like: str
    failures: float | None
    over: str
    watched_gpus: int | None
    mtbf: str
    node_mtbf: str
    job: str
    window: str
    interval: str
    state_gb: float | None
    network_gb_per_s: float | None
    hangs: float | None
    nans: float | None
    node_losses: float | None
    detected: float
    spares: int | None
    stock_out: float
    repair: str
    copies: int
    domain_nodes: int
    replicas: int
    parameters: str
    tokens: str
    within: str
    tflops: float
    growth: float
    years: int
    kept: int
    state: Path | None
    times: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    fleet: Fleet
    workload: Workload | None
    figures: tuple[Figure, ...]  # What went in, and where it is from.
    unsaid: str = ""  # What the job that was asked about cannot tell, and what is taken instead.


def understood(asked: Asked) -> Understood:
    measured = _measured(asked) if asked.job else None
    per_node = asked.gpus_per_node or (measured.gpus_per_node if measured is not None else _GPUS_PER_NODE)
    gpus = asked.gpus or (measured.gpus if measured is not None else None)
    if gpus is None:
        raise UserError("how many GPUs the job has is not known; give --gpus 16384, or --job JOB to plan for one that ran")
    if asked.replicas > gpus:
        raise UserError(f"--replicas {asked.replicas} are more than the {count(gpus, 'GPU')} that would hold one each")
    if asked.network_gb_per_s is not None and asked.state_gb is None:
        raise UserError("--network-gb-per-s says how fast state comes, and not how much there is; add --state-gb 7290, or give --fetch and --behind instead")
    seen, rate_source = _rate(asked, gpus, per_node, measured)
    if seen.per_s(gpus) > _PER_S_MAX:
        raise UserError(f"a failure every {1 / seen.per_s(gpus):.2g} s leaves no time to train in; look at the rate, its time and --watched-gpus again")
    chosen = {flag: _time(asked, flag, gpus, measured) for flag in _USUAL}
    hangs, nans, node_losses = _mix(asked)
    at = {flag: seconds for flag, (seconds, _) in chosen.items()}
    times = Times(
        save_s=at["save-cost"], detect_s=at["detect"], replace_s=at["replace"], restart_s=at["restart"], restore_s=at["restore"], fetch_s=at["fetch"],
        hang_detect_s=at["hang-detect"], nan_found_s=at["nan-found"], behind_s=at["behind"], hang_share=hangs, nan_share=nans, node_share=node_losses,
        step_s=at["step"],
    )  # fmt: skip
    fleet = Fleet(
        gpus=gpus, gpus_per_node=per_node, seen=seen, times=times, window_s=_above_zero("--window", asked.window),
        interval_s=_above_zero("--interval", asked.interval) if asked.interval else None, seen_share=_share("--detected", asked.detected),
        spares=asked.spares, stock_out=_chance("--stock-out", asked.stock_out), repair_s=_above_zero("--repair", asked.repair), copies=asked.copies,
        domain_nodes=asked.domain_nodes, replicas=asked.replicas,
    )  # fmt: skip
    if times.save_s == 0.0 and fleet.interval_s is None:
        fleet = replace(fleet, interval_s=times.step_s)  # What costs nothing is done at every step.
    figures = [Figure(name="failures", value=f"one every {duration(1 / seen.per_s(gpus))}", source=rate_source)]
    figures += [Figure(name=flag.replace("-", " "), value=_seconds(seconds), source=source) for flag, (seconds, source) in chosen.items()]
    kinds = f"hangs {hangs:.1%}, NaN {nans:.1%}, of the rest {node_losses:.0%} cost a node"
    is_given = any(one is not None for one in (asked.hangs, asked.nans, asked.node_losses))
    figures.append(Figure(name="kinds", value=kinds, source="given" if is_given else "Llama 3's causes; what is of the network hangs"))
    unsaid = _too_little(measured) if measured is not None and seen is published.RATES["llama3"][0] and not asked.like else ""
    return Understood(fleet=fleet, workload=_workload(asked, per_node), figures=tuple(figures), unsaid=unsaid)


# The rate.


def _rate(asked: Asked, gpus: int, per_node: int, measured: _Measured | None) -> tuple[Seen, str]:
    ways = {"--like": asked.like, "--failures": asked.failures is not None, "--mtbf": asked.mtbf, "--node-mtbf": asked.node_mtbf}
    named = [flag for flag, value in ways.items() if value]
    if len(named) > 1:
        raise UserError(f"the rate of failures is given twice, by {' and by '.join(named)}; leave one out")
    if bool(asked.over) != (asked.failures is not None):
        raise UserError("--failures and --over belong together: --failures 419 --over 54d")
    if asked.watched_gpus is not None and asked.failures is None:
        raise UserError("--watched-gpus says on how many GPUs failures were counted, and no count is given; add --failures 419 --over 54d, or leave it out")
    if asked.mtbf:
        return given(_above_zero("--mtbf", asked.mtbf), gpus), "given"
    if asked.node_mtbf:
        return given(_above_zero("--node-mtbf", asked.node_mtbf), per_node), "given, of a node"
    if asked.failures is not None:
        if not 0.0 <= asked.failures <= 1e6:
            raise UserError(f"--failures is a count, up to a million, not {asked.failures:g}")
        seen = Seen(failures=asked.failures, over_s=_above_zero("--over", asked.over), gpus=asked.watched_gpus or gpus)
        return _not_never(seen, f"{asked.failures:g} in {duration(seen.over_s)} on {count(seen.gpus, 'GPU')}, given")
    if measured is not None and not asked.like and not _too_little(measured):
        return _not_never(measured.seen, _said_by(measured))
    like = asked.like or "llama3"
    if like not in published.RATES:
        raise UserError(f"there is no published rate {like!r} here; there are {', '.join(published.RATES)}")
    return published.RATES[like]


def _said_by(measured: _Measured) -> str:
    return f"{count(int(measured.seen.failures), 'failure')} in {duration(measured.seen.over_s)} of {measured.name}"


def _too_little(measured: _Measured) -> str:
    """Why nothing is known of how often a job fails that was seen for too short a time or failed too seldom in it; empty when it is."""
    seen = measured.seen
    if seen.over_s >= _DAY_S or (seen.over_s >= _HOUR_S and seen.failures >= _FAILURES_MIN):
        return ""
    return (
        f"{_said_by(measured)} cannot tell how often it fails: that takes {duration(_DAY_S)}, or an hour with {_FAILURES_MIN} failures. A published rate is "
        "planned with; --mtbf TIME or --failures N --over TIME gives another. The times of a save and a recovery are the job's own, where they were seen"
    )


def _not_never(seen: Seen, source: str) -> tuple[Seen, str]:
    """None seen is not never: it is planned with the most that would still not surprise."""
    if seen.failures:
        return seen, source
    return given(1.0 / seen.limits_per_s(seen.gpus)[1], seen.gpus), f"{source}: none seen, so planned with the upper 95 % limit, three in that time"


# A job that ran.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    name: str
    gpus: int
    gpus_per_node: int
    seen: Seen
    times: dict[str, float]


def _measured(asked: Asked) -> _Measured:
    directory = JobDirectory(Path(asked.job))
    directory = directory if directory.journal.is_file() else known_job(state_root(asked.state), asked.job)
    state = state_of(directory)
    if state.spec is None or not state.ledger.spans:
        raise UserError(f"job {directory.job!r} has not run yet, so nothing was measured in it; plan without --job")
    found = failures_of(state, state.ledger.spans[-1].until)
    if found.watched_s <= 0.0:
        raise UserError(f"job {directory.job!r} has run for no time at all, so nothing was measured in it; plan without --job")
    seen = Seen(failures=len(_stopped_by(state)), over_s=found.watched_s, gpus=state.spec.world_size)
    return _Measured(name=directory.job, gpus=state.spec.world_size, gpus_per_node=state.spec.ranks_per_node, seen=seen, times=_times_of(state))


def _stopped_by(state: State) -> list[Incident]:
    """Every failure counts, since each costs a recovery: those in which survivors lost no work, and those of a script that tells no steps, too."""
    return [incident for incident in state.incidents if not incident.stands]


def _times_of(state: State) -> dict[str, float]:
    """Means over the incidents that have ended; what none of them had is not there."""
    bills = [incident.costs for incident in _stopped_by(state) if not incident.is_open]
    noticed = (Bucket.DETECT, Bucket.DIAGNOSE, Bucket.STOP)
    told = {"detect": noticed, "restart": (Bucket.RENDEZVOUS,), "restore": (Bucket.RESTORE,), "replace": (Bucket.REPLACE,)}
    found: dict[str, float] = {}
    for flag, buckets in told.items():
        seconds = [sum(bill.get(bucket, 0.0) for bucket in buckets) for bill in bills if any(bucket in bill for bucket in buckets)]
        if seconds:
            found[flag] = sum(seconds) / len(seconds)
    if state.interval is not None:
        found["step"] = state.interval.step_s
        if state.interval.stall_s is not None:
            found["save-cost"] = state.interval.stall_s
    return found


# Single figures.


def _time(asked: Asked, flag: str, gpus: int, measured: _Measured | None) -> tuple[float, str]:
    text = asked.times[flag]
    if text:
        return (_above_zero(f"--{flag}", text) if flag == "step" else _seconds_of(f"--{flag}", text)), "given"
    if measured is not None and flag in measured.times:
        return measured.times[flag], f"measured in {measured.name}"
    if flag in ("restore", "fetch", "behind") and asked.state_gb is not None:
        return _of_state(asked, flag, asked.state_gb, gpus)
    return _USUAL[flag]


def _of_state(asked: Asked, flag: str, state_gb: float, gpus: int) -> tuple[float, str]:
    """Of the state that a GPU holds when all of it is spread over all of them."""
    if not 0.0 < state_gb < 1e12:
        raise UserError(f"--state-gb is the size of the whole state in GB, above 0, not {state_gb:g}")
    each = state_gb / gpus
    if flag == "restore":
        return _RESTORE_S_PER_GB * each, f"{each:.3g} GB a GPU at {_RESTORE_S_PER_GB:.2f} s a GB, {_MEASURED_HERE}"
    if asked.network_gb_per_s is None:
        rate, source = published.PEER_GB_PER_S.worst, published.PEER_GB_PER_S.source
    else:
        rate, source = asked.network_gb_per_s, "given"
    if not 0.0 < rate < 1e6:
        raise UserError(f"--network-gb-per-s is what a GPU gets over the network, above 0, such as 1.2, not {rate:g}")
    return each / rate, f"{each:.3g} GB a GPU at {rate:.2g} GB/s, {source}"


def _mix(asked: Asked) -> tuple[float, float, float]:
    usual = published.shares(published.LLAMA3_CAUSES)
    hangs = usual[Shows.HANG] if asked.hangs is None else _share("--hangs", asked.hangs)
    nans = usual[Shows.NAN] if asked.nans is None else _share("--nans", asked.nans)
    if hangs + nans > 1.0:
        raise UserError(f"--hangs {hangs:g} and --nans {nans:g} are together more than all failures; they are shares, such as 0.1")
    ends = usual[Shows.EXIT] + usual[Shows.NODE]
    return hangs, nans, usual[Shows.NODE] / ends if asked.node_losses is None else _share("--node-losses", asked.node_losses)


def _workload(asked: Asked, per_node: int) -> Workload | None:
    wanted = {"--parameters": asked.parameters, "--tokens": asked.tokens, "--within": asked.within}
    missing = [flag for flag, text in wanted.items() if not text]
    if len(missing) == len(wanted):
        if asked.growth != 1.0 or asked.years:
            raise UserError("--growth and --years are those of a workload: give --parameters, --tokens and --within too, as in --parameters 405B")
        return None
    if missing:
        raise UserError(f"for the capacity {' and '.join(missing)} must be given too, as in --parameters 405B --tokens 15.6T --within 54d")
    if not 0.0 < asked.tflops < 1e6 or not 0.0 < asked.growth < 1000.0:
        raise UserError(f"--tflops and --growth are above 0, such as 400 and 2, not {asked.tflops:g} and {asked.growth:g}")
    return Workload(
        parameters=_large("--parameters", asked.parameters), tokens=_large("--tokens", asked.tokens), within_s=_above_zero("--within", asked.within),
        flop_per_s=asked.tflops * 1e12, gpus_per_node=per_node, checkpoints_kept=asked.kept, copies=asked.copies, growth_per_year=asked.growth,
    )  # fmt: skip


def _seconds_of(flag: str, text: str) -> float:
    try:
        seconds = duration_s(text)
    except BadNumber:
        raise UserError(f"{flag} is a time such as 0.04s, 30s, 5m, 2h or 54d, not {text!r}") from None
    if seconds > _YEARS_MAX * 365 * 86400:
        raise UserError(f"{flag} is at most {_YEARS_MAX} years, {_YEARS_MAX * 365}d, not {text if len(text) < 40 else text[:40] + '…'}")
    return seconds


def _above_zero(flag: str, text: str) -> float:
    seconds = _seconds_of(flag, text)
    if not seconds:
        raise UserError(f"{flag} must be above 0, as {text} is not")
    return seconds


def _share(flag: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise UserError(f"{flag} is a share between 0 and 1, such as 0.1, not {value:g}")
    return value


def _chance(flag: str, value: float) -> float:
    if not 1e-12 <= value < 1.0:
        raise UserError(f"{flag} is a chance between 0 and 1, such as 0.001, not {value:g}")
    return value


def _large(flag: str, text: str) -> float:
    factor = _LARGE.get(text[-1:].lower(), 1.0)
    try:
        value = float(text[:-1] if factor > 1.0 else text) * factor
    except ValueError:
        value = math.nan
    if not 0.0 < value < 1e30:
        raise UserError(f"{flag} is a number such as 7e9, 405B or 15.6T, not {text!r}")
    return value


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 0.995 else duration(seconds)
