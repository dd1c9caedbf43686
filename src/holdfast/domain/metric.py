"""Metrics: the name, unit and meaning of every number that is watched. One list, from which rules, `/metrics`, dashboards and tables are made.

Names follow Prometheus' conventions: base units, unit last, `_total` for what only grows, `_ratio` for 0 to 1. Outside they carry the prefix `holdfast_`.
What a script reports under a name of its own becomes `user_<name>`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "holdfast_"
USER_PREFIX = "user_"


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"  # Only grows; starts again at 0 when its owner does.


class Scope(StrEnum):
    """What a metric is measured of: the label that tells one series from the next, beside `job` and `node`."""

    JOB = "job"
    NODE = "node"
    RANK = "rank"
    GPU = "gpu"
    DISK = "disk"  # A mounted directory that matters: checkpoints, state, shared memory, temporary files.
    INTERFACE = "interface"
    PEER = "peer"  # Another node, as this one reaches it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    scope: Scope
    unit: str  # "s", "bytes", "ratio", "celsius", "watts", "hertz", "steps", … or "" for a plain count.
    help: str
    kind: Kind = Kind.GAUGE

    @property
    def exported(self) -> str:
        return PREFIX + self.name


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Series:
    """One metric of one thing. `of` is the value of the scope's label: "3" for rank 3, "/dev/shm" for a disk, empty for a node or a job."""

    metric: str
    node: str = ""
    of: str = ""


def _gauges(scope: Scope, *rows: tuple[str, str, str]) -> list[Metric]:
    return [Metric(name=name, scope=scope, unit=unit, help=help) for name, unit, help in rows]


