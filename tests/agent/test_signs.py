"""Signs of ranks that do not move: real processes that sleep, compute, read, have children at work, and one whose stack is read from outside."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from end_to_end.jobs import eventually

from holdfast.agent import stacks, tree
from holdfast.agent.signs import SignsOfRank, inside_of, users_frames, what_it_does
from holdfast.detect.standstill import Doing, Sight
from holdfast.domain.signs import BEGUN, COLLECTIVE, DATA, ELSEWHERE, Signs

pytestmark = pytest.mark.unprivileged
SCRIPT = """
import faulthandler, os, signal, subprocess, sys, threading, time
faulthandler.register(signal.SIGRTMIN + 11, file=open(sys.argv[1], "a"), all_threads=True, chain=False)
def sleep():
    time.sleep(3600)
def compute():
    total = 0
    while True:
        total += 1
def read_a_pipe():
    read, write = os.pipe()
    os.read(read, 1)
def go_from_wait_to_wait():
    while True:
        time.sleep(0.01)
def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
def have_a_child_at_work():
    subprocess.run([sys.executable, "-c", "while True: pass"])
def write_much():
    with open(os.devnull, "wb") as file:
        while True:
            file.write(bytes(1 << 20))
            file.flush()
            time.sleep(0.05)
def evaluate():
    for batch in range(10**9):
        forward()
        time.sleep(0.001)
def forward():
    time.sleep(0.001); [
        time.sleep(0.001),
        time.sleep(0.001),
        time.sleep(0.001),
        time.sleep(0.001),
        time.sleep(0.001),
        time.sleep(0.001),
        time.sleep(0.001),
        time.sleep(0.001),
    ]
