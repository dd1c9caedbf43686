"""What hangs is named, and nobody waits for it: a disk that is stuck, a mount whose other end is dead, a check that never returns."""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.doctor import run_doctor
from holdfast.preflight import examine as examining
from holdfast.preflight import mounts
from holdfast.preflight.check import Place, Verdict
from holdfast.preflight.examine import CHECKS, TOTAL_S, answers, examine

MARGIN_S = 60.0 - TOTAL_S
_DETACH = 2


@pytest.fixture
def dead_mount(tmp_path: Path) -> Iterator[Path]:
    """A file system whose server never answers: nothing that touches it returns, until it is ended."""
    path = tmp_path / "dead"
    path.mkdir()
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("mounting needs root, and /dev/fuse")
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    if libc.mount(b"dead", bytes(path), b"fuse", 0, f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()):
        os.close(fd)
        pytest.skip(f"nothing can be mounted here: {os.strerror(ctypes.get_errno())}")
    yield path
    os.close(fd)  # Whoever waits gets an error now.
    libc.umount2(bytes(path), _DETACH)


@pytest.fixture
def stuck_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that takes no write: who tries is in the kernel's hands, and not even SIGKILL ends it."""
    path, image = tmp_path / "stuck", tmp_path / "image"
    path.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 1 << 30)
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(path)], ["fsfreeze", "-f", str(path)]):
        with suppress(FileNotFoundError):
            if subprocess.run(command, check=False, capture_output=True).returncode == 0:
                continue
        subprocess.run(["umount", str(path)], check=False, capture_output=True)
        pytest.skip(f"{command[0]} is not possible here")
    yield path
    subprocess.run(["fsfreeze", "-u", str(path)], check=True)
    for process in examining._stuck:
        process.wait(30.0)
    examining._stuck.clear()
    subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "QUICK_WITHIN_S", 3.0)


@pytest.mark.usefixtures("impatient")
def test_a_dead_mount_is_named_and_the_other_disk_is_looked_at_all_the_same(tmp_path: Path, dead_mount: Path) -> None:
    assert mounts.mount_of(str(dead_mount / "jobs")) == str(dead_mount)
    began = time.monotonic()
    first, second = examine(Place(state=str(tmp_path), checkpoints=str(dead_mount / "jobs")), ["storage"])
    assert first.verdict in (Verdict.OK, Verdict.WARN)
    assert (second.verdict, second.culprit) == (Verdict.BAD, str(dead_mount / "jobs"))
    assert "no answer within 3 s, while it looked at " in second.said
    assert time.monotonic() - began < 30.0
    assert not answers(str(dead_mount), 0.5)
    assert answers(str(tmp_path), 10.0)
    assert answers(str(tmp_path / "not there"), 10.0)


@pytest.mark.usefixtures("impatient")
def test_a_disk_that_is_stuck_is_named_though_its_check_cannot_even_be_killed(tmp_path: Path, stuck_disk: Path) -> None:
    (found,) = examine(Place(state=str(stuck_disk), checkpoints=str(stuck_disk)), ["storage"])
    assert (found.verdict, found.culprit) == (Verdict.BAD, str(stuck_disk))
    assert [process.poll() for process in examining._stuck] == [None]


def test_the_whole_command_ends_and_names_the_place_where_jobs_are_kept(dead_mount: Path) -> None:
    out = io.StringIO()
    began = time.monotonic()
    assert run_doctor(dead_mount, "job", only="limits", full=False, as_json=True, out=out) == 1
    assert time.monotonic() - began < 30.0
    first = json.loads(out.getvalue())["checks"][0]
    assert (first["name"], first["verdict"], first["culprit"]) == ("storage", "bad", str(dead_mount))


def test_whatever_hangs_all_checks_together_are_done_within_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a tenth of the time: every check hangs."""
    monkeypatch.setattr(examining, "_LEAST_S", examining._LEAST_S / 10)
    monkeypatch.setattr(examining, "QUICK_WITHIN_S", examining.QUICK_WITHIN_S / 10)
    hangs = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
    began = time.monotonic()
    found = list(examine(Place(state=str(tmp_path), checkpoints=str(tmp_path)), prefix=hangs, until=began + TOTAL_S / 10))
    assert time.monotonic() - began < TOTAL_S / 10 + MARGIN_S
    assert [check.name for check in found] == list(CHECKS)
    assert all(check.verdict is not Verdict.OK for check in found)


def test_what_there_was_no_time_for_is_said_and_why(tmp_path: Path) -> None:
    hangs = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
    place = Place(state=str(tmp_path), checkpoints=str(tmp_path))
    found = list(examine(place, ["clock", "limits"], prefix=hangs, until=time.monotonic() + 0.2))
    assert [check.verdict for check in found] == [Verdict.BAD, Verdict.WARN]
    assert "were over, since clock did not answer" in found[1].said


def test_a_check_that_dies_after_it_found_something_keeps_what_it_found(tmp_path: Path) -> None:
    says = 'print(\'{"looking":"core 3"}\\n{"found":{"name":"compute","verdict":"ok","said":"so far"}}\', flush=True)'
    dies = [sys.executable, "-c", f"import os; {says}; os.kill(os.getpid(), {int(signal.SIGBUS)})"]
    found = list(examine(replace(Place(state=str(tmp_path), checkpoints=str(tmp_path)), node="n"), ["compute"], prefix=dies))
    assert [(check.verdict, check.node) for check in found] == [(Verdict.OK, "n"), (Verdict.BAD, "n")]
    assert "SIGBUS" in found[1].said