def _counters(scope: Scope, *rows: tuple[str, str, str]) -> list[Metric]:
    return [Metric(name=name, scope=scope, unit=unit, help=help, kind=Kind.COUNTER) for name, unit, help in rows]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        # Training, as each rank says it.
        *_gauges(
            Scope.RANK,
            ("step", "steps", "Optimizer steps finished since the job began."),
            ("epoch", "", "Epochs done, with the part of the one that is under way."),
            ("step_seconds", "s", "Wall time of a step, over the last look."),
            ("step_data_seconds", "s", "Part of a step spent waiting for data."),
            ("step_compute_seconds", "s", "Part of a step spent in forward and backward, without waiting for other ranks."),
            ("step_communication_seconds", "s", "Part of a step spent in collectives or waiting for other ranks in them."),
            ("step_optimizer_seconds", "s", "Part of a step spent in the optimizer."),
            ("step_save_seconds", "s", "Part of a step spent saving."),
            ("loss", "", "Training loss, as reported: the mean since the last look."),
            ("validation_loss", "", "Validation loss, as reported."),
            ("accuracy_ratio", "ratio", "Accuracy, as reported."),
            ("gradient_norm", "", "Norm of the gradient, as reported: the mean since the last look."),
            ("parameter_norm", "", "Norm of the parameters."),
            ("update_norm", "", "Norm of the last change of the parameters."),
            ("learning_rate", "", "Learning rate of the first group of parameters."),
            ("parameter_digest", "", "Checksum of the parameters this rank holds alike with others, cut to 48 bits: equal on replicas that agree."),
            ("parameter_digest_step", "steps", "The step the checksum was taken at."),
            ("samples_per_second", "1/s", "Samples this job consumes a second."),
            ("tokens_per_second", "1/s", "Tokens this job consumes a second, where the script reports tokens."),
            ("samples_left_out", "", "Samples of the rank that could not be read, and that the script allowed to be left out."),
            ("silent_seconds", "s", "Time since the rank's last beat."),
            ("phase_seconds", "s", "Time the rank has been in its phase."),
            ("not_finite_since_step", "steps", "The step since which the loss is not finite; absent while it is."),
            ("finite_until_step", "steps", "The last step before that whose loss was finite, where one was; absent while it is."),
            ("not_finite", "", "1 while the newest loss or gradient norm is NaN or infinite, else 0."),
            ("worker_cpu_ratio", "ratio", "Cores the rank's processes use."),
            ("worker_memory_bytes", "bytes", "Resident memory of the rank's processes."),
            ("worker_threads", "", "Threads of the rank's processes."),
            ("worker_file_descriptors", "", "Open files of the rank's process."),
            ("worker_process_state", "", "State of the process: 0 running, 1 sleeping, 2 waiting for a device, 3 stopped, 4 dead."),
            ("cgroup_memory_bytes", "bytes", "Memory charged to the rank's control group."),
            ("cgroup_memory_limit_bytes", "bytes", "Its limit; absent when there is none."),
        ),
        *_counters(
            Scope.RANK,
            ("not_finite_total", "", "Times the newest loss or gradient norm turned NaN or infinite."),
            ("saves_skipped_total", "", "Saves that found no free buffer."),
            ("batches_read_again_total", "", "Batches that could not be read at once, and were read again."),
            ("worker_read_bytes_total", "bytes", "Bytes the rank's processes read from storage."),
            ("worker_written_bytes_total", "bytes", "Bytes the rank's processes wrote to storage."),
            ("worker_log_bytes_total", "bytes", "Bytes the rank printed."),
            ("communicated_bytes_total", "bytes", "Bytes the rank handed to collectives."),
            ("cgroup_throttled_seconds_total", "s", "Time the rank's control group was held back by its CPU quota."),
            ("cgroup_oom_kills_total", "", "Processes of the rank's control group killed for memory."),
            ("worker_major_faults_total", "", "Page faults of the rank's process that had to wait for a disk."),
        ),
        # The job.
        *_gauges(
            Scope.JOB,
            ("job_progress_ratio", "ratio", "Steps finished over steps wanted."),
            ("job_eta_seconds", "s", "Expected time until the last step."),
            ("job_goodput_ratio", "ratio", "Productive time over wall time."),
            ("job_generation", "", "The gang's generation."),
            ("job_incidents_open", "", "Incidents that are open."),
            ("checkpoint_age_seconds", "s", "Time since the newest durable checkpoint's step was finished."),
            ("checkpoint_interval_seconds", "s", "Time from one save to the next, as it was chosen or asked for."),
            ("checkpoint_step", "steps", "The newest durable checkpoint's step."),
            ("control_cycle_seconds", "s", "Time control took for its last look at everything."),
        ),
        *_counters(
            Scope.JOB,
            ("job_restarts_total", "", "Generations after the first."),
            ("findings_total", "", "Findings made."),
        ),
        # The host.
        *_gauges(
            Scope.NODE,
            ("host_cpu_ratio", "ratio", "Share of all cores in use."),
            ("host_load", "", "Runnable and waiting tasks, averaged over a minute, per core."),
            ("host_cpu_pressure_ratio", "ratio", "Share of the last 10 s in which some task waited for a core."),
            ("host_memory_pressure_ratio", "ratio", "Share of the last 10 s in which every task waited for memory."),
            ("host_io_pressure_ratio", "ratio", "Share of the last 10 s in which every task waited for a disk."),
            ("host_memory_available_bytes", "bytes", "Memory that can be had without swapping."),
            ("host_memory_bytes", "bytes", "Memory there is."),
            ("host_swap_used_bytes", "bytes", "Swap in use."),
            ("host_file_descriptors_ratio", "ratio", "Open files over the limit of the machine."),
            ("host_clock_offset_seconds", "s", "How far the wall clock has moved against the monotonic one since the last look; a jump is said three times."),
            ("host_clock_difference_seconds", "s", "How far the wall clock is ahead of control's; control measures it."),
            ("probe_seconds", "s", "Time the slowest probe took."),
            ("agent_cpu_ratio", "ratio", "Cores the agent uses."),
            ("agent_memory_bytes", "bytes", "Resident memory of the agent."),
            ("gpus", "", "GPUs the driver shows."),
            ("saves_failing", "", "1 while the newest save could not be written, else 0."),
        ),
        *_counters(
            Scope.NODE,
            ("host_oom_kills_total", "", "Processes the kernel killed for memory."),
            ("host_swapped_pages_total", "", "Pages swapped in or out."),
            ("saves_failed_total", "", "Times that a save of this node could not be written."),
            ("host_retransmits_total", "", "TCP segments sent again."),
            ("host_segments_total", "", "TCP segments sent."),
            ("host_kernel_errors_total", "", "Lines of the kernel log at error or above."),
            ("probe_timeouts_total", "", "Probes that did not answer in their time."),
        ),
        *_gauges(
            Scope.DISK,
            ("disk_free_bytes", "bytes", "Space that is free."),
            ("disk_size_bytes", "bytes", "Space there is."),
            ("disk_save_needs_bytes", "bytes", "Space the next save takes, as the newest one did, or one under way still takes."),
            ("disk_inodes_free_ratio", "ratio", "Share of the inodes that is free."),
            ("disk_write_seconds", "s", "Time a small file took to be written, synced, read back and compared."),
            ("disk_read_only", "", "1 while it is mounted read-only, else 0."),
        ),
        *_counters(Scope.DISK, ("disk_errors_total", "", "Times that writing and reading back a small file failed for another reason than a full disk.")),
        *_gauges(Scope.INTERFACE, ("network_up", "", "1 while the link is up, else 0.")),
        *_counters(
            Scope.INTERFACE,
            ("network_received_bytes_total", "bytes", "Bytes received."),
            ("network_sent_bytes_total", "bytes", "Bytes sent."),
            ("network_errors_total", "", "Packets with errors, either way."),
            ("network_drops_total", "", "Packets dropped, either way."),
            ("network_link_downs_total", "", "Times the link went down since the machine came up."),
        ),
        *_gauges(
            Scope.PEER,
            ("peer_latency_seconds", "s", "Time another node's agent took to answer."),
            ("peer_lost_ratio", "ratio", "Share of the last questions another node's agent did not answer."),
        ),
        # GPUs.
        *_gauges(
            Scope.GPU,
            ("gpu_temperature_celsius", "celsius", "Temperature of the GPU."),
            ("gpu_memory_temperature_celsius", "celsius", "Temperature of its memory."),
            ("gpu_power_watts", "watts", "Power drawn."),
            ("gpu_power_limit_watts", "watts", "Power it may draw."),
            ("gpu_sm_clock_hertz", "hertz", "Clock of the multiprocessors."),
            ("gpu_sm_clock_max_hertz", "hertz", "The highest it can be."),
            ("gpu_memory_clock_hertz", "hertz", "Clock of the memory."),
            ("gpu_utilisation_ratio", "ratio", "Share of the time in which a kernel ran."),
            ("gpu_memory_used_bytes", "bytes", "Memory in use."),
            ("gpu_memory_size_bytes", "bytes", "Memory there is."),
            ("gpu_throttled_thermal", "", "1 while clocks are held down by heat, else 0."),
            ("gpu_throttled_power", "", "1 while clocks are held down by the power limit, else 0."),
            ("gpu_throttled_hardware", "", "1 while hardware slows the clocks (power brake, over-temperature), else 0."),
            ("gpu_remap_pending", "", "1 when a row waits to be remapped at the next reset, else 0."),
            ("gpu_remap_failed", "", "1 when a row could not be remapped, else 0."),
            ("gpu_pcie_width", "", "PCIe lanes in use."),
            ("gpu_pcie_width_max", "", "PCIe lanes it can use."),
            ("gpu_processes", "", "Processes that use it."),
        ),
        *_counters(
            Scope.GPU,
            ("gpu_ecc_corrected_total", "", "Memory errors corrected since the driver was loaded."),
            ("gpu_ecc_uncorrected_total", "", "Memory errors that could not be corrected since the driver was loaded."),
            ("gpu_rows_remapped_total", "", "Rows remapped in its life."),
            ("gpu_pages_retired_total", "", "Pages retired in its life."),
            ("gpu_pcie_replays_total", "", "PCIe packets sent again."),
            ("gpu_nvlink_errors_total", "", "NVLink replay, recovery and checksum errors, all links together."),
            ("gpu_xid_total", "", "XID errors the driver reported since the agent started: edges, not the last one for ever."),
        ),
    )
}  # fmt: skip


def user_metric(name: str, unit: str = "") -> Metric:
    """What a script reports under a name of its own."""
    return Metric(name=USER_PREFIX + name, scope=Scope.RANK, unit=unit, help=f"Reported by the script as {name!r}.")
