"""Probes: what watching a node costs, and on a machine with a GPU, whether its readings make sense.

Agent: the whole of it, in a job of 8 workers who train under `guard`; what it uses of one core over all that time, and the most memory it ever had. Also beside
workers who save every ten seconds, which is no longer watching: it makes what they save durable.

Probes alone: a fresh process runs every probe at its own pace, as an agent does, beside 8 workers with two processes below each. What it uses of one core is
measured second by second, after the first five; and the most memory it ever had. Once with the GPUs that are here (or none), once with eight pretended ones,
so that the share of Python in eight GPUs is seen also where there is none.

GPU: every group of readings of every GPU is read through NVML, timed, and held against what is physically possible. What a GPU does not support is named.

`--record FILE` also writes a recording of all probes, for `--record-seconds`: a third of the time nothing runs, a third a load of torch on the first GPU (where
torch with CUDA is there), a third nothing again.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, median, say
from harness.processes import Launched, cpu_s, wait_until

from holdfast.observe.default import default_probes
from holdfast.observe.nvml import GROUPS, Library, NvmlError
from holdfast.observe.recorded import read, record, this_machine
from holdfast.observe.watched import Watched

WORKERS = 8
BELOW_EACH = 2
SAVE_EVERY = 200
CPU_RATIO_MAX = 0.01
MEMORY_BYTES_MAX = 80e6
INSIDE = Path(__file__).parent / "scripts" / "probes_inside.py"

# A worker that mostly waits, as one that waits for its GPU does, and two that load data for it.
WORKER = f"""
import subprocess, sys, threading, time
below = [subprocess.Popen([sys.executable, "-c", "import sys, time\\nwhile True: time.sleep(0.05)"]) for _ in range({BELOW_EACH})]
threads = [threading.Thread(target=time.sleep, args=(1e6,), daemon=True) for _ in range(8)]
for thread in threads: thread.start()
ballast = bytearray(32 * 2**20)
print("ready", flush=True)
while True: time.sleep(0.02)
"""

# Metric to what is physically possible. Generous: it is to find wrong units and wrong fields, not wrong GPUs.
RANGES: dict[str, tuple[float, float]] = {
    "gpu_temperature_celsius": (5, 120),
    "gpu_memory_temperature_celsius": (5, 130),
    "gpu_power_watts": (3, 2500),
    "gpu_power_limit_watts": (20, 2500),
    "gpu_sm_clock_hertz": (50e6, 5e9),
    "gpu_sm_clock_max_hertz": (500e6, 5e9),
    "gpu_memory_clock_hertz": (50e6, 20e9),
    "gpu_utilisation_ratio": (0, 1),
    "gpu_memory_used_bytes": (0, 1e12),
    "gpu_memory_size_bytes": (1e9, 1e12),
    "gpu_throttled_thermal": (0, 1),
    "gpu_throttled_power": (0, 1),
    "gpu_throttled_hardware": (0, 1),
    "gpu_remap_pending": (0, 1),
    "gpu_remap_failed": (0, 1),
    "gpu_pcie_width": (1, 32),
    "gpu_pcie_width_max": (1, 32),
    "gpu_processes": (0, 1000),
    "gpu_ecc_corrected_total": (0, 1e6),
    "gpu_ecc_uncorrected_total": (0, 1e3),
    "gpu_rows_remapped_total": (0, 1024),
    "gpu_pages_retired_total": (0, 64),
    "gpu_pcie_replays_total": (0, 1e6),
    "gpu_nvlink_errors_total": (0, 1e9),
}


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--record", type=Path)
    wanted, sys.argv[1:] = own.parse_known_args()
    chosen = arguments(
        __doc__ or "",
        seconds=(120, 30, "seconds that the cost is measured for, twice"),
        record_seconds=(180, 60, "seconds of the recording, where one is asked for"),
    )
    report = Report("Probes: what watching costs")
    gpus = gpu_readings(report)
    with scratch_directory(keep=chosen.keep) as scratch:
        share, memory_bytes = agent(scratch, chosen.seconds, save_every=0)
        saving, _ = agent(scratch, chosen.seconds, save_every=SAVE_EVERY)
    report.note(f"An agent with {WORKERS} workers who save every {SAVE_EVERY} steps of 50 ms uses {100 * saving:.2f} % of one core.")
    report.bar(f"an agent with {WORKERS} workers: share of one core", 100 * share, "%", under=100 * CPU_RATIO_MAX)
    report.bar(f"an agent with {WORKERS} workers: memory, at most", memory_bytes / 1e6, "MB", under=MEMORY_BYTES_MAX / 1e6)
    with scratch_directory(keep=chosen.keep) as scratch, workers(scratch) as pids:
        cost(report, scratch, pids, chosen.seconds, fake_gpus=0, name=f"{WORKERS} workers, {gpus} GPUs")
        cost(report, scratch, pids, chosen.seconds, fake_gpus=8, name=f"{WORKERS} workers, 8 pretended GPUs")
        if wanted.record is not None:
            recording(report, scratch, pids, wanted.record, chosen.record_seconds)
    report.finish(chosen)


# Cost.


def agent(scratch: Path, seconds: int, *, save_every: int) -> tuple[float, int]:
    """Its share of one core, and the most memory it ever had, in bytes."""
    say(f"an agent with {WORKERS} workers{f' who save every {save_every} steps' if save_every else ''}: {seconds} s")
    with Job(scratch, f"eight-{save_every}", "eight.py", str(save_every), nproc=WORKERS) as job:
        job.wait_for_steps(SAVE_EVERY + 20)
        (process,) = job.find("holdfast.agent")
        used_s, began = cpu_s(process.pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_s(process.pid) - used_s) / (time.monotonic() - began)
        most = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert most is not None
    return share, int(most[1]) * 1024


@contextmanager
def workers(scratch: Path) -> Iterator[list[int]]:
    launched: list[Launched] = []
    try:
        for rank in range(WORKERS):
            launched.append(Launched([sys.executable, "-c", WORKER], log=scratch / f"worker-{rank}.log", cwd=scratch))
        wait_until(lambda: all("ready" in one.log.read_text() for one in launched), within_s=60, what="the workers")
        yield [one.process.pid for one in launched]
    finally:
        for one in launched:
            one.sweep()


def cost(report: Report, scratch: Path, pids: list[int], seconds: int, *, fake_gpus: int, name: str) -> None:
    say(f"{name}: {seconds} s of watching")
    command = [sys.executable, str(INSIDE), str(seconds), str(fake_gpus), str(scratch), *map(str, pids)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 120)
    if done.returncode:
        report.note(f"{name}: the process that runs the probes failed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}")
        report.bar(f"{name}: share of one core", None, "%", under=100 * CPU_RATIO_MAX)
        return
    seen = json.loads(done.stdout)
    shares = [100 * one for one in seen["cpu_ratio"]]
    report.series(f"{name}: share of one core", "%", shares, f"mean {statistics.fmean(shares):.3f} %, {seen['signals'] / len(shares):.0f} signals a second")
    for probe, used in sorted(seen["by_probe"].items(), key=lambda one: -one[1]["cpu_ratio"]):
        report.raw[f"{name}: {probe}"] = used
    dearest = sorted(seen["by_probe"].items(), key=lambda one: -one[1]["cpu_ratio"])[:5]
    report.note(f"{name}: " + ", ".join(f"{probe} {100 * used['cpu_ratio']:.3f} % ({used['looks']} looks)" for probe, used in dearest))
    report.raw[f"{name}: metrics"] = seen["metrics"]
    report.bar(f"{name}: share of one core, mean", statistics.fmean(shares), "%", under=100 * CPU_RATIO_MAX)
    report.bar(f"{name}: memory of the process, at most", seen["memory_bytes"] / 1e6, "MB", under=MEMORY_BYTES_MAX / 1e6)


# GPUs.


def gpu_readings(report: Report, rounds: int = 20) -> int:
    """Read all groups of all GPUs; how many GPUs there are."""
    library = Library()
    try:
        found = library.start()
    except NvmlError as error:
        report.note(f"No GPU is here ({error}): its readings were left out.")
        return 0
    report.note(f"driver {found.driver}; " + "; ".join(f"GPU {gpu.index}: {gpu.model}, {gpu.uuid}, {gpu.pci}" for gpu in found.gpus))
    for index, error in found.refused:
        report.note(f"GPU {index} cannot be opened: {error}")
    outside = 0
    for gpu in found.gpus:
        values: dict[str, float] = {}
        absent: dict[str, str] = {}
        for group in GROUPS:
            took: list[float] = []
            for _ in range(rounds):
                began = time.perf_counter()
                try:
                    values |= library.read(gpu, group)
                except NvmlError as error:
                    absent[group] = str(error)
                    break
                except Exception as error:  # A binding that does not fit its driver: named, and the other groups are still read.
                    absent[group] = f"{type(error).__name__}: {error}"
                    outside += 1
                    break
                took.append(1e3 * (time.perf_counter() - began))
            if took:
                report.series(f"GPU {gpu.index}: {group}", "ms", took, f"read every {GROUPS[group]:g} s")
        for name, value in values.items():
            low, high = RANGES.get(name, (0.0, float("inf")))
            if not low <= value <= high:
                outside += 1
                report.note(f"GPU {gpu.index}: {name} is {value:g}, expected {low:g} to {high:g}")
        if values.get("gpu_memory_used_bytes", 0) > values.get("gpu_memory_size_bytes", float("inf")):
            outside += 1
            report.note(f"GPU {gpu.index}: more memory is in use than there is")
        say(f"GPU {gpu.index} ({gpu.model}): " + ", ".join(f"{name} {value:g}" for name, value in sorted(values.items())))
        say(f"GPU {gpu.index} does not have: " + ("; ".join(f"{group} ({why})" for group, why in absent.items()) or "nothing is missing"))
        report.raw[f"GPU {gpu.index}"] = {"model": gpu.model, "values": values, "absent": absent}
        report.note(f"GPU {gpu.index}: {len(values)} metrics, absent: {', '.join(absent) or 'none'}")
    try:
        report.note(f"XID events: listened for; {len(library.xids())} were waiting")
    except NvmlError as error:
        report.note(f"XID events cannot be listened for: {error}")
    library.stop()
    report.bar("readings that failed or are outside what is possible", float(outside), "readings", at_most=0)
    report.bar("GPUs that can be read", float(len(found.gpus)), "GPUs", at_least=1)
    return len(found.gpus)


# A recording.


def recording(report: Report, scratch: Path, pids: list[int], file: Path, seconds: int) -> None:
    say(f"recording {seconds} s into {file}")
    watched = Watched()
    for rank, pid in enumerate(pids):
        watched.add(rank, pid)
    stop = threading.Event()
    load = threading.Thread(target=burn, args=(stop, seconds / 3, 2 * seconds / 3, report), daemon=True)
    load.start()
    file.parent.mkdir(parents=True, exist_ok=True)
    machine: dict[str, Any] = this_machine() | {"gpus": gpu_models()}
    rows = record(default_probes(node="node-0", watched=watched, disks=[Path("/dev/shm")], written=[scratch]), seconds, file, machine=machine)
    stop.set()
    load.join(30)
    made = read(file)
    names = {signal.metric for row in made.rows for signal in row.signals}
    busy = [signal.value for row in made.rows for signal in row.signals if signal.metric == "gpu_utilisation_ratio"]
    said = f"; GPU {min(busy):.0%} to {max(busy):.0%} busy" if busy else ""
    report.note(f"recorded {rows} rows, {len(names)} metrics, {file.stat().st_size / 1e3:.0f} kB{said}")
    report.raw["recording"] = {"rows": rows, "metrics": sorted(names), "median busy": median(busy)}


def gpu_models() -> list[str]:
    library = Library()
    try:
        found = library.start()
    except NvmlError:
        return []
    library.stop()
    return [gpu.model for gpu in found.gpus]


def burn(stop: threading.Event, begin_s: float, end_s: float, report: Report) -> None:
    """Products of matrices on the first GPU, from one moment to another, counted from now."""
    began = time.monotonic()
    try:
        import torch

        if not torch.cuda.is_available():
            report.note("torch has no CUDA here: the recording is of a GPU at rest, if there is one.")
            return
        stop.wait(max(0.0, begin_s - (time.monotonic() - began)))
        one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        while time.monotonic() - began < end_s and not stop.is_set():
            for _ in range(20):
                torch.mm(one, one)
            torch.cuda.synchronize()
        del one
        torch.cuda.empty_cache()
    except Exception as error:  # Whatever keeps torch from working: the recording is made all the same.
        report.note(f"no load could be run: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
