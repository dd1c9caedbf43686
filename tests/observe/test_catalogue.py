"""One catalogue: what the probes say is in it, what it has of the machine is said by a probe, and the page lists the same."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from observe.seeing import Hands, machine, values

from holdfast.domain.metric import METRICS, Kind, Metric, Scope
from holdfast.domain.signal import Signal
from holdfast.observe.cgroup import Cgroups
from holdfast.observe.clock import Clock
from holdfast.observe.cpu import Cpu
from holdfast.observe.default import default_probes
from holdfast.observe.fake_nvml import FakeNvml
from holdfast.observe.memory import Memory
from holdfast.observe.network import Network
from holdfast.observe.own import Own
from holdfast.observe.peers import Peers
from holdfast.observe.probe import Probe, Seen
from holdfast.observe.runner import Runner
from holdfast.observe.watched import Watched

ROOT = Path(__file__).resolve().parents[2]
ROOM = ROOT / "src" / "holdfast" / "observe"
OF_WORKERS = ("worker_", "cgroup_")
SAVING = {"saves_failing", "saves_failed_total", "disk_save_needs_bytes"}  # The agent knows what became of saves.
ELSEWHERE = {"worker_log_bytes_total", "host_clock_difference_seconds", *SAVING}  # It reads what ranks print; control compares clocks.


def ours() -> list[Metric]:
    """What this room is to say."""
    machine = (Scope.NODE, Scope.DISK, Scope.INTERFACE, Scope.PEER, Scope.GPU)
    return [metric for name, metric in METRICS.items() if (metric.scope in machine or name.startswith(OF_WORKERS)) and name not in ELSEWHERE]


def row(metric: Metric) -> str:
    return f"| `{metric.name}` | {metric.scope} | {metric.unit or ('count' if metric.kind is Kind.COUNTER else '')} | {metric.help} |"


def test_the_page_lists_every_metric_and_no_other() -> None:
    rows = ["| metric | of each | unit | |", "| --- | --- | --- | --- |", *(row(metric) for metric in ours())]
    table = "\n".join(rows)
    assert table in (ROOT / "docs" / "observing.md").read_text(), f"the table in docs/observing.md should be:\n{table}"


def everything_there_is(tmp_path: Path) -> list[Seen]:
    """A machine with all that a machine can have: this one, and files where it lacks something."""
    limited = tmp_path / "fs"
    limited.mkdir()
    for name, text in (("memory.max", "1000"), ("memory.current", "500"), ("memory.events", "oom_kill 0"), ("cpu.stat", "throttled_usec 0")):
        (limited / name).write_text(text + "\n")
    pressure = "some avg10=0.00\nfull avg10=0.00\n"
    dev = "\n\neth0: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
    proc = machine(
        tmp_path / "proc", meminfo="MemTotal: 9 kB\nMemAvailable: 8 kB\nSwapTotal: 2 kB\nSwapFree: 1 kB\n", vmstat="pswpin 0\npswpout 0\noom_kill 0\n",
        pressure__cpu=pressure, pressure__memory=pressure, pressure__io=pressure, self__mountinfo=f"1 1 0:1 / {limited} rw - cgroup2 cgroup2 rw\n",
        self__net__dev=dev, **{"7__cgroup": "0::/\n"},
    )  # fmt: skip
    sys = machine(tmp_path / "sys", class__net__eth0__operstate="up\n", class__net__eth0__carrier_down_count="0\n")
    watched = Watched()
    watched.add(0, 7)
    clock = Hands()
    probes: list[Probe] = [Cpu(proc), Memory(proc), Network(proc, sys), Cgroups(watched, proc), Clock(monotonic=clock, wall=clock), Own(monotonic=clock)]
    seen = [one for probe in probes for one in probe.look()]
    clock.now += 1
    return seen + [one for probe in probes for one in probe.look()]


def test_every_metric_of_the_machine_is_said_by_some_probe_and_of_the_right_things(tmp_path: Path) -> None:
    watched = Watched()
    seen = everything_there_is(tmp_path)
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE) as worker, socket.create_server(("127.0.0.1", 0)) as peer:
        watched.add(3, worker.pid)
        peers = Peers({"node-9": peer.getsockname()})
        probes = default_probes(node="node-0", watched=watched, peers=peers, disks=[Path("/dev/shm")], written=[tmp_path], nvml=FakeNvml(1))
        with Runner(probes, node="node-0") as runner:
            deadline = time.monotonic() + 30
            wanted = {metric.name for metric in ours()} - {"host_kernel_errors_total"}  # The log may be forbidden here.
            while wanted - {one.metric for one in seen if isinstance(one, Signal)} and time.monotonic() < deadline:
                taken = runner.take()
                assert taken.findings == []
                seen += taken.signals
                time.sleep(0.05)
        worker.communicate()
    said = {one.metric for one in seen if isinstance(one, Signal)}
    assert wanted - said == set(), "in the catalogue, and said by nobody"
    assert said - METRICS.keys() == set(), "said, and not in the catalogue"
    for one in seen:
        if isinstance(one, Signal):
            scope = METRICS[one.metric].scope
            assert bool(one.of) == (scope not in (Scope.NODE, Scope.JOB)), one
            assert isinstance(one.value, float), one
    assert values(seen, "3")["worker_process_state"] in (0, 1)


def probe_files() -> list[Path]:
    return [path for path in sorted(ROOM.glob("*.py")) if re.search(r"^    def look\(self\)", path.read_text(), re.MULTILINE) and path.name != "probe.py"]


@pytest.mark.parametrize("path", probe_files(), ids=lambda path: path.name)
def test_every_probe_says_what_it_sees_and_when_it_is_wrong(path: Path) -> None:
    page = ast.get_docstring(ast.parse(path.read_text())) or ""
    missing = [word for word in ("Sees  ", "Says  ", "Is wrong  ", "Costs  ") if word not in page]
    assert not missing, f"{path.name} does not say {missing}"


def test_every_kind_of_event_is_listed_and_every_listed_one_exists() -> None:
    code = "\n".join(path.read_text() for path in ROOM.glob("*.py"))
    made = set(re.findall(r'KernelEvent\(kind="(\w+)"|_event\("(\w+)"|^        \("(\w+)", r"', code, re.MULTILINE))
    kinds = {name for names in made for name in names if name} | {"gpu_hardware_slowdown"}
    listed = set(re.findall(r"`(\w+)`", (ROOM / "README.md").read_text().partition("Kernel events:")[2].partition("To add")[0]))
    assert listed == kinds


def test_observing_brings_in_nothing_heavy() -> None:
    code = "import sys, holdfast.observe.default, holdfast.observe.runner; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.split())
    assert not loaded & {"numpy", "torch", "asyncio", "psutil", "msgspec", "pynvml"}
