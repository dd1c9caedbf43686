"""Bad input: each gets a clear sentence and the right exit code; nothing hangs, nothing is left behind, nothing saved is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from end_to_end.jobs import Job, command, eventually, expected_result, is_alive

from holdfast.domain.job import Outcome

USER_ERROR, PERMANENT, BROKEN = 2, 80, 81


def script(directory: Path, text: str, name: str = "train.py") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_a_script_that_does_not_exist_is_refused_and_the_near_ones_are_named(state: Path) -> None:
    work = state / "work"
    work.mkdir()
    script(work, "print('hello')")
    ran = command("run", "trian.py", cwd=work)
    assert ran.returncode == USER_ERROR
    assert "there is no script 'trian.py'" in ran.stderr
    assert "train.py" in ran.stderr
    assert not (state / "jobs").exists(), "nothing was started or written"


def test_a_syntax_error_is_refused_with_its_line(state: Path) -> None:
    ran = command("run", script(state, "x = 1\nfor:\n"))
    assert ran.returncode == USER_ERROR
    assert "line 2" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_module_or_a_program_that_is_not_there_is_refused_or_permanent(state: Path) -> None:
    ran = command("run", "-m", "no_such_module_anywhere")
    assert ran.returncode == USER_ERROR
    assert "no module 'no_such_module_anywhere'" in ran.stderr
    ran = command("run", "--no-python", "no-such-program-anywhere")
    assert ran.returncode in (USER_ERROR, PERMANENT)
    assert "no-such-program-anywhere" in ran.stderr


def test_a_script_that_cannot_import_what_it_needs_is_permanent_and_tried_once(state: Path) -> None:
    started = state / "started"
    path = script(state, f"open({str(started)!r}, 'a').write('x')\nimport a_module_that_is_nowhere\n")
    ran = command("run", "--name", "job", path)
    assert ran.returncode == PERMANENT, ran.stderr
    assert started.read_text() == "x", "nobody is helped by another try"
    assert "a_module_that_is_nowhere" in ran.stderr
    assert ran.stderr.rstrip().endswith("ModuleNotFoundError: No module named 'a_module_that_is_nowhere'"), "the first cause's traceback is printed last"


REFUSED = {
    "unrecognized arguments: --nosuch": "import argparse\nargparse.ArgumentParser().parse_args(['--nosuch'])\n",
    "nothing is known about its state": "from holdfast.errors import UserError\n"
    "raise UserError('ema is an EMA, and nothing is known about its state')\n",
    "No such file or directory: 'train.bin'": "open('train.bin')\n",
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_no_other_try_would_pass_ends_the_job_at_the_first(state: Path, says: str) -> None:
    started = state / "started"
    path = script(state, f"open({str(started)!r}, 'a').write('x')\n" + REFUSED[says])
    ran = command("run", "--name", "job", path, cwd=state)
    assert ran.returncode == PERMANENT, ran.stderr
    assert started.read_text() == "x", "nobody is helped by another try"
    assert says in ran.stderr
    assert ran.stderr.count("incident 1 diagnosed") == 1


def test_a_file_that_comes_late_is_waited_for(state: Path) -> None:
    """It is not there at the first try, and is by the time the node looks for it."""
    late = state / "late.bin"
    path = script(state, f"try:\n    open({str(late)!r})\nexcept OSError:\n    open({str(late)!r}, 'w')\n    raise\n")
    ran = command("run", path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--nproc", "many"], "--nproc-per-node is a number"),
        (["--nproc", "0"], "at least 1"),
        (["--nnodes", "4:2"], "write 2:4"),
        (["--nnodes", "none"], "number of nodes"),
        (["--checkpoint-every", "often"], "a number of steps, a time such as 30s, 5m or 2h, or `auto`, not 'often'"),
        (["--checkpoint-every", "-5"], "must not be below 0, as -5 is"),
        (["--name", "../up"], "cannot be a job's name"),
        (["--no-such-option"], "No such option"),
        (["--nproc", "100000"], "this machine can hold about"),
        (["--memory", "8G"], "--memory is a size such as 512MB, 8GB or 7.5GiB, not '8G'"),
        (["--node_rank", "1"], "--node-rank 1: Holdfast runs on one machine for now"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_refused_with_the_reason(state: Path, options: list[str], says: str) -> None:
    ran = command("run", *options, script(state, "pass"))
    assert ran.returncode == USER_ERROR
    said = " ".join(ran.stderr.replace("│", " ").replace("_", "-").split())
    assert says.replace("_", "-") in said
    assert "Traceback" not in ran.stderr


def test_the_same_job_is_not_run_twice_and_the_first_is_not_disturbed(state: Path) -> None:
    with Job(state, arguments=["--steps", 300, "--step-s", 0.03]) as job:
        job.wait_for_step(5)
        ran = command("run", "--name", job.name, script(state, "print('second')"))
        assert ran.returncode == USER_ERROR
        assert f"is being run already, by process {job.process.pid}" in ran.stderr
        assert command("resume", job.name).returncode == USER_ERROR
        job.hurry()
        job.finished()
    assert job.result() == expected_result(300, 1)
    assert len(job.starts()) == 1


@pytest.mark.parametrize("verb", ["resume", "attach", "show", "logs", "stop", "replay", "incidents"])
def test_a_job_that_does_not_exist_is_said_to_be_unknown(state: Path, verb: str) -> None:
    ran = command(verb, "nobody")
    assert ran.returncode == USER_ERROR
    assert "there is no job 'nobody'" in ran.stderr


def test_a_state_directory_that_cannot_be_written_is_said_before_anything_starts(state: Path) -> None:
    (state / "file").write_text("in the way")
    ran = command("run", "--state", state / "file", script(state, "pass"))
    assert ran.returncode == USER_ERROR
    assert f"the state directory {state / 'file'} cannot be written" in ran.stderr
    assert "--state" in ran.stderr


@pytest.mark.unprivileged
@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_state_directory_of_somebody_else_is_said_before_anything_starts(state: Path) -> None:
    closed = state / "closed"
    closed.mkdir(mode=0o500)
    ran = command("run", "--state", closed, script(state, "pass"))
    assert ran.returncode == USER_ERROR
    assert "cannot be written: Permission denied" in ran.stderr


def test_busy_ports_do_not_matter_because_every_generation_gets_a_free_one(state: Path) -> None:
    # torchrun's default port is taken, and so is whatever the environment names.
    with contextlib.ExitStack() as held:
        taken = [held.enter_context(socket.create_server(("127.0.0.1", 0)))]
        with contextlib.suppress(OSError):
            taken.append(held.enter_context(socket.create_server(("127.0.0.1", 29500))))
        port = taken[0].getsockname()[1]
        with Job(state, options=["--nproc", 2], arguments=["--fault", "kill@10@1"], env={"MASTER_PORT": str(port), "MASTER_ADDR": "192.0.2.1"}) as job:
            job.finished()
    assert job.result() == expected_result(60, 2)


@pytest.mark.unprivileged
def test_a_worker_that_ignores_sigterm_is_killed_when_its_grace_is_over(state: Path) -> None:
    with Job(state, options=["--nproc", 2, "--stop-grace-s", 1], arguments=["--deaf", "--steps", 100000]) as job:
        job.wait_for_step(5)
        workers = [start.pid for start in job.starts()]
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
        assert not any(map(is_alive, workers))


@pytest.mark.unprivileged
def test_what_a_worker_leaves_behind_is_ended_with_the_job(state: Path) -> None:
    # Twice forked, in a session of its own, environment wiped, deaf to SIGTERM: whoever still finds it has looked properly.
    daemon = state / "daemon"
    text = f"""
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.execve(sys.executable, [sys.executable, "-c", "import os, time; open({str(daemon)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"], {{}})
while not os.path.exists({str(daemon)!r}) or not open({str(daemon)!r}).read():
    time.sleep(0.01)
