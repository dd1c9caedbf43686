"""Workers: real processes with real children, memory, files and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from observe.seeing import Hands, eventually, machine, values

from holdfast.observe.watched import Watched
from holdfast.observe.worker import SLOW_EVERY_S, Workers

TREE = """
import os, subprocess, sys, time
ballast = bytearray(os.urandom(1)) * (64 * 2**20)
files = [open("/dev/null") for _ in range(20)]
child = subprocess.Popen([sys.executable, "-c", "import os, sys; x = bytearray(b'x') * (64 * 2**20); print(flush=True); sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.readline()
child.communicate()
print("ended", flush=True)
while sys.stdin.readline(): pass
"""  # noqa: E501


class Tree:
    """A worker with one child."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.child = int(self.process.stdout.readline())

    def end_child(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ended\n"


@pytest.fixture
def tree() -> Iterator[Tree]:
    one = Tree()
    yield one
    one.process.send_signal(signal.SIGCONT)
    one.process.communicate()


def watching(pid: int) -> tuple[Watched, Hands, Workers]:
    watched, clock = Watched(), Hands()
    watched.add(3, pid)
    return watched, clock, Workers(watched, monotonic=clock)


def test_a_rank_is_its_process_and_all_below_it(tree: Tree) -> None:
    _, _, workers = watching(tree.process.pid)
    seen = values(workers.look(), "3")
    assert seen["worker_memory_bytes"] > 128 * 2**20, "both hold 64 MiB"
    assert seen["worker_threads"] == 2
    assert seen["worker_file_descriptors"] >= 23
    assert seen["worker_process_state"] in (0, 1)
    assert seen["worker_read_bytes_total"] >= 0
    assert "worker_cpu_ratio" not in seen, "one look cannot say"


def test_what_a_child_did_is_not_taken_back_when_it_ends(tree: Tree) -> None:
    _, clock, workers = watching(tree.process.pid)
    before = values(workers.look(), "3")
    tree.end_child()
    clock.now += SLOW_EVERY_S
    after = values(workers.look(), "3")
    assert after["worker_memory_bytes"] < before["worker_memory_bytes"] - 32 * 2**20
    assert after["worker_threads"] == 1
    for name in ("worker_read_bytes_total", "worker_written_bytes_total", "worker_major_faults_total"):
        assert after[name] >= before[name]
    assert 0 <= after["worker_cpu_ratio"] < 4


def test_a_child_that_comes_later_is_found_at_the_next_look_around(tree: Tree) -> None:
    watched, clock, workers = watching(os.getpid())
    workers.look()
    with subprocess.Popen([sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as late:
        assert late.stdout is not None
        late.stdout.readline()
        assert late.pid not in workers._ranks[3].below.pids
        clock.now += SLOW_EVERY_S
        workers.look()
        assert {late.pid, tree.process.pid, tree.child} <= workers._ranks[3].below.pids
        late.communicate()
    watched.remove(3)
    assert workers.look() == []


def test_a_stopped_worker_is_told_from_a_sleeping_one(tree: Tree) -> None:
    _, _, workers = watching(tree.process.pid)
    tree.process.send_signal(signal.SIGSTOP)
    eventually(lambda: values(workers.look(), "3")["worker_process_state"] == 3, what="state 3, stopped")
    tree.process.send_signal(signal.SIGCONT)
    eventually(lambda: values(workers.look(), "3")["worker_process_state"] in (0, 1), what="running again")


def test_a_dead_worker_says_only_that_it_is_dead_before_and_after_it_is_reaped() -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        _, _, workers = watching(process.pid)
        assert len(workers.look()) > 1
        process.kill()
        eventually(lambda: values(workers.look(), "3") == {"worker_process_state": 4}, what="a zombie")
    assert values(workers.look(), "3") == {"worker_process_state": 4}


def test_a_rank_that_was_started_anew_is_another_process(tree: Tree) -> None:
    watched, _, workers = watching(tree.process.pid)
    first = values(workers.look(), "3")["worker_memory_bytes"]
    watched.add(3, os.getpid())
    assert values(workers.look(), "3")["worker_memory_bytes"] != first
    assert workers._ranks[3].pid == os.getpid()


def test_a_name_with_spaces_and_parentheses_does_not_confuse(tmp_path: Path) -> None:
    stat = "7 (a) b ( 9) S 1 7 7 0 -1 0 0 0 5 0 100 50 0 0 20 0 3 0 999 1000 10 0\n"
    watched = Watched()
    watched.add(0, 7)
    seen = values(Workers(watched, machine(tmp_path, **{"7__stat": stat})).look(), "0")
    assert seen["worker_threads"] == 3
    assert seen["worker_major_faults_total"] == 5
    assert "worker_read_bytes_total" not in seen, "what may not be read is absent"
