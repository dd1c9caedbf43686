"""A process that does nothing but run the probes, as an agent would: `probes_inside.py SECONDS FAKE_GPUS DIRECTORY PID…`. Prints what it cost as JSON.

The first seconds, in which everything is opened, are not counted: an agent runs for days.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from holdfast.observe.default import default_probes
from holdfast.observe.fake_nvml import FakeNvml
from holdfast.observe.peers import Peers
from holdfast.observe.runner import Runner
from holdfast.observe.watched import Watched

WARM_S = 5.0


def main() -> None:
    seconds, fake_gpus, directory = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    watched = Watched()
    for rank, pid in enumerate(sys.argv[4:]):
        watched.add(rank, int(pid))
    nvml = FakeNvml(fake_gpus) if fake_gpus else None
    probes = default_probes(node="node-0", watched=watched, peers=Peers(), disks=[Path("/dev/shm"), Path("/tmp")], written=[directory], nvml=nvml)
    each_s: list[float] = []
    signals, said = 0, set()
    with Runner(probes, node="node-0") as runner:
        taken_until(runner, time.monotonic() + WARM_S)
        before, began = runner.costs(), time.monotonic()
        while time.monotonic() < began + seconds:
            cpu_s, at = time.process_time(), time.monotonic()
            time.sleep(1.0)
            taken = runner.take()
            each_s.append((time.process_time() - cpu_s) / (time.monotonic() - at))
            signals += len(taken.signals)
            said |= {signal.metric for signal in taken.signals}
            assert not taken.findings, taken.findings
        after, took_s = runner.costs(), time.monotonic() - began
    by_probe = {
        name: {"looks": cost.looks - before[name].looks, "cpu_ratio": (cost.cpu_s - before[name].cpu_s) / took_s, "slowest_s": cost.slowest_s}
        for name, cost in after.items()
    }
    print(json.dumps({"cpu_ratio": each_s, "memory_bytes": resident_bytes(), "by_probe": by_probe, "signals": signals, "metrics": sorted(said)}))


def taken_until(runner: Runner, deadline: float) -> None:
    while time.monotonic() < deadline:
        time.sleep(0.5)
        runner.take()


def resident_bytes() -> int:
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):  # The most it ever was.
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
