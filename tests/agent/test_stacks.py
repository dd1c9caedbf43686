"""Stacks on demand: from a worker that sleeps, one that holds the GIL, and what can be said of one that cannot answer."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from end_to_end.jobs import eventually

from holdfast.agent import stacks, tree

pytestmark = pytest.mark.unprivileged
ANSWERING = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGRTMIN + 11, file=open(sys.argv[1], "a"), all_threads=True, chain=False)
def asleep():
    print("ready", flush=True)
    time.sleep(3600)
def holding_the_gil():
    print("ready", flush=True)
    sum(range(10**15))
def waiting_for_a_signal():
    print("ready", flush=True)
    signal.pause()
    sys.exit("pause() has returned")
globals()[sys.argv[2]]()
"""
Start = Callable[[str], int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a worker that answers the stack signal; ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(doing: str) -> int:
        process = subprocess.Popen([sys.executable, "-c", ANSWERING, str(stacks.stack_path(tmp_path, 1, 0)), doing], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=10.0)


def captured(pid: int, state: Path) -> str:
    return asyncio.run(stacks.capture({0: pid}, state, 1, within_s=10.0))["0"]


@pytest.mark.parametrize("doing", ["asleep", "holding_the_gil"])
def test_the_stack_of_a_worker_is_had_without_stopping_it(tmp_path: Path, start: Start, doing: str) -> None:
    pid = start(doing)
    text = captured(pid, tmp_path)
    assert f"process {pid}" in text
    assert doing in text
    assert tree.state(pid) in ("S", "R"), "it goes on"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="pause(2) is no system call of its own here")
def test_a_worker_that_waits_for_a_signal_is_not_woken_by_ours(tmp_path: Path, start: Start) -> None:
    pid = start("waiting_for_a_signal")
    eventually(lambda: Path(f"/proc/{pid}/syscall").read_text().startswith("34 "), what="pause()")
    assert not stacks.ask(pid)
    assert "no Python stack" in captured(pid, tmp_path) or "waiting_for_a_signal" in captured(pid, tmp_path), "py-spy needs no signal"
    assert Path(f"/proc/{pid}/syscall").read_text().startswith("34 ")


def test_a_stopped_worker_is_described_by_the_kernel_and_not_waited_for(tmp_path: Path, start: Start) -> None:
    pid = start("asleep")
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: tree.state(pid) == "T", what="a stopped worker")
    assert "state T" in captured(pid, tmp_path)


def test_a_program_that_does_not_know_the_signal_is_not_killed_by_it(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "3600"]) as process:
        eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", what="sleep")
        assert not stacks.ask(process.pid)
        assert "no Python stack" in captured(process.pid, tmp_path)
        assert process.poll() is None
        process.kill()


def test_a_process_that_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait(10.0)
    assert "gone" in captured(process.pid, tmp_path)


def test_the_newest_answer_is_the_last_in_the_file(tmp_path: Path, start: Start) -> None:
    pid, path = start("asleep"), stacks.stack_path(tmp_path, 1, 0)
    for times in (1, 2):
        assert stacks.ask(pid)
        eventually(lambda times=times: path.read_text().count("Current thread") == times and "<module>" in stacks.newest(path, 0), what="an answer")
    assert stacks.newest(path, 0).count("asleep") == 1
    assert stacks.newest(path, stacks.size(path)) == "", "what was read before is no answer"
