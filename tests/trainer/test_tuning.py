"""Hyper-parameters that are otherwise than the script says, without its schedule noticing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.errors import UserError
from holdfast.trainer.tuning import Tuning, read


def trained(text: str, steps: int = 4, rate_times: float = 1.0, **options: float) -> tuple[list[float], list[float]]:
    """How far each step moved a parameter whose gradient is always 1, and the rates the schedule saw."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.5, **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    tuning = Tuning(text, {"model": None, "optimizer": optimizer}, rate_times)
    moved, rates = [], []
    for step in range(steps):
        before = parameter.item()
        parameter.grad = torch.ones(1)
        optimizer.step()
        moved.append(round(before - parameter.item(), 6))
        schedule.step()
        rates.append(round(optimizer.param_groups[0]["lr"], 6))
        tuning.step = step + 1
    tuning.uninstall()
    return moved, rates


def test_the_rate_is_changed_after_the_schedule_which_goes_on_by_itself() -> None:
    plain, rates = trained("")
    assert plain == [0.5, 0.25, 0.166667, 0.125]
    halved, same = trained("lr=*0.5")
    assert halved == [0.25, 0.125, 0.083333, 0.0625]
    assert same == rates
    assert trained("lr=0.1")[0][0] == 0.1
    assert trained("warmup=2@1")[0] == [0.5, 0.125, 0.166667, 0.125]
    assert trained("clip=0.5")[0][0] == 0.25
    assert trained("weight_decay=1.0")[0][1] < plain[1]


def test_the_rate_of_a_smaller_gang_is_put_on_top_of_all_else() -> None:
    plain, rates = trained("")
    smaller, same = trained("", rate_times=0.5)
    assert smaller == [0.25, 0.125, 0.083333, 0.0625]
    assert same == rates
    assert trained("lr=*0.5", rate_times=0.5)[0] == [0.125, 0.0625, 0.041667, 0.03125]
    assert trained("", rate_times=1.0)[0] == plain


def test_a_script_asks_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TUNE", "batch_size=*0.5,dropout=0.3,lr=*2,name=b")
    assert holdfast.tune("batch_size", 64) == 32
    assert holdfast.tune("dropout", 0.1) == 0.3
    assert holdfast.tune("name", "a") == "b"
    assert holdfast.tune("depth", 4) == 4
    assert holdfast.tune("lr", 0.1) == 0.1, "that is changed in the optimizer, whose own rate comes back with its checkpoint"
    assert Tuning("batch_size=1,width=2", {}).unread == ["width"]
    monkeypatch.setenv("HOLDFAST_TUNE", "batch_size=many")
    with pytest.raises(UserError, match=r"batch_size=many: expected a int, such as 64, or a factor"):
        holdfast.tune("batch_size", 64)


@pytest.mark.parametrize("text", ["lr", "=3", "lr=", "a b=1"])
def test_what_is_no_change_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no change"):
        read(text)
    with pytest.raises(UserError, match="expected numbers"):
        Tuning("lr=much", {})


def test_steps_by_number_pass_over_what_is_left_out_and_go_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LEAVE_OUT", "2-3,6")
    seen = []
    for step in holdfast.guard(checkpoints=tmp_path, save_every=1).steps(5):
        seen.append(step)
    run = holdfast.guard(checkpoints=tmp_path, save_every=1)
    assert (seen, run.step) == ([0, 1, 4], 3)
    assert list(run.steps(9)) == [5, 7, 8]
    assert run.step == 6
