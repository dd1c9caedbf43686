"""A disk or a network that stumbles costs a wait, with any loader: the same batches come in the same order. What does not pass can be found by what is said."""

from __future__ import annotations

import contextlib
import errno
import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import holdfast
from holdfast.trainer import read_again
from holdfast.trainer.feed import Feed
from holdfast.trainer.read_again import ReadAgain
from holdfast.trainer.say import Say

LENGTH = 37


@pytest.fixture(autouse=True)
def _no_worker_is_held_by_an_error() -> Iterator[None]:
    yield
    gc.collect()


class Disk:
    """Cannot read some samples the first times that anybody asks, in whatever process."""

    def __init__(self, directory: Path, failing: dict[int, int], error: Callable[[], Exception] = lambda: OSError(errno.EIO, "Input/output error")) -> None:
        self.directory, self.failing, self.error = directory, failing, error

    def read(self, index: int) -> int:
        path = self.directory / f"tried-{index}"
        tried = len(path.read_text()) if path.exists() else 0
        if tried < self.failing.get(index, 0):
            path.write_text("x" * (tried + 1))
            raise self.error()
        return index


class Mapped(Dataset[int]):
    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return self.disk.read(index)


class Lines(IterableDataset[int]):
    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def __iter__(self) -> Iterator[int]:
        return map(self.disk.read, range(LENGTH))


def shuffled(disk: Disk, workers: int) -> Any:
    return DataLoader(Mapped(disk), batch_size=4, shuffle=True, num_workers=workers)


def shuffled_by_its_own(disk: Disk, workers: int) -> Any:
    return DataLoader(Mapped(disk), batch_size=4, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(5))


def iterable(disk: Disk, workers: int) -> Any:
    return DataLoader(Lines(disk), batch_size=4, num_workers=min(workers, 1))


def streamed(disk: Disk, workers: int) -> Any:
    stream = holdfast.Stream(Lines(disk), batch_size=4, resize=True, rank=0, world_size=1)
    return DataLoader(stream, batch_size=None, num_workers=workers)


def streamed_by_workers_that_live_on(disk: Disk, workers: int) -> Any:
    stream = holdfast.Stream(Lines(disk), batch_size=4, resize=True, rank=0, world_size=1)
    return DataLoader(stream, batch_size=None, num_workers=max(workers, 1), persistent_workers=True)


def feed_of(loader: Any) -> Feed[torch.Tensor]:
    again = ReadAgain(loader, skip_bad=0, say=Say(rank=0, world_size=1), pause=contextlib.nullcontext)
    return Feed(loader, first_epoch=0, last_epoch=2, accumulate=2, resumes_itself=False, read_again=again)


def played(feed: Feed[torch.Tensor]) -> list[tuple[list[int], float, bool]]:
    torch.manual_seed(1)
    done = []
    for batch in feed:
        done.append((batch.tolist(), feed.weight, feed.boundary))
        feed.use()
    return done


MAKES = [shuffled, shuffled_by_its_own, iterable, streamed, streamed_by_workers_that_live_on]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", MAKES)
def test_what_cannot_be_read_for_a_moment_comes_in_its_place(make: Callable[..., Any], workers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    right = played(feed_of(make(Disk(tmp_path, {}), workers)))
    feed = feed_of(make(Disk(tmp_path, {9: 2, 30: 1}), workers))
    assert played(feed) == right
    assert 1 <= feed.batches_read_again <= 2, "both may be in one batch"
    said = capfd.readouterr().err
    assert said.count("is tried again for 10 s: OSError: [Errno 5] Input/output error") == 1
    assert "given up" not in said


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [shuffled, streamed])
def test_what_stays_away_is_given_up_and_said_to_be(
    make: Callable[..., Any], workers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_again, "PATIENCE_S", 0.4)
    with pytest.raises(OSError, match="Errno 5"):
        played(feed_of(make(Disk(tmp_path, {9: 1000}), workers)))
    said = capfd.readouterr().err
    assert re.search(r"is given up: it could not be read for 0.4 s, in [2-4] tries: OSError: \[Errno 5\] Input/output error. Look at its storage.", said)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_is_bad_is_raised_at_once_with_the_batch_and_the_line(workers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    disk = Disk(tmp_path, {9: 1}, lambda: ValueError("no picture"))
    with pytest.raises(ValueError, match="no picture"):
        played(feed_of(iterable(disk, workers)))
    said = capfd.readouterr().err
    assert "batch 2 of epoch 0 (both from 0) cannot be had: ValueError: no picture, in test_read_again.py:" in said


def unalike(samples: list[int]) -> Any:
    raise RuntimeError("stack expects tensors of equal size")


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_make_no_batch_are_named_with_the_line(workers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sampler = holdfast.Sampler(LENGTH, batch_size=4, shuffle=False, rank=0, world_size=1)
    loader = DataLoader(Mapped(Disk(tmp_path, {})), batch_sampler=sampler, num_workers=workers, collate_fn=unalike)
    with pytest.raises(RuntimeError, match="equal size"):
        played(feed_of(loader))
    said = capfd.readouterr().err
    assert "samples 0, 1, 2, 3 can be read one by one, and make no batch: RuntimeError: stack expects tensors of equal size, in test_read_again.py:" in said


def test_a_sample_that_is_bad_is_named_with_what_to_do(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sampler = holdfast.Sampler(LENGTH, batch_size=4, shuffle=False, rank=0, world_size=1)
    disk = Disk(tmp_path, {9: 1000}, lambda: FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/9.png"))
    with pytest.raises(FileNotFoundError):
        played(feed_of(DataLoader(Mapped(disk), batch_sampler=sampler)))
    said = capfd.readouterr().err
    assert "sample 9 cannot be read: FileNotFoundError: [Errno 2] No such file or directory: '/data/9.png', in test_read_again.py:" in said
    assert "run.steps(loader, skip_bad=16)" in said


def test_what_can_be_gone_through_only_once_is_not_begun_again(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Errno 5"):
        played(feed_of(torch.tensor([one]) for one in Lines(Disk(tmp_path, {9: 1}))))