print("ready", flush=True)
globals()[sys.argv[2]]()
"""
See = Callable[[str, float], Signs]


@pytest.fixture
def see(tmp_path: Path) -> Iterator[See]:
    """Start a process that does this, and look at it, as an agent does, until it was quiet for so long."""
    started: list[subprocess.Popen[bytes]] = []
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def look(doing: str, seconds: float) -> Signs:
        path = stacks.stack_path(tmp_path, 1, 0)
        process = subprocess.Popen([sys.executable, str(script), str(path), doing], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        read = [0]

        def sample() -> str:
            answer, read[0] = stacks.newest(path, read[0]), stacks.size(path)
            stacks.ask(process.pid)
            return answer

        signs, deadline = SignsOfRank(), time.monotonic() + 60.0
        while signs.quiet_s < seconds and time.monotonic() < deadline:
            found = tree.trees([process.pid])[process.pid]
            signs.look(7, found, sample, time.monotonic())
            time.sleep(0.5)  # Processor time is counted in hundredths of a second: within less, writing down a stack looks like work.
        return signs.signs(usual_s=20.0, quick=True)

    yield look
    for process in started:
        for child in tree.descendants(process.pid):
            tree.end_tree([child.pid], grace_s=0.0)
        process.kill()
        process.communicate(timeout=10.0)


@pytest.mark.parametrize(
    ("doing", "said"), [("sleep", "sleeps"), ("read_a_pipe", "reads a pipe"), ("wait_for_a_lock", "waits for a lock")],
)  # fmt: skip
def test_a_rank_that_does_nothing_is_seen_to_and_what_it_waits_for(see: See, doing: str, said: str) -> None:
    signs = see(doing, 4.0)
    assert min(signs.own_idle_s, signs.children_idle_s) >= 3.0
    assert signs.main_idle_s >= 1.5
    assert signs.io_idle_s >= 1.5
    assert signs.doing in (said, ""), "empty where the kernel does not tell"
    assert signs.inside == ELSEWHERE
    assert f"train.py:{doing}:" in signs.place
    assert signs.where.startswith(f"`{doing}`, train.py:")
    assert signs.stack_s is not None
    assert signs.stack_s >= 1.0, "it does not move"


@pytest.mark.parametrize(("doing", "sign"), [("compute", "own_idle_s"), ("have_a_child_at_work", "children_idle_s"), ("write_much", "io_idle_s")])
def test_work_is_seen_as_computing_as_a_child_at_work_or_as_input_and_output(see: See, doing: str, sign: str) -> None:
    signs = see(doing, 3.0)
    busy = [name for name in ("own_idle_s", "children_idle_s", "io_idle_s") if getattr(signs, name) < 1.5]
    assert sign in busy
    assert "children_idle_s" not in busy or doing == "have_a_child_at_work"


def test_a_main_thread_that_is_woken_again_and_again_does_not_stand_still(see: See) -> None:
    signs = see("go_from_wait_to_wait", 5.0)
    assert signs.stack_s is not None
    assert signs.stack_s >= 1.0, "by its stack it does"
    assert signs.main_idle_s < 1.5


def test_the_place_of_a_pause_is_what_stays_the_same_while_its_lines_change(see: See) -> None:
    signs = see("evaluate", 8.0)
    calls = signs.place.split(" > ")
    assert calls[0].startswith("train.py:<module>:")
    assert calls[1] in ("train.py:evaluate",) or calls[1].startswith("train.py:evaluate:")
    assert "evaluate" in signs.where or "forward" in signs.where
    assert signs.stack_s is not None
    assert signs.stack_s <= 2.0, "its stack moves"


def test_time_in_which_nobody_looked_counts_as_one_look() -> None:
    """An agent that was stopped itself has not seen the rank stand still."""
    signs = SignsOfRank()
    for now in (0.0, 1.0, 3600.0, 3601.0):
        signs.look(7, [], lambda: "", now)
    assert signs.quiet_s == 1.0 + 1.0 + 1.0


def test_a_rank_that_was_stopped_together_with_its_agent_is_not_taken_for_stopped() -> None:
    """A laptop that wakes up: the agent may run again some milliseconds before the rank does."""
    signs, running = SignsOfRank(), tree.read(os.getpid())
    assert running is not None
    stopped = replace(running, state="T")

    def doing() -> Doing:
        return Sight(rank=0, node="node-0", phase="step", step=7, signs=signs.signs(usual_s=20.0, quick=True)).doing

    signs.look(7, [running], lambda: "", 0.0)
    signs.look(7, [stopped], lambda: "", 60.0)
    assert doing() is Doing.MOVES
    for now in (61.0, 62.0):
        signs.look(7, [stopped], lambda: "", now)
    assert doing() is Doing.STOPPED, "the agent runs, and the rank does not"


def test_a_collective_that_does_not_end_on_a_gpu_is_pending_for_as_long_as_nothing_changes() -> None:
    signs, unfinished = SignsOfRank(), frozenset({("default_pg (0)", 7)})
    answers = {20: frozenset({("default_pg (0)", 8)}), 60: frozenset()}

    def pending() -> frozenset[tuple[str, int]]:
        return answers.get(max((at for at in answers if at <= now), default=0), unfinished)

    seen = {}
    for now in range(80):
        signs.look(7, [], lambda: "", float(now), pending=pending)
        seen[now] = signs.pending_s
    assert seen[18] is not None
    assert seen[18] > 10
    assert min(seen[now] or 0.0 for now in range(20, 26)) < 4.0, "another one was begun"
    assert seen[58] is not None
    assert seen[58] > 25
    assert seen[79] is None, "it has ended"


def test_a_beat_begins_anew(see: See) -> None:
    signs = SignsOfRank()
    for now in range(10):
        signs.look(7, [], lambda: "", float(now))
    assert signs.quiet
    signs.look(8, [], lambda: "", 10.0)
    assert not signs.quiet


def test_an_answer_of_long_ago_is_not_taken_for_where_the_rank_is() -> None:
    """The longer a rank is quiet the more rarely it is asked; each time it is asked twice, and the second answer is the fresh one."""
    signs, asked = SignsOfRank(), []

    def sample() -> str:
        asked.append(now)
        return f'Current thread 0x1 (most recent call first):\n  File "/home/me/train.py", line {len(asked)} in evaluate\n'

    for now in range(600):
        signs.look(7, [], sample, float(now))
    assert len(asked) < 120
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert 1 in gaps[-2:], "a question is followed by its answer"
    assert max(gaps) > 30
    assert signs.sampled_s is not None
    assert signs.sampled_s < 70


TORCH = "/home/me/.venv/lib/python3.11/site-packages/torch"
TRAIN = "/home/me/train.py:<module>:31"


@pytest.mark.parametrize(
    ("innermost", "inside"),
    [
        ((f"{TORCH}/distributed/distributed_c10d.py:all_reduce:3000", f"{TORCH}/distributed/c10d_logger.py:wrapper:83"), COLLECTIVE),
        ((f"{TORCH}/_ops.py:__call__:9", f"{TORCH}/distributed/_functional_collectives.py:wait_tensor:100"), COLLECTIVE),
        ((f"{TORCH}/distributed/distributed_c10d.py:_object_to_tensor:9", f"{TORCH}/distributed/distributed_c10d.py:broadcast_object_list:9"), ELSEWHERE),
        ((f"{TORCH}/distributed/checkpoint/filesystem.py:_write_item:9",), ELSEWHERE),
        ((f"{TORCH}/distributed/tensor/_dispatch.py:dispatch:9",), ELSEWHERE),
        ((f"{TORCH}/autograd/graph.py:_engine_run_backward:841", f"{TORCH}/autograd/__init__.py:backward:347"), BEGUN),
        (("/home/me/hooks.py:compress:5", f"{TORCH}/distributed/algorithms/ddp_comm_hooks/ddp_zero_hook.py:hook:9"), ELSEWHERE),
        (("/home/me/train.py:on_gradient:24", f"{TORCH}/autograd/graph.py:_engine_run_backward:841", f"{TORCH}/autograd/__init__.py:backward:347"), ELSEWHERE),
        ((f"{TORCH}/nn/parallel/distributed.py:_default_broadcast_coalesced:9", f"{TORCH}/nn/parallel/distributed.py:_sync_buffers:9"), COLLECTIVE),
        ((f"{TORCH}/nn/parallel/distributed.py:_run_ddp_forward:9", "/home/me/model.py:forward:12"), ELSEWHERE),
        ((f"{TORCH}/utils/data/dataloader.py:_try_get_data:1243",), DATA),
        (("/home/me/data.py:__iter__:7", "/home/me/.venv/lib/python3.11/site-packages/holdfast/trainer/feed.py:__iter__:80"), DATA),
        (("/usr/lib/python3.11/threading.py:wait:324", "/usr/lib/python3.11/threading.py:join:1100"), ELSEWHERE),
        ((f"{TORCH}/nn/modules/linear.py:forward:125", "/home/me/model.py:forward:12"), ELSEWHERE),
    ],
)  # fmt: skip
def test_what_a_rank_is_in_is_told_by_its_newest_frames(innermost: tuple[str, ...], inside: str) -> None:
    assert inside_of((*innermost, TRAIN)) == inside


def test_a_wait_for_a_collective_that_was_begun_is_told_by_the_line_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("work = dist.all_reduce(gradient, async_op=True)\nwork.wait()\nlock.acquire()\n")
    eventually(lambda: inside_of((f"{script}:<module>:2",)) == BEGUN, what="a script that is read")
    assert [inside_of((f"{script}:<module>:{line}",)) for line in (1, 3, 9)] == [ELSEWHERE] * 3
    assert inside_of((f"{tmp_path}/not_there.py:<module>:2",)) == ELSEWHERE


def test_a_script_on_a_mount_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    silent = tmp_path / "train.py"
    os.mkfifo(silent)  # To open it waits for a writer that never comes.
    began = time.monotonic()
    assert inside_of((f"{silent}:<module>:2",)) == ELSEWHERE
    assert time.monotonic() - began < 5.0
    os.close(os.open(silent, os.O_WRONLY))  # The reader may go.


def test_the_users_own_frames_are_those_of_no_library() -> None:
    stack = (f"{TORCH}/nn/modules/linear.py:forward:125", "/home/me/model.py:forward:12", TRAIN, "<frozen runpy>:_run_code:88")
    assert [frame.function for frame in users_frames(stack)] == ["<module>", "forward"]
    assert inside_of(()) == ""


def test_of_a_process_that_is_gone_nothing_is_said() -> None:
    assert what_it_does(2**22 - 1) == ""
