"""Process trees, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from holdfast.agent import tree

WAIT_S = 20.0

pytestmark = pytest.mark.unprivileged

# Starts a child that starts a grandchild, which leaves session and parent; says all three numbers.
DEEP = """
import os, subprocess, sys, time
grandchild = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
child = f"import os, subprocess, sys, time; print(os.getpid(), flush=True); grandchild = {grandchild!r};"
child += "subprocess.Popen([sys.executable, '-c', grandchild], start_new_session=True); time.sleep(600)"
print(os.getpid(), flush=True)
subprocess.Popen([sys.executable, "-c", child])
time.sleep(600)
"""
DEAF = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"
BUSY = "import os; print(os.getpid(), flush=True)\nwhile True: pass"


@pytest.fixture
def job() -> str:
    return f"job-{uuid.uuid4().hex}"


@pytest.fixture
def start(job: str) -> Iterator[Callable[..., list[int]]]:
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, count: int = 1, node: str = "node-0") -> list[int]:
        environment = {**os.environ, tree.JOB_MARK: job, tree.NODE_MARK: node}
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stdout is not None
        return [int(process.stdout.readline()) for _ in range(count)]

    yield begin
    left = tree.end_marked(job)
    for process in started:
        process.communicate(timeout=WAIT_S)
    assert left == []


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_descendants_are_found_at_every_depth(start: Callable[..., list[int]]) -> None:
    root, child, grandchild = start(DEEP, 3)
    assert [process.pid for process in tree.descendants(root)] == sorted([child, grandchild])
    assert root in [process.pid for process in tree.descendants(os.getpid())]


def test_a_process_that_is_not_there_has_neither_state_nor_descendants(start: Callable[..., list[int]]) -> None:
    (pid,) = start(DEAF)
    tree.end_tree([pid], grace_s=0)
    os.waitpid(pid, 0)
    assert tree.state(pid) is None
    assert tree.descendants(pid) == []
    assert tree.cpu_seconds([pid]) == 0.0


def test_states_tell_stopped_and_dead_processes(start: Callable[..., list[int]]) -> None:
    (pid,) = start(DEAF)
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: tree.state(pid) == "T")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: tree.state(pid) == "Z")
    process = tree.read(pid)
    assert process is not None
    assert process.dead


def test_processor_time_grows_for_a_busy_process_and_not_for_a_sleeping_one(start: Callable[..., list[int]]) -> None:
    (busy,), (asleep,) = start(BUSY), start(DEAF)
    before = tree.cpu_seconds([asleep])
    wait_for(lambda: tree.cpu_seconds([busy]) > 0.1)
    assert tree.cpu_seconds([asleep]) - before < 0.05


def test_marked_processes_are_found_by_job_and_node_and_never_the_caller(start: Callable[..., list[int]], job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tree.JOB_MARK, job)
    (first,), (second,) = start(DEAF), start(DEAF, node="node-1")
    assert tree.marked(job) == sorted([first, second])
    assert tree.marked(job, "node-1") == [second]
    assert tree.marked(job, "node-2") == []
    assert tree.marked("another job") == []


def test_an_orphan_with_its_own_session_is_ended_by_its_mark(start: Callable[..., list[int]], job: str) -> None:
    root, child, grandchild = start(DEEP, 3)
    os.kill(root, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: grandchild in tree.marked(job))
    assert tree.end_marked(job) == []
    assert tree.marked(job) == []


def test_end_tree_ends_all_of_it_also_when_parents_die_first(start: Callable[..., list[int]]) -> None:
    pids = start(DEEP, 3)
    assert tree.end_tree(pids[:1], grace_s=5) == []
    assert all(tree.state(pid) in (None, "Z") for pid in pids)


def test_a_stopped_process_gets_its_chance_to_leave(start: Callable[..., list[int]]) -> None:
    (pid,) = start("import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: os._exit(7)); print(os.getpid(), flush=True); time.sleep(600)")
    os.kill(pid, signal.SIGSTOP)
    assert tree.end_tree([pid], grace_s=10) == []
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_deaf_process_is_killed_after_its_grace_and_not_before(start: Callable[..., list[int]]) -> None:
    (pid,) = start(DEAF)
    began = time.monotonic()
    assert tree.end_tree([pid], grace_s=0.3) == []
    assert 0.3 <= time.monotonic() - began < 5
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_what_cannot_be_ended_is_named_and_the_wait_is_bounded(monkeypatch: pytest.MonkeyPatch, start: Callable[..., list[int]]) -> None:
    # A process in state D cannot be made at will; one that our signals do not reach looks the same from outside.
    (pid,) = start(DEAF)
    began = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(tree, "_send", lambda process, number: None)
        assert tree.end_tree([pid], grace_s=0.1, kill_wait_s=0.2) == [pid]
    assert time.monotonic() - began < 3


def test_a_number_given_to_another_process_is_not_mistaken_for_the_old_one(start: Callable[..., list[int]]) -> None:
    (pid,) = start(DEAF)
    now = tree.read(pid)
    assert now is not None
    before = tree.Process(pid=pid, parent=now.parent, session=now.session, state="S", threads=1, cpu_s=0, memory_bytes=0, start_ticks=now.start_ticks - 1)
    tree._send(before, signal.SIGKILL)
    assert tree.state(pid) not in (None, "Z")
