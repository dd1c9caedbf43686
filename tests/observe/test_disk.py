"""Disks: full, read-only, missing and shared ones, each told apart and none of them a failure of the probe."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from observe.seeing import events, values

from holdfast.observe.disk import DiskSpace, DiskWrite


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=16", "tmpfs", str(directory)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"may not mount here: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def test_space_is_what_statvfs_says(tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    seen = values(DiskSpace(tmp_path).look(), str(tmp_path))
    assert seen["disk_size_bytes"] == usage.total
    assert 0 < seen["disk_free_bytes"] <= usage.total
    assert seen["disk_read_only"] == 0


def test_a_file_is_written_and_read_back_and_nothing_stays(tmp_path: Path) -> None:
    seen = values(DiskWrite(tmp_path, "node-0").look(), str(tmp_path))
    assert 0 < seen["disk_write_seconds"] < 20
    assert seen["disk_errors_total"] == 0
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_not_there_has_no_space_and_fails_to_be_written(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert DiskSpace(missing).look() == []
    probe = DiskWrite(missing)
    (event,) = events(probe.look())
    assert (event.kind, event.code, event.of) == ("disk_error", errno.ENOENT, str(missing))
    seen = probe.look()
    assert events(seen) == [], "the same failure is told once"
    assert values(seen, str(missing)) == {"disk_errors_total": 2}
    assert probe.failures() == {errno.ENOENT: 2}
    missing.mkdir()
    assert values(probe.look(), str(missing))["disk_errors_total"] == 2, "a counter does not fall when it works again"


def test_a_link_that_lies_in_its_way_is_not_followed(tmp_path: Path) -> None:
    precious, shared = tmp_path / "precious", tmp_path / "shared"
    precious.write_text("mine")
    shared.mkdir()
    (shared / f".holdfast-probe-node-0-{os.getpid()}").symlink_to(precious)
    assert "disk_write_seconds" in values(DiskWrite(shared, "node-0").look(), str(shared))
    assert precious.read_text() == "mine"


@pytest.mark.root
def test_a_full_disk_is_told_with_its_errno_and_told_again_only_after_it_worked(small: Path) -> None:
    space, write = DiskSpace(small), DiskWrite(small)
    assert "disk_write_seconds" in values(write.look(), str(small))
    with pytest.raises(OSError, match="No space left"):
        (small / "ballast").write_bytes(bytes(2**20))
    assert values(space.look(), str(small))["disk_free_bytes"] == 0
    seen = write.look()
    assert "disk_write_seconds" not in values(seen, str(small))
    assert [event.code for event in events(seen, "disk_error")] == [errno.ENOSPC]
    assert "ENOSPC" in events(seen)[0].message
    assert events(write.look()) == []
    (small / "ballast").unlink()
    assert "disk_write_seconds" in values(write.look(), str(small))
    assert write.failures() == {errno.ENOSPC: 2}
    assert values(seen, str(small))["disk_errors_total"] == 0, "a full disk does what it should"


@pytest.mark.root
def test_a_disk_without_inodes_says_so_before_it_fails(small: Path) -> None:
    for number in range(16):
        try:
            (small / str(number)).touch()
        except OSError:
            break
    assert values(DiskSpace(small).look(), str(small))["disk_inodes_free_ratio"] == 0
    assert [event.code for event in events(DiskWrite(small).look())] == [errno.ENOSPC]


@pytest.mark.root
def test_a_disk_that_turns_read_only_is_an_event_once(small: Path) -> None:
    space = DiskSpace(small)
    assert events(space.look()) == []
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    seen = space.look()
    assert values(seen, str(small))["disk_read_only"] == 1
    assert [event.of for event in events(seen, "filesystem_read_only")] == [str(small)]
    assert events(space.look()) == []
    assert [event.code for event in events(DiskWrite(small).look())] == [errno.EROFS]
