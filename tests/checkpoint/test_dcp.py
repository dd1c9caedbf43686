"""torch.distributed.checkpoint reads our checkpoints and writes them, and nothing is pickled on the way."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import holdfast
from holdfast.checkpoint.dcp import Reader, Writer
from holdfast.checkpoint.found import newest_complete, verify
from holdfast.errors import UserError


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 5)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_run_is_loaded_by_dcp(tmp_path: Path) -> None:
    model, optimizer = trained()
    list(holdfast.guard(model=model, optimizer=optimizer, extra={"lr": 0.5, "names": ["a"]}, checkpoints=tmp_path).steps(1))
    newest = newest_complete(tmp_path)
    assert newest is not None
    other = torch.nn.Linear(5, 3)
    state = {"model": other.state_dict(), "extra": {"lr": 0.0}}
    dcp.load(state, storage_reader=Reader(newest.path))
    assert state["extra"] == {"lr": 0.5}
    assert torch.equal(other.weight, model.weight)
    moments = {"optimizer": {"state": {0: {"exp_avg": torch.zeros(3, 5)}}}}
    dcp.load(moments, storage_reader=Reader(newest.path))
    assert torch.equal(moments["optimizer"]["state"][0]["exp_avg"], optimizer.state[model.weight]["exp_avg"])


def test_what_dcp_saves_is_a_checkpoint_of_ours(tmp_path: Path) -> None:
    model, _ = trained()
    path = tmp_path / "step-00000007.g0"
    dcp.save({"model": model.state_dict(), "step": 7, "names": ("a", "b")}, storage_writer=Writer(path))
    assert verify(path).step == 7
    assert not list(tmp_path.rglob(".metadata"))
    other = torch.nn.Linear(5, 3)
    state = {"model": other.state_dict(), "step": 0}
    dcp.load(state, storage_reader=Reader(path))
    assert state["step"] == 7
    assert torch.equal(other.weight, model.weight)


def test_a_damaged_chunk_is_refused_by_dcp_too(tmp_path: Path) -> None:
    path = tmp_path / "step-00000007.g0"
    dcp.save({"tensor": torch.arange(1000.0)}, storage_writer=Writer(path))
    file = max((path / "chunks").iterdir(), key=lambda chunk: chunk.stat().st_size)
    damaged = bytearray(file.read_bytes())
    damaged[100] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(CheckpointException, match=r"CheckpointCorrupt: chunk .* is damaged: expected xxh3_128"):
        dcp.load({"tensor": torch.zeros(1000)}, storage_reader=Reader(path))


def test_a_bad_name_and_a_checkpoint_that_is_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected step and generation"):
        Writer(tmp_path / "latest")
    path = tmp_path / "step-00000001.g0"
    dcp.save({"tensor": torch.zeros(3)}, storage_writer=Writer(path))
    with pytest.raises(CheckpointException, match="is complete already"):
        dcp.save({"tensor": torch.zeros(3)}, storage_writer=Writer(path))


def test_what_cannot_be_stored_without_pickling_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match=r"model\.thing holds a builtins\.object"):
        dcp.save({"model": {"thing": object()}}, storage_writer=Writer(tmp_path / "step-00000001.g0"))
