"""Whatever a storm does is put right: at its end, and also when the storm itself is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent import tree
from holdfast.chaos.undo import End, InNetwork, Remove, Send, Undoing, Write, identity, network_of

STRIKES = """
import os, signal, sys, time
from pathlib import Path
from holdfast.chaos.undo import Send, Undoing, identity, watchdog
path, pid = Path(sys.argv[1]), int(sys.argv[2])
with watchdog(path):
    Undoing(path).add(Send(process=identity(pid), signal=signal.SIGCONT))
    os.kill(pid, signal.SIGSTOP)
    print("struck", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process.pid
        process.kill()


def eventually(look: object) -> None:
    deadline = time.monotonic() + 30.0
    while not look():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_undos_are_done_from_the_newest_to_the_oldest_and_then_forgotten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("spoiled")
    (tmp_path / "dir").mkdir()
    undoing = Undoing(tmp_path / "undo")
    undoing.add(Remove(path=str(tmp_path / "dir")), Remove(path=str(tmp_path / "dir" / "inner")))
    undoing.add(Write(path=str(tmp_path / "file"), data=b"right  "))
    (tmp_path / "dir" / "inner").write_text("")
    assert undoing.heal() == []
    assert (tmp_path / "file").read_text() == "right  "
    assert not (tmp_path / "dir").exists()
    assert not undoing.path.exists()
    assert undoing.heal() == []


def test_what_was_only_half_written_down_was_never_done(tmp_path: Path) -> None:
    undoing = Undoing(tmp_path / "undo")
    (tmp_path / "file").write_text("")
    undoing.add(Remove(path=str(tmp_path / "file")))
    with undoing.path.open("ab") as file:
        file.write(b'{"type":"Remo')
    assert undoing.heal() == []
    assert not (tmp_path / "file").exists()


def test_half_a_line_takes_nothing_with_it_that_is_written_after_it(tmp_path: Path) -> None:
    undoing = Undoing(tmp_path / "undo")
    undoing.path.write_bytes(b'{"type":"Remo')
    (tmp_path / "file").write_text("")
    undoing.add(Remove(path=str(tmp_path / "file")))
    assert undoing.heal() == []
    assert not (tmp_path / "file").exists()


def test_what_this_version_does_not_know_is_said_and_kept(tmp_path: Path) -> None:
    undoing = Undoing(tmp_path / "undo")
    undoing.path.write_bytes(b'{"type":"Rewind"}\n')
    (problem,) = undoing.heal()
    assert "Rewind" in problem
    assert undoing.path.exists()


def test_what_a_new_storm_writes_down_while_an_old_watchdog_still_heals_is_not_lost(tmp_path: Path, sleeper: int) -> None:
    undoing = Undoing(tmp_path / "undo")
    undoing.add(Send(process=identity(sleeper), signal=signal.SIGSTOP, ends=True))  # It does not end, so whoever heals is busy for five seconds.
    with subprocess.Popen([sys.executable, "-m", "holdfast.chaos.undo", str(undoing.path), str(2**22 - 1), "1"]) as watchdog:
        eventually(lambda: tree.state(sleeper) == "T")
        undoing.add(Send(process=identity(sleeper), signal=signal.SIGCONT))
        os.kill(sleeper, signal.SIGSTOP)
        assert watchdog.wait(30) == 0
    assert undoing.path.exists()
    assert undoing.heal() == []
    eventually(lambda: tree.state(sleeper) != "T")


def test_what_is_gone_already_needs_nothing(tmp_path: Path) -> None:
    undoing = Undoing(tmp_path / "undo")
    undoing.add(Remove(path=str(tmp_path / "gone")), Write(path=str(tmp_path / "gone"), data=b"x"), Send(process=(2**22 - 1, 1), signal=signal.SIGCONT))
    assert undoing.heal() == []


def test_a_process_that_is_another_one_by_now_is_left_alone(tmp_path: Path, sleeper: int) -> None:
    undoing = Undoing(tmp_path / "undo")
    stranger = (sleeper, identity(sleeper)[1] - 1)
    undoing.add(Send(process=stranger, signal=signal.SIGKILL), End(process=stranger))
    assert undoing.heal() == []
    assert tree.state(sleeper) not in ("Z", "X")


def test_when_the_storm_is_killed_its_watchdog_puts_things_right_and_leaves(tmp_path: Path, sleeper: int) -> None:
    with subprocess.Popen([sys.executable, "-c", STRIKES, str(tmp_path / "undo"), str(sleeper)], stdout=subprocess.PIPE) as storm:
        assert storm.stdout is not None
        assert storm.stdout.readline() == b"struck\n"
        eventually(lambda: tree.state(sleeper) == "T")
        watching = [one.pid for one in tree.descendants(storm.pid)]
        os.kill(storm.pid, signal.SIGKILL)
    eventually(lambda: tree.state(sleeper) != "T")
    eventually(lambda: not (tmp_path / "undo").exists())
    eventually(lambda: all(tree.read(pid) is None for pid in watching))


def test_a_storm_that_leaves_in_a_hurry_leaves_the_rest_to_its_watchdog(tmp_path: Path, sleeper: int) -> None:
    hurried = STRIKES.replace("time.sleep(60)", "raise KeyboardInterrupt")
    subprocess.run([sys.executable, "-c", hurried, str(tmp_path / "undo"), str(sleeper)], capture_output=True, check=False, timeout=30)
    eventually(lambda: tree.state(sleeper) != "T")
    eventually(lambda: not (tmp_path / "undo").exists())


def test_what_could_not_be_put_right_is_kept_for_the_next_one_who_tries(tmp_path: Path) -> None:
    undoing = Undoing(tmp_path / "undo")
    (tmp_path / "spoiled").mkdir()
    (tmp_path / "gone").write_text("")
    undoing.add(Write(path=str(tmp_path / "spoiled"), data=b"x"), Remove(path=str(tmp_path / "gone")))
    (problem,) = undoing.heal()
    assert "spoiled" in problem
    assert not (tmp_path / "gone").exists()
    (tmp_path / "spoiled").rmdir()
    assert undoing.heal() == []
    assert not undoing.path.exists()


@pytest.mark.root
def test_a_network_is_put_right_as_long_as_anybody_holds_it_and_one_that_is_gone_needs_nothing(tmp_path: Path) -> None:
    undoing = Undoing(tmp_path / "undo")
    with subprocess.Popen(["unshare", "-n", sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as inside:
        assert inside.stdout is not None
        inside.stdout.readline()
        network = network_of(inside.pid)
        held = os.open(f"/proc/{inside.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        inside.kill()
    undoing.add(InNetwork(network=network, argv=("sh", "-c", f"ip -o link > {tmp_path}/seen")))
    assert undoing.heal() == []
    seen = (tmp_path / "seen").read_text().splitlines()
    assert all(": lo:" in line or "DOWN" in line for line in seen)
    (tmp_path / "seen").unlink()
    os.close(held)
    undoing.add(InNetwork(network=network, argv=("touch", str(tmp_path / "seen"))))
    assert undoing.heal() == []
    assert not (tmp_path / "seen").exists()


@pytest.mark.root
@pytest.mark.skipif(shutil.which("tc") is None, reason="tc is not installed")
def test_a_queue_that_was_never_put_into_a_network_needs_nothing(tmp_path: Path) -> None:
    undoing = Undoing(tmp_path / "undo")
    with subprocess.Popen(["unshare", "-n", sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as inside:
        assert inside.stdout is not None
        inside.stdout.readline()
        for queue in ("root", "clsact"):
            undoing.add(InNetwork(network=network_of(inside.pid), argv=("tc", "qdisc", "del", "dev", "lo", queue)))
        assert undoing.heal() == []
        inside.kill()
