"""A checkpoint is restored by another number of ranks, on another mesh, sharded otherwise or not at all: the whole is the same, bit for bit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from trainer.gang import run_gang
from trainer.loops import SAMPLES, train

import holdfast

WAYS = {
    "whole": ("plain", (1,)),
    "2 shards": ("fsdp2", (2,)),
    "3 shards": ("fsdp2", (3,)),
    "2 copies of 2 shards": ("fsdp2", (2, 2)),
    "2 columns": ("columns", (2,)),
    "2 shards of 2 columns": ("both", (2, 2)),
}


def make(way: str, hidden: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same model and optimizer, laid out in one of the ways; what is in them is random."""
    kind, mesh_shape = WAYS[way]
    torch.manual_seed(1000)
    model = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 6))
    if kind != "plain":
        lay_out(model, kind, mesh_shape)
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def lay_out(model: nn.Module, kind: str, mesh_shape: tuple[int, ...]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    names = ("shard", "column") if kind == "both" else ("copy", "shard")[-len(mesh_shape) :]
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    if kind != "fsdp2":
        parallelize_module(model, mesh["column"] if kind == "both" else mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if kind != "columns":
        fully_shard(model, mesh=mesh["shard"] if kind == "both" else mesh)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(5)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def whole_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Everything as it would be in one process."""
    found = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{name}": tensor for name, tensor in state.items()}
    return {name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone() for name, tensor in found.items()}


def save_some(way: str, hidden: int, where: str) -> None:
    dist.init_process_group("gloo")
    model, optimizer = make(way, hidden)
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=0, checkpoints=f"{where}/checkpoints")
    for _ in run.steps(3):
        step(model, optimizer)
    state = whole_state(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(state, f"{where}/whole.pt")
    dist.barrier()


def load_some(way: str, hidden: int, where: str) -> None:
    dist.init_process_group("gloo")
    model, optimizer = make(way, hidden)
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=0, checkpoints=f"{where}/checkpoints")
    expected = torch.load(f"{where}/whole.pt", weights_only=True)
    seen = whole_state(model, optimizer)
    assert run.step == 3
    assert seen.keys() == expected.keys()
    wrong = [name for name, tensor in expected.items() if not torch.equal(seen[name], tensor)]
    assert not wrong, f"restored otherwise than saved: {wrong}"
    for _ in run.steps(5):
        step(model, optimizer)
    print(f"rank {dist.get_rank()} went on to step {run.step}")
    dist.barrier()


def ranks_of(way: str) -> int:
    ranks = 1
    for size in WAYS[way][1]:
        ranks *= size
    return ranks


@pytest.mark.parametrize(
    ("saved", "restored"),
    [
        ("2 shards", "3 shards"), ("3 shards", "2 shards"), ("2 shards", "whole"), ("whole", "2 shards"), ("2 shards", "2 copies of 2 shards"),
        ("2 copies of 2 shards", "3 shards"), ("2 columns", "2 shards"), ("3 shards", "2 columns"),
        ("2 shards of 2 columns", "2 shards"), ("2 shards", "2 shards of 2 columns"), ("2 shards of 2 columns", "2 shards of 2 columns"),
    ],
)  # fmt: skip
def test_what_was_saved_in_one_way_is_restored_in_another(tmp_path: Path, saved: str, restored: str) -> None:
    # 15 divides by neither 2 nor 4, so the shards are uneven; columns have to be even.
    options: dict[str, Any] = {"plugged": False, "hidden": 16 if "columns" in saved + restored else 15, "where": str(tmp_path)}
    run_gang(tmp_path / "save", save_some, ranks=ranks_of(saved), way=saved, **options)
    gang = run_gang(tmp_path / "load", load_some, ranks=ranks_of(restored), way=restored, **options)
    assert all("went on to step 5" in gang.log(rank) for rank in range(ranks_of(restored)))


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_at_another_world_size_every_sample_is_used_once_in_an_epoch(tmp_path: Path, before: int, after: int) -> None:
    options = {"plugged": False, "wrap": "ddp", "checkpoints": str(tmp_path / "checkpoints"), "save_every": 1, "epochs": 1}
    with_ranks: dict[str, Any] = {"ranks": before, "result": str(tmp_path / "first"), "stop_at": 3}
    run_gang(tmp_path / "first", train, **with_ranks, **options)
    run_gang(tmp_path / "second", train, ranks=after, result=str(tmp_path / "second"), **options)
    first, second = used(tmp_path / "first", before), used(tmp_path / "second", after)
    assert len(first) == 3 * 12
    assert sorted(first + second) == list(range(SAMPLES))


def used(result: Path, ranks: int) -> list[int]:
    """The samples that the ranks of one gang took."""
    return [index for rank in range(ranks) for index in json.loads(Path(f"{result}-{rank}.taken").read_text())]


def test_a_rank_that_is_new_draws_its_own_random_numbers(tmp_path: Path) -> None:
    run_gang(tmp_path / "save", draw, ranks=1, plugged=False, where=str(tmp_path))
    gang = run_gang(tmp_path / "load", draw, ranks=2, plugged=False, where=str(tmp_path))
    drawn = dict(line.split()[1:] for rank in (0, 1) for line in gang.log(rank).splitlines() if line.startswith("drew"))
    torch.manual_seed(1)
    assert drawn["1"] == str(float(torch.rand(())))
    assert drawn["0"] != drawn["1"]


def draw(where: str) -> None:
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    run = holdfast.guard(state={}, save_every=0, checkpoints=f"{where}/checkpoints")
    steps = run.steps(dist.get_world_size())
    next(steps)
    print(f"drew {rank} {float(torch.rand(()))}", flush=True)
    assert list(steps) == []
    dist.barrier()
