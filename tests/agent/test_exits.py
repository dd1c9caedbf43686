"""How exits are classified."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.exits import (
    Counted,
    Evidence,
    MemoryKills,
    classify,
    counted_in,
    kernel_line,
    read_kernel_log,
    read_memory_kills,
    read_memory_kills_again,
    user_frame,
)
from holdfast.domain.exit import Exit, ExitKind
from holdfast.observe.cgroup import find

TRACE = """step 1
Traceback (most recent call last):
  File "/home/me/project/train.py", line 88, in <module>
    main()
  File "/home/me/project/train.py", line 42, in step
    loss = model(batch)
           ^^^^^^^^^^^^
  File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1511, in _call
    return forward(*args)
RuntimeError: shape mismatch at 0x7f3a: 3 and 4
"""
COUNTED = MemoryKills(machine=4, cgroup=1, counter="/job/memory.events")


def end(**evidence: object) -> Exit:
    return classify(Evidence(rank=2, pid=100, **evidence))  # type: ignore[arg-type]


def test_code_zero_is_finished_whatever_was_printed() -> None:
    assert end(code=0, tail=TRACE).kind is ExitKind.FINISHED


def test_a_code_is_told_with_the_last_line_printed() -> None:
    exit = end(code=3, tail="one\nno such dataset\n\n")
    assert (exit.kind, exit.fingerprint) == (ExitKind.CODE, "code:3")
    assert exit.because == "rank 2 exited with code 3; the last it printed was: no such dataset"


def test_a_shell_that_passes_a_signal_on_as_a_code_is_understood() -> None:
    assert "ended by SIGSEGV" in end(code=139).because


def test_a_signal_is_named() -> None:
    exit = end(signal=11, core=True)
    assert (exit.kind, exit.fingerprint, exit.own_code) == (ExitKind.SIGNAL, "signal:SIGSEGV", 139)
    assert exit.because == "rank 2 was ended by SIGSEGV, and left a core file"
    assert "signal 63" in end(signal=63).because


def test_nobody_saw_it_is_said() -> None:
    assert end().kind is ExitKind.VANISHED


def test_an_exception_is_read_from_the_last_traceback_printed() -> None:
    exit = end(code=1, tail='Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x\nValueError: caught before\n' + TRACE)
    assert (exit.kind, exit.exception, exit.message) == (ExitKind.EXCEPTION, "RuntimeError", "shape mismatch at 0x7f3a: 3 and 4")
    assert exit.frame == "project/train.py:step:42"
    assert exit.because == "rank 2 raised RuntimeError: shape mismatch at 0x7f3a: 3 and 4, at project/train.py:step:42"


def test_the_same_fault_has_the_same_fingerprint_when_only_numbers_differ() -> None:
    first, second = end(code=1, tail=TRACE), end(code=1, tail=TRACE.replace("0x7f3a: 3 and 4", "0xbeef: 5 and 6"))
    assert first.fingerprint == second.fingerprint == "RuntimeError@project/train.py:step:42"


def test_a_note_of_the_worker_is_believed_over_its_output() -> None:
    note = {"type": "my.Error", "message": "boom\nmore", "traceback": TRACE.splitlines()[1:], "at": 1.0}
    exit = end(code=1, tail="nothing", error=json.dumps(note))
    assert (exit.exception, exit.message, exit.frame) == ("my.Error", "boom\nmore", "project/train.py:step:42")
    assert "more" not in exit.because


def test_the_note_of_torch_record_is_understood() -> None:
    note = {"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": TRACE, "timestamp": "1"}}}
    exit = end(code=1, error=json.dumps(note))
    assert (exit.exception, exit.message, exit.frame) == ("ValueError", "bad", "project/train.py:step:42")


@pytest.mark.parametrize("error", ["", "{", "[]", "3", '{"message": 3}', '{"message": {"message": "x"}}', "null"])
def test_a_torn_note_falls_back_to_the_output(error: str) -> None:
    assert end(code=1, error=error, tail=TRACE).exception == "RuntimeError"
    assert end(code=1, error=error).kind is ExitKind.CODE


def test_a_syntax_error_has_its_file_and_line() -> None:
    exit = end(code=1, tail='  File "/p/train.py", line 3\n    def\n       ^\nSyntaxError: invalid syntax\n')
    assert (exit.exception, exit.frame) == ("SyntaxError", "p/train.py:<module>:3")


def test_a_frame_of_the_trainer_is_not_the_place() -> None:
    lines = [
        '  File "/home/me/project/train.py", line 5, in <module>', '  File "/opt/holdfast/src/holdfast/trainer/feed.py", line 160, in __iter__',
        '  File "/opt/holdfast/src/holdfast/trainer/read_again.py", line 147, in wait',
    ]  # fmt: skip
    assert user_frame(lines) == "project/train.py:<module>:5"


def test_without_a_frame_of_the_users_the_innermost_of_any_is_named() -> None:
    assert user_frame(['  File "/usr/lib/python3.11/json/decoder.py", line 3, in decode']) == "json/decoder.py:decode:3"
    assert user_frame([]) == ""


def test_a_kill_with_a_grown_cgroup_counter_is_out_of_memory() -> None:
    exit = end(signal=9, kills_before=COUNTED, kills_after=MemoryKills(machine=5, cgroup=2, counter="/job/memory.events"))
    assert exit.kind is ExitKind.OUT_OF_MEMORY
    assert "1 more killed for memory in its cgroup (/job/memory.events)" in exit.because


def test_where_no_cgroup_counts_a_kill_with_a_grown_machine_counter_is_out_of_memory() -> None:
    exit = end(signal=9, kills_before=MemoryKills(machine=4), kills_after=MemoryKills(machine=5))
    assert exit.kind is ExitKind.OUT_OF_MEMORY
    assert "1 more killed on this machine" in exit.because


def test_somebody_elses_death_for_memory_does_not_make_a_kill_one() -> None:
    exit = end(signal=9, kills_before=COUNTED, kills_after=MemoryKills(machine=5, cgroup=1, counter="/job/memory.events"))
    assert exit.kind is ExitKind.SIGNAL


def test_a_kill_without_a_grown_counter_is_a_kill() -> None:
    exit = end(signal=9, kills_before=COUNTED, kills_after=COUNTED)
    assert exit.kind is ExitKind.SIGNAL
    assert "no counter says that memory was short" in exit.because
    assert "cannot be seen here" in end(signal=9).because


def test_our_own_kill_is_never_called_out_of_memory() -> None:
    exit = end(signal=9, stopped_by_us=True, kills_before=COUNTED, kills_after=MemoryKills(machine=5, cgroup=2, counter="/job/memory.events"))
    assert (exit.kind, exit.stopped_by_us) == (ExitKind.SIGNAL, True)


def test_counters_of_two_different_cgroups_are_not_compared() -> None:
    assert end(signal=9, kills_before=COUNTED, kills_after=MemoryKills(machine=4, cgroup=9, counter="/other/memory.events")).kind is ExitKind.SIGNAL


def test_a_data_loader_worker_killed_for_memory_is_out_of_memory() -> None:
    tail = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\n    x\nRuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n'
    after = MemoryKills(machine=4, cgroup=2, counter="/job/memory.events")
    assert end(code=1, tail=tail, kills_before=COUNTED, kills_after=after).kind is ExitKind.OUT_OF_MEMORY
    assert end(code=1, tail=tail, kills_before=COUNTED, kills_after=COUNTED).kind is ExitKind.EXCEPTION


def test_the_kernels_line_names_the_process_and_not_a_namesake() -> None:
    records = [
        "3,1,5000000,-;Out of memory: Killed process 100 (python) total-vm:1kB\n SUBSYSTEM=x",
        "3,2,9000000,-;Memory cgroup out of memory: Killed process 1001 (python)",
        "3,3,9500000,-;unrelated 100",
        "torn",
    ]
    assert kernel_line(records, 100, 4 * 10**9) == "Out of memory: Killed process 100 (python) total-vm:1kB"
    assert kernel_line(records, 100, 8 * 10**9) == ""
    assert kernel_line(records, 1001, 8 * 10**9).startswith("Memory cgroup")
    assert end(signal=9, kernel_log="Out of memory: Killed process 100").kind is ExitKind.OUT_OF_MEMORY


def test_the_kernel_log_is_read_or_is_silently_not_ours() -> None:
    assert read_kernel_log(1 << 30, 0) == ""


def test_the_machines_counter_can_be_read_and_a_group_that_is_not_there_counts_nothing() -> None:
    assert (read_memory_kills(Counted()).machine or 0) >= 0
    assert read_memory_kills(Counted(kills="/nowhere/memory.events")).cgroup is None


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup with 64 MiB of memory, where we may make one."""
    name = f"holdfast-test-{uuid.uuid4().hex[:8]}"
    version_1, version_2 = Path("/sys/fs/cgroup/memory") / name, Path("/sys/fs/cgroup") / name
    path, limit, swap = (
        (version_1, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if version_1.parent.is_dir() else (version_2, "memory.max", "memory.swap.max")
    )
    try:
        path.mkdir()
        (path / limit).write_text(str(64 << 20))
        if (path / swap).exists():
            (path / swap).write_text("0" if path == version_2 else str(64 << 20))
    except OSError as error:
        if path.is_dir():
            path.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield path
    path.rmdir()


def test_a_process_really_killed_at_its_memory_limit_is_out_of_memory(limited: Path) -> None:
    program = "import sys; sys.stdin.readline(); held = [bytearray(1 << 20) for _ in range(1000)]"
    worker = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        (limited / "cgroup.procs").write_text(str(worker.pid))
        started_ns, before = time.monotonic_ns(), read_memory_kills(counted_in(find(worker.pid)["memory"]))
        assert before.cgroup == 0
        assert limited.name in before.counter
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        worker.stdin.flush()
        ended = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        after = read_memory_kills_again(before)
    finally:
        worker.kill()
        worker.communicate(timeout=20)
    assert worker.returncode == -signal.SIGKILL
    exit = end(signal=9, kills_before=before, kills_after=after)
    assert exit.kind is ExitKind.OUT_OF_MEMORY, exit.because
    assert limited.name in exit.because
    log = read_kernel_log(worker.pid, started_ns)
    assert log == "" or str(worker.pid) in log
