"""The numbers before an end: memory, disk, heat, counters of errors, the loss. The third reader, for failures that leave no line in any log.

Sees        series by the names of the catalogue of metrics, each as times and values up to the end; losses that a log tells of.
Says        for some classes, log-odds and the sentence that goes with them.
Is wrong    where the last look was long before the end: what happened in between is not in it.
Costs       one pass over each series.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from holdfast.domain.log_event import LogProgress

Series = Mapping[str, Sequence[tuple[float, float]]]  # By name, or by `name of`, as "disk_free_bytes /data": times and values, oldest first.

_NEARLY_ALL = 0.95
_HOT_C = 90.0
_LEAP = 10.0  # Times the middle of what it was: a loss beyond that diverges.
_LOSSES = 8  # Fewer have no trend.


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    cause: str
    log_odds: float
    because: str


def before_the_end(series: Series) -> list[Said]:
    """What measurements speak for. A class may be spoken for twice."""
    said: list[Said] = []
    for name, values in series.items():
        metric, _, of = name.partition(" ")
        finite = [(at, value) for at, value in values if math.isfinite(value)]
        if not finite:
            continue
        last, first = finite[-1][1], finite[0][1]
        where = f" of {of}" if of else ""
        said += _level(metric, last, series, of, where)
        said += _rise(metric, last - first, where)
    return said


def _level(metric: str, last: float, series: Series, of: str, where: str) -> list[Said]:
    match metric:
        case "cgroup_memory_bytes" if (limit := _last(series, "cgroup_memory_limit_bytes", of)) and last >= _NEARLY_ALL * limit:
            return [Said(cause="host_oom", log_odds=4.0, because=f"memory{where} was at {last / limit:.0%} of its limit at the last look")]
        case "host_memory_available_bytes" if (size := _last(series, "host_memory_bytes", of)) and last <= 0.02 * size:
            return [Said(cause="host_oom", log_odds=4.0, because=f"{last / size:.1%} of the machine's memory was left at the last look")]
        case "gpu_memory_used_bytes" if (size := _last(series, "gpu_memory_size_bytes", of)) and last >= 0.98 * size:
            return [Said(cause="gpu_oom", log_odds=2.5, because=f"memory of GPU {of} was at {last / size:.0%}")]
        case "disk_free_bytes" if (size := _last(series, "disk_size_bytes", of)) and last <= 0.001 * size:
            return [Said(cause="disk_full", log_odds=4.0, because=f"{last / size:.2%} of the disk{where} was free")]
        case "disk_read_only" if last > 0:
            return [Said(cause="storage_io", log_odds=3.0, because=f"the disk{where} was mounted read-only")]
        case "host_file_descriptors_ratio" if last >= _NEARLY_ALL:
            return [Said(cause="too_many_open_files", log_odds=3.0, because=f"{last:.0%} of the machine's file descriptors were open")]
        case "gpu_temperature_celsius" if last >= _HOT_C:
            return [Said(cause="gpu_thermal_power", log_odds=3.0, because=f"GPU {of} was at {last:.0f} °C")]
        case "gpu_throttled_hardware" if last > 0:
            return [Said(cause="gpu_thermal_power", log_odds=2.5, because=f"hardware slowed the clocks of GPU {of}")]
        case "gpu_remap_failed" if last > 0:
            return [Said(cause="gpu_ecc", log_odds=4.0, because=f"a row of GPU {of} could not be remapped")]
        case "not_finite" if last > 0:
            return [Said(cause="numeric_nan", log_odds=4.0, because="the newest loss or gradient norm was not finite")]
        case "peer_lost_ratio" if last >= 0.5:
            return [Said(cause="node_fail", log_odds=2.5, because=f"{last:.0%} of the questions to {of or 'another node'} went unanswered")]
        case "silent_seconds" if last >= 300:
            return [Said(cause="hang", log_odds=2.5, because=f"nothing was heard for {last:.0f} s")]
    return []


def _rise(metric: str, rise: float, where: str) -> list[Said]:
    if rise <= 0:
        return []
    match metric:
        case "host_oom_kills_total" | "cgroup_oom_kills_total":
            return [Said(cause="host_oom", log_odds=6.0, because="the kernel killed a process for memory")]
        case "gpu_ecc_uncorrected_total":
            return [Said(cause="gpu_ecc", log_odds=5.0, because=f"{rise:.0f} memory errors{where} could not be corrected")]
        case "gpu_nvlink_errors_total":
            return [Said(cause="gpu_nvlink", log_odds=2.0, because=f"{rise:.0f} NVLink errors{where}")]
        case "network_link_downs_total":
            return [Said(cause="nccl_system_error", log_odds=3.0, because=f"the link{where} went down {rise:.0f} times")]
    return []


def _last(series: Series, name: str, of: str) -> float:
    values = series.get(f"{name} {of}".strip()) or series.get(name) or ()
    return values[-1][1] if values else 0.0


def last_step(progress: Sequence[LogProgress]) -> int | None:
    """The last step that was told of."""
    return next((one.step for one in reversed(progress) if one.step is not None), None)


def first_bad_step(progress: Sequence[LogProgress]) -> int | None:
    """The first step from which on no loss was finite; where every loss that was told is finite, the last step. A loss scale that is too high makes single
    losses infinite, and training goes on."""
    bad: dict[tuple[str, int | None], LogProgress] = {}
    for one in progress:
        writer = (one.path, one.rank)
        if one.loss is not None and math.isfinite(one.loss):
            bad.pop(writer, None)
        elif one.loss is not None and one.step is not None:
            bad.setdefault(writer, one)
    return min((one.step for one in bad.values() if one.step is not None), default=last_step(progress))


def of_losses(progress: Sequence[LogProgress]) -> list[Said]:
    """What the losses of a log speak for: the last one is not finite, or far above where they were."""
    losses = [one.loss for one in progress if one.loss is not None]
    if not losses:
        return []
    if not math.isfinite(losses[-1]):
        if all(not math.isfinite(loss) for loss in losses):
            return [Said(cause="numeric_nan", log_odds=2.5, because="every loss that was told is not finite")]
        return [Said(cause="numeric_nan", log_odds=4.0, because=f"the last loss is {losses[-1]}")]
    finite = [abs(loss) for loss in losses if math.isfinite(loss)]
    if len(finite) >= _LOSSES:
        usual = median(finite[: len(finite) // 2])
        end = median(finite[-3:])
        if usual > 0 and end > _LEAP * usual:
            return [Said(cause="loss_divergence", log_odds=3.5, because=f"the loss ends at {end:.3g} where {usual:.3g} was usual")]
    return []
