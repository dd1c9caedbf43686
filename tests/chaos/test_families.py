"""What is done to cores and disks is done for real, and put right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.chaos import cores
from holdfast.chaos.disks import is_own
from holdfast.chaos.faults import FAULTS
from holdfast.chaos.ground import Ground
from holdfast.chaos.storm import LiveScene
from holdfast.chaos.undo import Undoing
from holdfast.launch.layout import JobDirectory
from holdfast.observe.cgroup import find

pytestmark = pytest.mark.root
FORKS = "import os, subprocess; input(); print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"  # What it starts when it is told to is let go too.


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    scene = LiveScene(directory=JobDirectory(tmp_path / "job"))
    return Ground(scene=scene, orders=tmp_path, undoing=Undoing(tmp_path / "undo"), group=f"holdfast-chaos-test-{os.getpid()}")


@pytest.fixture
def own_disk(ground: Ground) -> Iterator[Path]:
    place = ground.scene.directory.checkpoints
    place.mkdir(parents=True)
    assert not is_own(place)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_is_filled_to_the_last_byte_and_emptied_again(ground: Ground, own_disk: Path) -> None:
    assert is_own(own_disk)
    FAULTS["disk_full"].strike(ground, 0)
    with pytest.raises(OSError, match="No space left"):
        (own_disk / "more").write_bytes(bytes(1 << 16))
    (own_disk / "more").unlink()
    assert ground.undoing.heal() == []
    (own_disk / "more").write_bytes(bytes(1 << 20))


def test_a_process_is_held_back_by_a_group_of_ours_and_let_go_again(ground: Ground) -> None:
    if not os.access(cores.group_of("", "cpu"), os.W_OK) or cores.version() == 2:
        pytest.skip("no control group for cores, of version 1, can be made here")
    with subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        before = find(victim.pid, controllers=["cpu"])["cpu"].directory
        cores.limit(ground, victim.pid, 0.5)
        held = find(victim.pid, controllers=["cpu"])["cpu"].directory
        assert (held / "cpu.cfs_quota_us").read_text().strip() == "50000"
        assert victim.stdin is not None
        assert victim.stdout is not None
        victim.stdin.write(b"\n")
        victim.stdin.flush()
        child = int(victim.stdout.readline())
        assert find(child, controllers=["cpu"])["cpu"].directory == held
        assert ground.undoing.heal() == []
        assert {find(pid, controllers=["cpu"])["cpu"].directory for pid in (victim.pid, child)} == {before}
        assert not held.exists()
        assert not held.parent.exists()
        os.kill(child, signal.SIGKILL)
        victim.kill()
