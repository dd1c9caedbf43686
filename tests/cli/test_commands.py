"""The commands, as a person at a shell meets them: stopping, coming back, watching, and what a script finds when it starts."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from end_to_end.jobs import LIGHT, Job, command, environment, eventually, expected_result, is_alive

from holdfast.domain.job import Outcome

FOREVER = ("--steps", 100000)
TORCHRUN_SETS = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
}  # fmt: skip


def test_ctrl_c_saves_and_leaves_and_resume_goes_on_from_there(state: Path) -> None:
    with Job(state, options=["--nproc", 2], arguments=["--steps", 200, "--step-s", 0.02, "--save-every", 1000]) as job:
        job.wait_for_step(20)
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130, job.said()
    stopped = job.state()
    assert stopped.outcome is Outcome.STOPPED
    assert not stopped.incidents, "a stop that was asked for is no incident"
    saved = [int(path.name.split("-")[1]) for path in job.kept.glob("save-*-0")]
    assert len(saved) == 1, "the only save is the one made on leaving"
    with Job(state, verb="resume") as again:
        again.wait_for_step(saved[0] + 1)
        assert again.step() >= saved[0] > 0
        again.hurry()
        again.finished()
    assert again.result() == expected_result(200, 2)


def test_a_second_ctrl_c_does_not_wait(state: Path) -> None:
    with Job(state, options=["--nproc", 2, "--stop-grace-s", 600], arguments=["--deaf", *FOREVER]) as job:
        job.wait_for_step(5)
        job.process.send_signal(signal.SIGINT)
        eventually(lambda: job.state().stop, what="the stop in the journal")
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_stop_gracefully_with_their_own_code(state: Path, signum: signal.Signals, code: int) -> None:
    with Job(state, arguments=FOREVER) as job:
        job.wait_for_step(5)
        job.process.send_signal(signum)
        assert job.wait() == code
    assert list(job.kept.glob("save-*-0"))


@pytest.mark.parametrize("wrapped", [False, True])
def test_ctrl_c_reaches_a_script_without_our_lines_as_ctrl_c(state: Path, wrapped: bool) -> None:
    script, kept = state / "own.py", state / "kept"
    script.write_text(
        "import pathlib, sys, time\nkept = pathlib.Path(sys.argv[1])\ntry:\n    (kept / 'began').touch()\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    (kept / 'saved').touch()\n"
    )
    kept.mkdir()
    line = ["--no-python", "sh", "-c", f"{sys.executable} {script} {kept}; exit 0"] if wrapped else [script, kept]
    with subprocess.Popen([sys.executable, "-m", "holdfast.cli", "run", "--name", "job", *map(str, line)], env=environment(HOLDFAST_STATE=str(state))) as run:
        eventually(lambda: (kept / "began").exists(), what="the script")
        run.send_signal(signal.SIGINT)
        assert run.wait(30) == 130
    assert (kept / "saved").exists()


def test_a_lost_terminal_stops_the_job_gracefully(state: Path) -> None:
    leader, terminal = pty.openpty()
    kept = state / "kept"
    kept.mkdir()
    line = [sys.executable, "-m", "holdfast.cli", "run", "--name", "job", str(LIGHT), str(kept), "--steps", "100000", "--step-s", "0.02"]
    # The terminal must be the session's own, as a shell's is: then the kernel says SIGHUP when it goes.
    own = {"start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
    with subprocess.Popen(line, env=environment(TERM="xterm"), stdin=terminal, stdout=terminal, stderr=terminal, **own) as run:
        os.close(terminal)
        progress = kept / "rank-0"
        eventually(lambda: (progress.exists() and progress.read_text()) or drained(leader), what="a first step")
        os.close(leader)
        assert run.wait(60.0) == 129
    assert list(kept.glob("save-*-0")), "it saved before it left"


def drained(terminal: int) -> None:
    """Read what is there, as a terminal does: a full one would stop whoever prints."""
    os.set_blocking(terminal, False)
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:
        return


def test_killing_holdfast_run_leaves_nothing_behind_and_resume_goes_on(state: Path) -> None:
    with Job(state, options=["--nodes", 2], arguments=["--steps", 200, "--step-s", 0.02]) as job:
        job.wait_for_step(20)
        everyone = [job.control(), *(find(node) for node in ("node-0", "node-1") for find in (job.agent, job.warm_parent)), job.pid(0), job.pid(1)]
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait(10.0)
        eventually(lambda: not any(map(is_alive, everyone)), what="the end of control, agents, warm parents and workers")
    assert not job.directory.control_socket.exists()
    reached = max(int(path.name.split("-")[1]) for path in job.kept.glob("save-*-0"))
    job.hurry()
    with Job(state, verb="resume") as again:
        again.finished()
    assert reached >= 15
    assert again.result() == expected_result(200, 2)


def test_the_processes_of_a_job_can_be_told_apart(state: Path) -> None:
    with Job(state, arguments=FOREVER) as job:
        job.wait_for_step(1)
        pid = job.pid(0)
        pids = eventually(lambda: json.loads(command("show", "job", "--json").stdout)["pids"], what="a first reading of the rank")
        assert pids == {"0": pid}
        assert f"{pid} (rank 0)" in command("show", "job").stdout
        (look,) = [json.loads(line) for line in command("watch", "job", "--once", "--json").stdout.splitlines()]
        assert [row["pid"] for row in look["ranks"]] == [pid]
        title = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0")
        assert title.endswith("[holdfast job rank 0]")
        assert str(LIGHT) in title
        names = {other: Path(f"/proc/{other}/comm").read_text().strip() for other in (pid, job.agent(), job.control(), job.warm_parent())}
        assert list(names.values()) == ["light.py", "holdfast-agent", "holdfast-ctrl", "holdfast-parent"]


def test_a_detached_job_can_be_listed_watched_followed_and_stopped(state: Path) -> None:
    kept = state / "kept"
    kept.mkdir()
    ran = command("run", "--detach", "--json", "--name", "job", LIGHT, kept, *FOREVER)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"job": "job", "detached": True}
    try:
        assert json.loads(command("show", "job", "--json").stdout)["job"] == "job", "the next command may be about it"
        eventually(lambda: (kept / "rank-0").exists(), what="a first step")
        (row,) = json.loads(command("ps", "--json").stdout)
        assert row["running"]
        following = subprocess.Popen([sys.executable, "-m", "holdfast.cli", "logs", "-f", "job"], env=environment(), stdout=subprocess.PIPE)
        attached = subprocess.Popen([sys.executable, "-m", "holdfast.cli", "attach", "--json", "job"], env=environment(), stdout=subprocess.PIPE)
        assert json.loads(command("show", "job", "--json").stdout)["job"] == "job"
    finally:
        stopped = command("stop", "job", "--json")
    assert json.loads(stopped.stdout) == {"job": "job", "stopped": True}
    assert b"rank 0 leaves after step" in following.communicate(timeout=30)[0]
    seen = [json.loads(line) for line in attached.communicate(timeout=30)[0].splitlines()]
    assert seen[-1]["kind"] == "summary"
    assert attached.returncode == 143
    assert command("stop", "job").returncode == 2, "there is nothing left to stop"


def test_rank_0_is_passed_on_byte_for_byte_and_arguments_arrive_as_typed(state: Path) -> None:
    path = state / "say.py"
    path.write_text("import os, sys\nif os.environ['RANK'] == '0':\n    os.write(1, repr(sys.argv[1:]).encode() + b'\\r\\x1b[2K 50%|\\xe2\\x96\\x88 |')\n")
    with Job(state, script=path, options=["--nproc", 2], arguments=["--nproc", "9", "a b", "", "--", "-x"]) as job:
        job.finished()
    assert job.stdout.read_bytes() == b"['--nproc', '9', 'a b', '', '--', '-x']\r\x1b[2K 50%|\xe2\x96\x88 |"


def test_modules_and_programs_run_as_under_torchrun(state: Path) -> None:
    (state / "pack").mkdir()
    (state / "pack" / "__main__.py").write_text("import sys\nprint('module', __name__, __package__, sys.argv[1:])\n")
    ran = command("run", "-m", "pack", "one", cwd=state)
    assert (ran.returncode, ran.stdout) == (0, "module __main__ pack ['one']\n"), ran.stderr
    ran = command("run", "--no-python", "/bin/sh", "-c", "echo program $RANK of $WORLD_SIZE", cwd=state)
    assert (ran.returncode, ran.stdout) == (0, "program 0 of 1\n"), ran.stderr


@pytest.mark.parametrize(
    ("body", "code"),
    [("raise SystemExit(7)", 7), ("raise ValueError", 1), ("import os; os.kill(os.getpid(), 9)", 137), ("import os; os.kill(os.getpid(), 11)", 139), ("", 0)],
)
def test_the_jobs_own_code_is_passed_on_when_restarts_are_off(state: Path, body: str, code: int) -> None:
    path = state / "end.py"
    path.write_text(body)
    assert command("run", "--max-restarts", "0", path).returncode == code


def test_a_fault_that_repeats_in_the_same_place_is_permanent_and_its_traceback_comes_last(state: Path) -> None:
    path = state / "end.py"
    path.write_text("def deep():\n    raise ValueError('again and again')\ndeep()\n")
    ran = command("run", path)
    assert ran.returncode == 80, ran.stderr
    assert ran.stderr.rstrip().endswith("ValueError: again and again")


def test_every_command_speaks_json_after_a_job_with_an_incident(state: Path) -> None:
    with Job(state, options=["--json"], arguments=["--fault", "exception@30@0"]) as job:
        job.finished()
    records = [json.loads(line) for line in job.stdout.read_text().splitlines()]
    assert records[-1]["kind"] == "summary"
    for words in ("ps", "show job", "incidents job", "incidents job 1", "replay job", "replay job 1", "logs job", "version"):
        ran = command(*words.split(), "--json")
        assert ran.returncode == 0, (words, ran.stderr)
        json.loads(ran.stdout)
        assert command(*words.split()).returncode == 0, words


PROBE = "import json, os, sys\nopen(sys.argv[1] + os.environ['RANK'], 'w').write(json.dumps(dict(os.environ)))\n"


def test_all_variables_of_torchrun_are_set(state: Path) -> None:
    path = state / "probe.py"
    path.write_text(PROBE)
    ran = command("run", "--nnodes=2", "--nproc_per_node", "2", "--standalone", "--max_restarts=3", path, state / "ours-")
    assert ran.returncode == 0, ran.stderr
    ours = [json.loads((state / f"ours-{rank}").read_text()) for rank in range(4)]
    assert all(found.keys() >= TORCHRUN_SETS for found in ours)
    assert [(found["RANK"], found["LOCAL_RANK"], found["GROUP_RANK"]) for found in ours] == [("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1")]
    assert {found["WORLD_SIZE"] for found in ours} == {"4"}
    assert {found["OMP_NUM_THREADS"] for found in ours} == {os.environ.get("OMP_NUM_THREADS", "1")}


@pytest.mark.slow
def test_the_variables_have_the_values_torchrun_gives_them(state: Path) -> None:
    path = state / "probe.py"
    path.write_text(PROBE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path), str(state / "theirs-")]
    subprocess.run(torchrun, env=environment(torch=True), check=True, capture_output=True, timeout=100)
    assert command("run", "--nproc-per-node", "2", path, state / "ours-", torch=True, within_s=100.0).returncode == 0
    # Addresses, names, paths and habits are each launcher's own; the rest must be the same.
    own = {"MASTER_ADDR", "MASTER_PORT"} | {f"TORCHELASTIC_{name}" for name in ("RUN_ID", "ERROR_FILE", "MAX_RESTARTS", "SIGNALS_TO_HANDLE")}
    for rank in range(2):
        theirs, ours = (json.loads((state / f"{who}-{rank}").read_text()) for who in ("theirs", "ours"))
        set_by_them = {name for name in theirs if name.startswith(("TORCHELASTIC_", "MASTER_")) or name.endswith(("RANK", "WORLD_SIZE", "ROLE_NAME"))}
        assert set_by_them >= TORCHRUN_SETS
        assert set_by_them <= ours.keys()
        assert {name: theirs[name] for name in set_by_them - own} == {name: ours.get(name) for name in set_by_them - own}


def test_a_job_name_that_is_run_again_goes_on_and_the_time_between_is_accounted_for(state: Path) -> None:
    with Job(state, arguments=["--steps", 40]) as job:
        job.finished()
    began = time.time()
    with Job(state, arguments=["--steps", 60]) as again:
        ended = again.finished()
    assert again.result() == expected_result(60, 1)
    assert abs(sum(ended.ledger.totals().values()) - ended.ledger.wall_s) < 1e-6 * max(1.0, ended.ledger.wall_s)
    assert ended.at >= began
