"""What counts as a checkpoint, which one is the newest, and what is said about a damaged one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint.disks import save_step

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.found import list_complete, newest_complete, verify
from holdfast.checkpoint.remove import Retention, prune


def complete(checkpoints: Path, step: int, generation: int = 1) -> Path:
    for rank in range(2):
        save_step(Disk(), checkpoints, step, rank, generation=generation, keep=100)
    return checkpoints / f"step-{step:08d}.g{generation}"


def names(checkpoints: Path) -> list[str]:
    return [found.name for found in list_complete(checkpoints)]


def test_there_is_nothing_in_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    assert newest_complete(tmp_path / "missing") is None


def test_a_checkpoint_that_one_rank_has_not_written_does_not_exist(tmp_path: Path) -> None:
    complete(tmp_path, 10)
    save_step(Disk(), tmp_path, 20, 0)
    assert names(tmp_path) == ["step-00000010.g1"]


def test_what_was_written_after_a_rollback_outranks_what_was_left_behind(tmp_path: Path) -> None:
    complete(tmp_path, 30, generation=1)
    complete(tmp_path, 20, generation=2)
    assert names(tmp_path) == ["step-00000020.g2", "step-00000030.g1"]


def test_directories_that_are_not_ours_and_manifests_of_another_step_are_passed_over(tmp_path: Path) -> None:
    path = complete(tmp_path, 10)
    (tmp_path / "step-10").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    path.rename(tmp_path / "step-00000011.g1")
    assert names(tmp_path) == []


def test_a_manifest_that_is_not_json_or_names_a_foreign_file_is_no_manifest(tmp_path: Path) -> None:
    manifest = complete(tmp_path, 10) / "manifest.json"
    text = manifest.read_text()
    for broken in ("", "{", "[]", '{"format": 1}', text.replace("rank-00000.pt", "../../secret")):
        manifest.write_text(broken)
        assert names(tmp_path) == []


def test_every_damaged_byte_is_found_and_the_message_says_what_to_do(tmp_path: Path) -> None:
    complete(tmp_path, 10)
    path = complete(tmp_path, 20)
    file = path / "rank-00001.pt"
    sound = file.read_bytes()
    for position in (0, len(sound) // 2, len(sound) - 1):
        damaged = bytearray(sound)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(CheckpointCorrupt, match=r"rank-00001.pt is damaged: expected xxh3_128 \w+, saw \w+. Restore step-00000010.g1 instead"):
            verify(path)
    file.write_bytes(sound[:-1])
    with pytest.raises(CheckpointCorrupt, match=f"expected {len(sound)} bytes, saw {len(sound) - 1}"):
        verify(path)
    file.unlink()
    with pytest.raises(CheckpointCorrupt, match="cannot be read"):
        verify(path)
    file.write_bytes(sound)
    verify(path)


def test_a_torn_checkpoint_is_called_torn(tmp_path: Path) -> None:
    save_step(Disk(), tmp_path, 10, 0)
    with pytest.raises(CheckpointCorrupt, match=r"no manifest.*There is no older one"):
        verify(tmp_path / "step-00000010.g1")


def test_pruning_keeps_the_newest_and_the_line_of_the_one_restored(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        complete(tmp_path, step, generation=1)
    complete(tmp_path, 30, generation=2)  # Rolled back to step 20, then saved again.
    assert prune(Disk(), tmp_path, Retention(keep=2, restored=(1, 20)), generation=2) == ("step-00000010.g1",)
    assert names(tmp_path) == ["step-00000030.g2", "step-00000040.g1", "step-00000030.g1", "step-00000020.g1"]
    complete(tmp_path, 40, generation=2)
    prune(Disk(), tmp_path, Retention(keep=2, restored=(1, 20)), generation=2)
    assert names(tmp_path) == ["step-00000040.g2", "step-00000030.g2"]


def test_control_can_look_for_checkpoints_without_torch_or_numpy(tmp_path: Path) -> None:
    complete(tmp_path, 10)
    code = (
        "import sys, pathlib, holdfast.checkpoint.found as found\n"
        "one = found.newest_complete(pathlib.Path(sys.argv[1])); found.verify(one.path)\n"
        "assert not {'torch', 'numpy', 'msgspec'} & set(sys.modules); print(one.name)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "step-00000010.g1\n", done.stderr