"""
    ran = command("run", script(state, text))
    assert ran.returncode == 0, ran.stderr
    eventually(lambda: not is_alive(int(daemon.read_text())), within_s=10.0, what="the end of the daemon")


def test_invalid_utf_8_arrives_as_it_was_printed(state: Path) -> None:
    path = script(state, "import os, sys\nos.write(1, b'\\xff\\xfe\\x00 half \\xe2\\x82')\nos.write(2, b'\\xf0\\x9f\\n')\nraise ValueError('\\udcff')\n")
    with Job(state, script=path, options=["--max-restarts", 0]) as job:
        assert job.wait() == 1
    assert job.stdout.read_bytes().startswith(b"\xff\xfe\x00 half \xe2\x82")
    assert job.incidents()[0].diagnoses[0].cause == "exception"
    for words in (("show", job.name), ("incidents", job.name, "1"), ("logs", job.name), ("incidents", job.name, "1", "--json"), ("replay", job.name)):
        assert command(*words).returncode == 0, words


def test_a_log_of_one_line_of_200_mb_stops_nobody(state: Path) -> None:
    text = "import sys\nfor _ in range(200):\n    sys.stdout.write('x' * (1 << 20))\nsys.stdout.flush()\nprint('and a last line')\n"
    began = time.monotonic()
    with Job(state, script=script(state, text)) as job:
        assert job.wait(100.0) == 0, job.said()[-2000:]
    assert job.directory.rank_log(0).read_bytes().endswith(b"and a last line\n")
    ran = command("logs", job.name, "-n", "1")
    assert ran.returncode == 0
    assert time.monotonic() - began < 110.0


@pytest.fixture
def small_disk(state: Path) -> Iterator[Path]:
    """A disk of a few megabytes; only root can make one."""
    place = state / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)], capture_output=True, check=False, timeout=30)
    if made.returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    yield place
    eventually(lambda: subprocess.run(["umount", str(place)], capture_output=True, check=False, timeout=30).returncode == 0, what="umount")


@pytest.mark.root
def test_a_full_disk_is_said_in_a_sentence_and_what_was_saved_is_kept(state: Path, small_disk: Path) -> None:
    with Job(small_disk, arguments=["--steps", 200, "--step-s", 0.02]) as job:
        job.wait_for_step(30)
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        code = job.wait(100.0)
        said = job.stderr.read_text()
        # The script itself cannot write either, so the job cannot finish; how it ends is said, and nothing is left running.
        assert code != 0
        assert "No space left on device" in said or "full" in said, said
        assert "Traceback (most recent call last):\n  File" not in said.split("holdfast:")[0]
        filler.unlink()
        job.hurry()
    with Job(small_disk, verb="resume") as again:
        ended = again.finished(100.0)
    assert ended.outcome is Outcome.FINISHED
    assert again.result() == expected_result(200, 1), "what was saved before the disk was full is still there"
