"""The one who looks for leftovers finds them, and does not cry wolf."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import leftovers
import pytest

pytestmark = pytest.mark.unprivileged

DAEMON = "import os, sys; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); os.execvp('sleep', ['sleep', '60'])"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "PATIENCE_S", 0.3)


def finish(watching: object) -> str:
    """What the fixture says at its end."""
    with pytest.raises(AssertionError) as said:
        next(watching)  # type: ignore[call-overload]
    return str(said.value)


def test_a_child_left_running_is_named_and_ended() -> None:
    watching = leftovers.watch("probe-child")
    next(watching)
    with subprocess.Popen(["sleep", "60"]) as child:
        assert f"pid {child.pid} " in finish(watching)
    # The watcher has reaped it, so what remains for the owner is a status nobody can know any more.
    assert child.returncode is not None


def test_a_daemon_that_left_its_family_is_found_by_its_mark() -> None:
    watching = leftovers.watch("probe-daemon")
    next(watching)
    subprocess.run([sys.executable, "-c", DAEMON], check=True, timeout=20)
    deadline = time.monotonic() + 20.0
    # Until the exec is over: in the middle of it a process has no environment to be known by.
    while not [process for process in leftovers.all_processes() if process.mark == "probe-daemon" and process.command == "sleep 60"]:
        assert time.monotonic() < deadline, "the daemon did not start"
    said = finish(watching)
    assert "sleep 60" in said
    # It was killed and may take a moment to die.
    assert not leftovers.wait_until_empty(
        lambda: [process for process in leftovers.all_processes() if process.mark == "probe-daemon" and process.state != "Z"]
    )


def test_whoever_starts_something_is_noticed_by_the_newest_process_id() -> None:
    """Else nobody would look for what was left."""
    before = leftovers.newest_pid()
    subprocess.run(["true"], check=True, timeout=20)
    assert leftovers.newest_pid() != before


def test_a_test_that_cleans_up_is_left_alone() -> None:
    watching = leftovers.watch("probe-clean")
    next(watching)
    subprocess.run(["true"], check=True, timeout=20)
    assert next(watching, "ended") == "ended"


def test_shared_memory_left_behind_is_named() -> None:
    watching = leftovers.watch("probe-memory")
    next(watching)
    path = leftovers.SHARED_MEMORY / f"holdfast-probe-{os.getpid()}"
    path.write_bytes(b"0" * 16)
    try:
        assert path.name in finish(watching)
    finally:
        path.unlink()


def test_a_socket_file_left_behind_is_found(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        previous = os.getcwd()
        os.chdir(tmp_path)  # A relative name, because a socket's path may not be long.
        try:
            listener.bind("s")
        finally:
            os.chdir(previous)
    assert leftovers.sockets_under(tmp_path) == ["s"]


@pytest.mark.root
def test_a_control_group_left_behind_is_named_and_one_whose_job_runs_is_not() -> None:
    homes = [Path("/sys/fs/cgroup") / line.split(":")[1] / line.split(":", 2)[2].lstrip("/") for line in Path("/proc/self/cgroup").read_text().splitlines()]
    home = next((home for home in homes if os.access(home, os.W_OK)), None)
    if home is None:
        pytest.skip("no control group can be made here")
    mark = f"holdfast-test-{os.getpid()}-"
    group = home / f"{mark}node-0.job"
    watching = leftovers.watch("probe-group")
    next(watching)
    group.mkdir()
    try:
        assert str(group) in finish(watching)
        with subprocess.Popen(["sleep", "60"], env={"HOLDFAST_NODE": f"{mark}node-1"}) as child:
            try:
                assert leftovers.wait_until_empty(lambda: leftovers.unheld_groups([group])) == []
            finally:
                child.kill()
    finally:
        group.rmdir()
