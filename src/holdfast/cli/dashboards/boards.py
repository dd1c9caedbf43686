"""The dashboards: a job at a glance, its nodes, its GPUs, and the training from inside."""

from __future__ import annotations

from typing import Final

from holdfast.cli.dashboards.panels import Board, Panel, Query, grown, newest, of_job, over_median, rate, ratio, written
from holdfast.cli.spark import PARTS


def _chart(title: str, *queries: Query, width: int = 12, stacked: bool = False) -> Panel:
    return Panel(title=title, queries=queries, width=width, stacked=stacked)


def _stat(title: str, query: Query, width: int = 4) -> Panel:
    return Panel(title=title, queries=(query,), kind="stat", width=width)


_DIGESTS = "holdfast_parameter_digest{node}"
_DIGEST_STEPS = "holdfast_parameter_digest_step{node}"
_AGREE = (
    f"(max by (holdfast_job) ({_DIGESTS}) - min by (holdfast_job) ({_DIGESTS})) "
    f"and on (holdfast_job) (max by (holdfast_job) ({_DIGEST_STEPS}) == min by (holdfast_job) ({_DIGEST_STEPS}))"
)

_INCIDENTS = "max by (holdfast_job, kind) (holdfast_incidents_total{job}{when})"
# A kind is not there before its first incident, which `increase` would not see. The count is the journal's and begins anew with no process.
_NEW_INCIDENTS = f"({_INCIDENTS} - ({_INCIDENTS.replace('{when}', ' offset 1h')} or {_INCIDENTS} * 0)) > 0".replace("{when}", "")

OVERVIEW = Board(
    uid="holdfast-overview", title="Holdfast: job",
    rows=(
        ("Now", (
            _stat("Step", of_job("min", "step")), _stat("Done", newest("job_progress_ratio")), _stat("Ends in", newest("job_eta_seconds")),
            _stat("Goodput", newest("job_goodput_ratio")), _stat("Restarts", newest("job_restarts_total")),
            _stat("Open incidents", newest("job_incidents_open")),
        )),
        ("Training", (
            _chart("Loss", of_job("avg", "loss", "training"), of_job("avg", "validation_loss", "validation")),
            _chart("Time of a step", of_job("avg", "step_seconds", "mean"), of_job("max", "step_seconds", "slowest rank")),
            _chart("Where a step's time goes", *(of_job("avg", f"step_{part}_seconds", part) for part in PARTS), stacked=True),
            _chart("Samples and tokens a second", of_job("max", "samples_per_second", "samples"), of_job("max", "tokens_per_second", "tokens")),
        )),
        ("What went wrong", (
            _chart("Open incidents", written("holdfast_incidents_open{job}", "{{severity}}"), stacked=True),
            _chart("Incidents in the last hour, by what they began with", written(_NEW_INCIDENTS, "{{kind}}"), stacked=True),
            Panel(
                title="Alerts that fire", kind="table",
                queries=(written('ALERTS{alertstate="firing", holdfast_job=~"$job"}', "{{alertname}}"),),
            ),
            _chart("Goodput", newest("job_goodput_ratio")),
            _chart("Steps finished, and saved for good", of_job("min", "step", "finished"), newest("checkpoint_step")),
            _chart("Generation", newest("job_generation")),
        )),
        ("Holdfast itself", (
            Panel(title="Versions", kind="table", queries=(written("holdfast_build_info{job}", "{{version}}"),)),
            _chart("Agents: cores", newest("agent_cpu_ratio")),
            _chart("Agents: memory", newest("agent_memory_bytes")),
            _chart("Series left out", written("holdfast_series_left_out{job}", "{{holdfast_job}}")),
        )),
    ),
)  # fmt: skip

NODES = Board(
    uid="holdfast-nodes", title="Holdfast: nodes",
    rows=(
        ("Cores and memory", (
            _chart("Cores in use", newest("host_cpu_ratio")), _chart("Load for each core", newest("host_load")),
            _chart("Memory that is available", ratio("host_memory_available_bytes", "host_memory_bytes")),
            _chart("Swapped pages", rate("host_swapped_pages_total")),
            _chart("Tasks wait for a core", newest("host_cpu_pressure_ratio"), width=8),
            _chart("All wait for memory", newest("host_memory_pressure_ratio"), width=8),
            _chart("All wait for a disk", newest("host_io_pressure_ratio"), width=8), _chart("Killed for memory, in 10 minutes", grown("host_oom_kills_total")),
        )),
        ("Disks", (
            _chart("Space that is free", ratio("disk_free_bytes", "disk_size_bytes")), _chart("Inodes that are free", newest("disk_inodes_free_ratio")),
            _chart("A small write, synced and read back", newest("disk_write_seconds")),
            _chart("Writes that failed, in 10 minutes", grown("disk_errors_total")),
        )),
        ("Network", (
            _chart("Received", rate("network_received_bytes_total")), _chart("Sent", rate("network_sent_bytes_total")),
            _chart("Packets with errors", rate("network_errors_total")), _chart("Packets dropped", rate("network_drops_total")),
            _chart("Segments sent again, of those sent", written(
                "rate(holdfast_host_retransmits_total{node}[$__rate_interval]) / rate(holdfast_host_segments_total{node}[$__rate_interval])", "{{node}}",
                "ratio",
            )),
            _chart("Links that are up", newest("network_up")),
        )),
        ("Machine", (
            _chart("The clock moved by", newest("host_clock_offset_seconds")), _chart("Open files, of the limit", newest("host_file_descriptors_ratio")),
            _chart("Errors in the kernel's log, in 10 minutes", grown("host_kernel_errors_total")), _chart("The slowest probe", newest("probe_seconds")),
            _chart("Probes that did not answer, in 10 minutes", grown("probe_timeouts_total")),
        )),
    ),
)  # fmt: skip

