"""What a script prints is on the screen, all of it, before `holdfast run` leaves: however much, however fast, and whoever reads it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from end_to_end.jobs import SCRIPTS, command, environment, eventually

LOUD = SCRIPTS / "loud.py"
LINES = 200_000  # 22 MB: far more than sockets and pipes hold.


def line(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli", "run", "--name", "job", "--max-restarts", "0", str(LOUD), *map(str, arguments)]


def expected(lines: int) -> bytes:
    return b"".join(b"line %d %s\n" % (number, b"x" * 100) for number in range(lines))


def test_all_of_it_goes_through_a_pipe(state: Path) -> None:
    ran = subprocess.run(line(LINES), env=environment(HOLDFAST_STATE=str(state)), capture_output=True, timeout=120, check=True)
    assert ran.stdout == expected(LINES) + b"RESULT 0.93\n"


def test_all_of_it_goes_into_a_file_also_what_has_no_end_of_line(state: Path) -> None:
    with (state / "train.log").open("wb") as log:
        subprocess.run(line(LINES, "--no-newline"), env=environment(HOLDFAST_STATE=str(state)), stdout=log, timeout=120, check=True)
    assert (state / "train.log").read_bytes() == expected(LINES) + b"RESULT 0.93"


def test_a_line_of_megabytes_and_the_standard_error_are_shown_too(state: Path) -> None:
    ran = subprocess.run(line(1, "--long", 3_000_000), env=environment(HOLDFAST_STATE=str(state)), capture_output=True, timeout=120, check=True)
    assert ran.stdout == expected(1) + b"y" * 3_000_000 + b"\nRESULT 0.93\n"


def test_what_a_process_printed_before_it_was_killed_is_shown(state: Path) -> None:
    ran = subprocess.run(line(LINES, "--killed"), env=environment(HOLDFAST_STATE=str(state)), capture_output=True, timeout=120, check=False)
    assert ran.returncode == 128 + signal.SIGKILL
    assert ran.stdout == expected(LINES) + b"RESULT 0.93\n"


def test_a_reader_that_begins_late_gets_all_of_it_and_the_job_does_not_wait_for_him(state: Path) -> None:
    with subprocess.Popen(line(LINES), env=environment(HOLDFAST_STATE=str(state)), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        ended = eventually(lambda: "finished" in command("ps", "--json", HOLDFAST_STATE=str(state)).stdout, what="the end of the job, which nobody reads")
        assert ended
        assert run.poll() is None, "its output is not through yet"
        out, _ = run.communicate(timeout=60)
    assert run.returncode == 0
    assert out == expected(LINES) + b"RESULT 0.93\n"


def test_a_reader_that_leaves_ends_the_job_gracefully_and_without_a_traceback(state: Path) -> None:
    with subprocess.Popen(line(LINES), env=environment(HOLDFAST_STATE=str(state)), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline().startswith(b"line 0 ")
        run.stdout.close()
        said = run.stderr.read().decode() if run.stderr is not None else ""
    assert run.returncode in (0, 129), said  # It may have finished before.
    assert "Traceback" not in said
    assert "BrokenPipe" not in said


@pytest.mark.parametrize(("lines", "skipped"), [(20_000, False), (400_000, True)])
def test_on_a_terminal_all_of_it_is_shown_or_the_last_lines_with_where_the_rest_is(state: Path, lines: int, skipped: bool) -> None:
    leader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 120))
    seen = bytearray()

    def read() -> None:
        try:
            while data := os.read(leader, 1 << 16):
                seen.extend(data)
        except OSError:
            return  # It was closed at the other end.

    reader = threading.Thread(target=read)
    with subprocess.Popen(line(lines), env=environment(HOLDFAST_STATE=str(state), TERM="xterm"), stdin=terminal, stdout=terminal, stderr=terminal) as run:
        if skipped:  # It is a slow one: the job is over before it takes more than a little.
            eventually(lambda: '"finished"' in command("ps", "--json", HOLDFAST_STATE=str(state)).stdout, what="the end of the job")
        reader.start()
        assert run.wait(120) == 0
    os.close(terminal)
    reader.join(30)
    os.close(leader)
    assert b"RESULT 0.93\r\n" in seen
    assert (f"line {lines - 1} ".encode()) in seen
    assert (b" MB more in `holdfast logs job`" in seen) is skipped


def test_the_traceback_an_incident_began_with_is_shown_once_with_the_command_that_shows_all(state: Path) -> None:
    kept = state / "kept"
    kept.mkdir()
    ran = command("run", "--state", state, "--name", "job", "--nproc", 2, SCRIPTS / "echo_of_a_peer.py", kept, within_s=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("done\n")
    assert ran.stderr.count("Traceback (most recent call last)") == 1
    assert "\n  ValueError: the batch has no rows\n" in ran.stderr
    assert "began with rank 1 (`holdfast logs job --rank 1` has all):" in ran.stderr
    assert "Connection closed by peer" not in ran.stderr, "the echo is in rank 0's own output alone"


@pytest.mark.parametrize(("given", "is_told"), [(b"one line\n", True), (b"", False)])
def test_standard_input_is_empty_for_the_script_and_that_is_said_where_something_comes_in(state: Path, given: bytes, is_told: bool) -> None:
    script = state / "reads.py"
    script.write_text("import sys; print(repr(sys.stdin.read()))")
    (state / "given").write_bytes(given)
    run = [sys.executable, "-m", "holdfast.cli", "run", "--state", str(state), str(script)]
    with (state / "given").open("rb") as file:
        from_file = subprocess.run(run, stdin=file, capture_output=True, timeout=60, check=True)
    from_pipe = subprocess.run(run, input=given, capture_output=True, timeout=60, check=True)
    for ran in (from_file, from_pipe):
        assert ran.stdout == b"''\n"
        assert (b"what comes in on standard input is not read" in ran.stderr) is is_told


def test_what_we_say_begins_on_a_line_of_its_own_where_both_outputs_go_into_one_file(state: Path) -> None:
    script = state / "short.py"
    script.write_text("print('half a line', end='', flush=True)")
    run = [sys.executable, "-m", "holdfast.cli", "run", "--state", str(state), str(script)]
    ran = subprocess.run(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=True)
    assert b"half a line\nholdfast: " in ran.stdout
