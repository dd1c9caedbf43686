"""With uneven shares, few samples, bad samples and a disk that stumbles, the gradients of real ranks are those of the whole batch."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from trainer.gang import run_gang

import holdfast
from holdfast.checkpoint.passing import passes
from holdfast.errors import UserError

SAMPLES = 22


class Fragile(Dataset[tuple[int, torch.Tensor]]):
    """Some samples cannot be read, and every one whose number divides by 7 only at the second try in each process."""

    def __init__(self, bad: tuple[int, ...]) -> None:
        self.bad, self.tried = bad, set[int]()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index in self.bad:
            raise ValueError(f"sample {index} is no picture")
        if self.bad and index % 7 == 0 and index not in self.tried:
            self.tried.add(index)
            raise OSError(errno.EIO, "Input/output error")
        return index, torch.cos(torch.arange(6.0) * (index + 1))


def model_here() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def gradients(model: nn.Module) -> list[float]:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).tolist()


def train(*, result: str, bad: tuple[int, ...], workers: int) -> None:
    """Ten samples a step in one epoch of 10, 10 and 2, for three ranks: in the last step one of them has nothing."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model_here())
    dataset = Fragile(bad)
    loader = DataLoader(dataset, batch_sampler=holdfast.Sampler(dataset, batch_size=5, resize=True), num_workers=workers)
    run = holdfast.guard(model=model)
    ids, rows = [], []
    for indices, batch in run.steps(loader, accumulate=2, skip_bad=len(bad)):
        (model(batch).square().mean() * run.weight).backward()
        ids += indices.tolist() if run.weight else []
        if run.boundary:
            rows.append({"ids": ids, "gradients": gradients(model)})
            ids = []
            model.zero_grad()
    Path(f"{result}-{dist.get_rank()}").write_text(json.dumps(rows))


def ended(tmp_path: Path, **options: Any) -> tuple[list[tuple[set[int], list[float]]], str]:
    """For each step which samples were in it and what the gradients were."""
    gang = run_gang(tmp_path, train, ranks=3, result=str(tmp_path / "result"), **options)
    of_ranks = [json.loads((tmp_path / f"result-{rank}").read_text()) for rank in range(3)]
    steps = []
    for rows in zip(*of_ranks, strict=True):
        ids = [id for row in rows for id in row["ids"]]
        assert len(ids) == len(set(ids))
        assert all(row["gradients"] == rows[0]["gradients"] for row in rows)
        steps.append((set(ids), rows[0]["gradients"]))
    return steps, "".join(gang.log(rank) for rank in range(3))


def expected(indices: list[int], samples: int) -> list[float]:
    """The gradients of the mean over a step of so many samples, of which those that could not be read add nothing."""
    model, data = model_here(), Fragile(())
    losses = model(torch.stack([data[index][1] for index in indices])).square()
    (losses.sum() / samples).backward()
    return gradients(model)


def batches() -> list[list[int]]:
    order = next(iter(holdfast.Sampler(SAMPLES, batch_size=SAMPLES, rank=0, world_size=1)))
    return [order[:10], order[10:20], order[20:]]


def test_uneven_shares_weigh_as_much_as_they_have_samples(tmp_path: Path) -> None:
    steps, _ = ended(tmp_path, bad=(), workers=0)
    for (ids, found), batch in zip(steps, batches(), strict=True):
        assert ids == set(batch)
        assert found == pytest.approx(expected(batch, len(batch)), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_left_out_by_all_alike_and_a_disk_that_stumbles_costs_nothing(tmp_path: Path, workers: int) -> None:
    first = batches()[0]
    bad = (first[0], *first[5:6], first[9])  # The whole share of rank 0 in the first batch of the step, and some.
    steps, log = ended(tmp_path, bad=bad, workers=workers)
    for (ids, found), batch in zip(steps, batches(), strict=True):
        read = [index for index in batch if index not in bad]
        assert ids == set(read)
        assert found == pytest.approx(expected(read, len(batch)), rel=1e-4, abs=1e-7)
    for index in bad:
        assert log.count(f"sample {index} cannot be read and is left out: ValueError: sample {index} is no picture") == 1


def steps_of(dataset: Dataset[Any], skip_bad: int) -> list[Any]:
    loader = DataLoader(dataset, batch_sampler=holdfast.Sampler(SAMPLES, batch_size=11, resize=True))
    return list(holdfast.guard().steps(loader, skip_bad=skip_bad))


def test_no_more_samples_are_left_out_than_was_allowed_and_none_without_leave() -> None:
    with pytest.raises(Exception, match=r"cannot be read \(ValueError: sample \d+ is no picture\), and 2 were left out already") as refused:
        steps_of(Fragile((3, 4, 5)), 2)
    assert "skip_bad=2" in str(refused.value)
    with pytest.raises(ValueError, match="is no picture"):
        steps_of(Fragile((3,)), 0)
    assert len(steps_of(Fragile((3, 4, 5)), 3)) == 2


def test_what_was_left_out_is_remembered_and_counts_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def go(stop_at: int) -> int:
        dataset = Fragile((3,))
        loader = DataLoader(dataset, batch_sampler=holdfast.Sampler(SAMPLES, batch_size=11, resize=True))
        run = holdfast.guard(save_every=1, checkpoints=tmp_path)
        for _ in run.steps(loader, epochs=2, skip_bad=1):
            if run.step == stop_at:
                break
        return run.step

    assert (go(2), go(-1)) == (2, 4)
    assert capfd.readouterr().err.count("sample 3 cannot be read and is left out") == 1


def test_leaving_out_needs_the_weights() -> None:
    loader = DataLoader(Fragile(()), batch_sampler=holdfast.Sampler(SAMPLES, batch_size=11))
    with pytest.raises(UserError, match=r"steps\(skip_bad=1\).*resize=True"):
        list(holdfast.guard().steps(loader, skip_bad=1))


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (OSError(errno.EIO, ""), True), (OSError(errno.ESTALE, ""), True), (TimeoutError(), True), (ConnectionResetError(), True),
        (FileNotFoundError(errno.ENOENT, ""), False), (PermissionError(errno.EACCES, ""), False), (ValueError(), False),
    ],
)  # fmt: skip
def test_only_what_may_pass_is_waited_for(error: Exception, is_so: bool) -> None:
    assert passes(error) is is_so
