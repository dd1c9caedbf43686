"""Whether a file that a worker did not find may still come, on real directories and made-up lists of mounts."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.missing import may_come

LINE = "{number} 1 8:{number} / {point} rw,relatime shared:1 - {kind} source rw\n"


def mounts(tmp_path: Path, **kinds: str) -> str:
    """A list of mounts: the root is local, and each directory of this name in `tmp_path` is on a file system of this kind."""
    table = tmp_path / "mountinfo"
    told = {"/": "ext4"} | {str(tmp_path / name): kind for name, kind in kinds.items()}
    table.write_text("".join(LINE.format(number=number, point=point, kind=kind) for number, (point, kind) in enumerate(told.items(), start=20)))
    return str(table)


def test_a_file_that_is_not_where_others_are_does_not_come(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "other.bin").touch()
    table = mounts(tmp_path)
    assert may_come(str(tmp_path / "data" / "train.bin"), mounts=table) == ""
    assert may_come(str(tmp_path / "dta" / "train.bin"), mounts=table) == ""
    assert may_come(str(tmp_path / "data" / "other.bin" / "train.bin"), mounts=table) == ""


def test_a_file_that_is_there_by_now_came_late(tmp_path: Path) -> None:
    (tmp_path / "train.bin").touch()
    assert "is there by now" in may_come(str(tmp_path / "train.bin"), mounts=mounts(tmp_path))


def test_an_empty_directory_may_be_a_mount_point_before_its_mount(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert "is empty, as a mount point is" in may_come(str(tmp_path / "data" / "set" / "train.bin"), mounts=mounts(tmp_path))


def test_what_is_kept_elsewhere_may_come_and_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert "is on nfs4" in may_come(str(tmp_path / "shared" / "train.bin"), mounts=mounts(tmp_path, shared="nfs4")), "which need not even exist"
    (tmp_path / "here").symlink_to(tmp_path / "shared")
    assert "is on fuse.gcsfuse" in may_come(str(tmp_path / "here" / "train.bin"), mounts=mounts(tmp_path, shared="fuse.gcsfuse")), "through a link as well"


def test_links_without_an_end_and_mounts_that_cannot_be_read_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert may_come(str(tmp_path / "a" / "x"), mounts=mounts(tmp_path)) == ""
    assert "cannot be read" in may_come("/x", mounts=str(tmp_path / "gone"))
