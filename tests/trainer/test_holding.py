"""Each rank tells what it holds, and from that it is known who holds the same: whatever shares a model out, with real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trainer.gang import run_gang

import holdfast
from holdfast.domain.beat import TABLE_AT
from holdfast.domain.gauges import HOLDS, MESH, RESIZES, read_gauges
from holdfast.domain.mesh import Mesh, seen

RANKS = 4


def laid_out(way: str) -> tuple[Any, Any]:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    rank = torch.distributed.get_rank()
    match way:
        case "ddp":
            model = DistributedDataParallel(model)
        case "fsdp":
            fully_shard(model)
        case "hsdp":
            fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "part")))
        case "fsdp and columns":
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
            parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
            fully_shard(model, mesh=mesh["fsdp"])
        case "stages in ddp":  # The same names on each stage; even ranks have the first.
            groups = [torch.distributed.new_group([stage, stage + 2]) for stage in (0, 1)]
            model = DistributedDataParallel(model, process_group=groups[rank % 2])
        case "stages in fsdp":
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp_shard"))
            fully_shard(model, mesh=mesh["dp_shard"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def tells(way: str) -> None:
    import torch

    torch.distributed.init_process_group("gloo")
    model, optimizer = laid_out(way)
    run = holdfast.guard(save_every=0, model=model, optimizer=optimizer)
    for _ in run.steps(1):
        pass
    torch.distributed.destroy_process_group()


def _mesh(directory: Path, way: str) -> Mesh | None:
    run_gang(directory, tells, ranks=RANKS, way=way)
    tables = [read_gauges((directory / f"rank-{rank}.beats").read_bytes()[TABLE_AT:]) for rank in range(RANKS)]
    holds = {rank: int(gauge.value) for rank, table in enumerate(tables) for gauge in table if gauge.name == HOLDS}
    dimensions = [(gauge.name.removeprefix(MESH)[2:], int(gauge.value), gauge.unit == RESIZES) for gauge in tables[0] if gauge.name.startswith(MESH)]
    return seen(dimensions, holds) if len(holds) == RANKS else None


@pytest.mark.parametrize(
    ("way", "expected", "holders", "may_resize"),
    [
        ("ddp", "replicate=4", (0, 1, 2, 3), "replicate"),
        ("fsdp", "dim0=4", (0,), "dim0"),
        ("hsdp", "copy=2,part=2", (0, 2), "copy part"),
        ("fsdp and columns", "fsdp=2,tp=2", (0,), "fsdp"),
        ("stages in ddp", "replicate=2,shard=2", (0, 2), "replicate"),
        ("stages in fsdp", "pp=2,dp_shard=2", (0,), "dp_shard"),
    ],
)
def test_who_holds_the_same_is_seen(tmp_path: Path, way: str, expected: str, holders: tuple[int, ...], may_resize: str) -> None:
    mesh = _mesh(tmp_path, way)
    assert mesh is not None
    assert (str(mesh), mesh.holders(0)) == (expected, holders)
    assert [one.name for one in mesh.dimensions if one.resizes] == may_resize.split()


def test_plain_tensors_may_be_copies_or_parts_and_nothing_is_said(tmp_path: Path) -> None:
    assert _mesh(tmp_path, "plain") is None


def keeps_apart() -> None:
    import torch

    from holdfast.checkpoint.pieces import shared_names

    torch.distributed.init_process_group("gloo")
    for way, shared in (("stages in ddp", set()), ("ddp", {"model", "optimizer"})):
        model, optimizer = laid_out(way)
        assert shared_names({"model": model, "optimizer": optimizer}) == shared, way
    torch.distributed.destroy_process_group()


def test_a_stage_that_some_ranks_keep_alike_is_not_taken_for_what_all_have(tmp_path: Path) -> None:
    """Else rank 0 alone would save it, and the other stages would be lost."""
    run_gang(tmp_path, keeps_apart, ranks=RANKS)
