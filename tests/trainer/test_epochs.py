"""How many epochs are done: whole ones, and the part of the one under way where the loader has a length. And a loop over epochs that is entered again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.trainer.feed import Feed


class Endless:
    """A loader that does not know how long it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_the_part_of_an_epoch_counts_and_a_whole_one_is_one() -> None:
    feed: Feed[int] = Feed(list(range(4)), first_epoch=0, last_epoch=2, accumulate=1, resumes_itself=False)
    done = []
    for _ in feed:
        feed.use()
        done.append(feed.epochs_done)
    assert done == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]


def test_without_a_length_only_whole_epochs_are_known() -> None:
    feed: Feed[int] = Feed(Endless(), first_epoch=0, last_epoch=2, accumulate=1, resumes_itself=False)
    done = []
    for _ in feed:
        feed.use()
        done.append(feed.epochs_done)
    assert done == pytest.approx([0.0] * 4 + [1.0] * 4)


class Killed(Exception):
    pass


def train(checkpoints: Path, *, die_at: int) -> list[tuple[int, float, float]]:
    """Step, rate and average of an ordinary loop over epochs, until it is killed or done."""
    torch.manual_seed(0)
    net = torch.nn.Linear(1, 1)
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.SGD([{"params": [net.weight]}, {"params": [net.bias], "lr": 0.01}], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    epochs = {"done": 0}
    run = holdfast.guard(net=net, average=average, optimizer=optimizer, scheduler=scheduler, epochs=epochs, checkpoints=checkpoints, save_every=1)
    loader = torch.utils.data.DataLoader(list(torch.linspace(0.1, 0.9, 5).unsqueeze(1)))
    seen = []
    for _ in range(4):
        for batch in run.steps(loader):
            if run.step == die_at:
                raise Killed
            net(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append((run.step, optimizer.param_groups[0]["lr"], float(average.module.weight.detach().sum()) + epochs["done"]))
        epochs["done"] += 1
        scheduler.step()
        average.update_parameters(net)
    return [*seen, (run.step, optimizer.param_groups[0]["lr"], float(average.module.weight.detach().sum()) + epochs["done"])]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # The one after an epoch that was just over when the run ended.
@pytest.mark.parametrize("die_at", [4, 5, 6, 12, 15, 19])
def test_what_a_loop_over_epochs_does_between_them_is_not_done_twice_when_it_is_entered_again(tmp_path: Path, die_at: int) -> None:
    whole = train(tmp_path / "whole", die_at=-1)
    with pytest.raises(Killed):
        train(tmp_path / "broken", die_at=die_at)
    resumed = train(tmp_path / "broken", die_at=-1)
    assert resumed == whole[die_at:]