GPUS = Board(
    uid="holdfast-gpus", title="Holdfast: GPUs",
    rows=(
        ("Work", (
            _chart("Busy", newest("gpu_utilisation_ratio")), _chart("Memory in use", ratio("gpu_memory_used_bytes", "gpu_memory_size_bytes")),
            _chart("Clock, of the highest", ratio("gpu_sm_clock_hertz", "gpu_sm_clock_max_hertz")), _chart("GPUs the driver shows", newest("gpus")),
        )),
        ("Heat and power", (
            _chart("Temperature", newest("gpu_temperature_celsius")), _chart("Temperature of the memory", newest("gpu_memory_temperature_celsius")),
            _chart("Power, of the limit", ratio("gpu_power_watts", "gpu_power_limit_watts")), _chart("Power", newest("gpu_power_watts")),
            _chart("Held back by heat", newest("gpu_throttled_thermal"), width=8),
            _chart("Held back by the power limit", newest("gpu_throttled_power"), width=8),
            _chart("Held back by the hardware", newest("gpu_throttled_hardware"), width=8),
        )),
        ("Errors", (
            _chart("XID errors, in 10 minutes", grown("gpu_xid_total")),
            _chart("Memory errors not corrected, in 10 minutes", grown("gpu_ecc_uncorrected_total")),
            _chart("Memory errors corrected, in an hour", grown("gpu_ecc_corrected_total", "1h")),
            _chart("Rows: remapped in its life, and waiting for a reset", newest("gpu_rows_remapped_total"), newest("gpu_remap_pending")),
            _chart("PCIe packets sent again, in 10 minutes", grown("gpu_pcie_replays_total")),
            _chart("NVLink errors, in 10 minutes", grown("gpu_nvlink_errors_total")),
            _chart("PCIe lanes, of those there are", ratio("gpu_pcie_width", "gpu_pcie_width_max")),
        )),
    ),
)  # fmt: skip

TRAINING = Board(
    uid="holdfast-training", title="Holdfast: training",
    rows=(
        ("Pace", (
            _chart("Time of a step", newest("step_seconds")), _chart("Compute, over the median of all ranks", over_median("step_compute_seconds")),
            _chart("Waiting for data", newest("step_data_seconds")), _chart("Compute", newest("step_compute_seconds")),
            _chart("Communication, and waiting in it", newest("step_communication_seconds")), _chart("Optimizer", newest("step_optimizer_seconds")),
            _chart("Saving", newest("step_save_seconds")), _chart("Share of a step that waits for data", ratio("step_data_seconds", "step_seconds")),
        )),
        ("Learning", (
            _chart("Loss", newest("loss")), _chart("Validation loss", newest("validation_loss")), _chart("Accuracy", newest("accuracy_ratio")),
            _chart("Learning rate", newest("learning_rate")), _chart("Norm of the gradient", newest("gradient_norm")),
            _chart("Norm of the parameters", newest("parameter_norm")),
            _chart("Norm of the update, of the parameters'", ratio("update_norm", "parameter_norm")),
            _chart("NaN or infinite", newest("not_finite")), _chart("Replicas: difference of the digests (0: they agree)", written(_AGREE, "{{holdfast_job}}")),
            _chart("Saves that found no buffer, in 10 minutes", grown("saves_skipped_total")),
        )),
        ("Ranks", (
            _chart("Silent for", newest("silent_seconds")), _chart("In its phase for", newest("phase_seconds")), _chart("Cores", newest("worker_cpu_ratio")),
            _chart("Memory", newest("worker_memory_bytes")), _chart("Read from storage", rate("worker_read_bytes_total")),
            _chart("Written to storage", rate("worker_written_bytes_total")), _chart("Printed", rate("worker_log_bytes_total")),
            _chart("Held back by the CPU quota", rate("cgroup_throttled_seconds_total")),
            _chart("Page faults that waited for a disk", rate("worker_major_faults_total")),
            _chart("Open files", newest("worker_file_descriptors")),
        )),
    ),
)  # fmt: skip

BOARDS: Final = (OVERVIEW, NODES, GPUS, TRAINING)
