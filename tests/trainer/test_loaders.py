"""Data loaders that are let go of in the middle of a wait: nobody waits for their workers, and what was torn is made anew."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from holdfast.trainer import loaders


class Left(BaseException):
    pass


class Storage(Dataset[int]):
    """Answers for the first samples; for the others only what was written into a pipe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index >= 4 and self.path.exists():
            self.path.read_bytes()
        return index


@pytest.fixture
def leaves() -> Iterator[None]:
    """In half a second, whatever this thread does then."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Left

    before = signal.signal(signal.SIGUSR2, leave)
    yield
    signal.signal(signal.SIGUSR2, before)


def wait_for_data(loader: DataLoader[int]) -> list[int]:
    """What came before the wait that is left."""
    pid = os.fork()
    if pid == 0:
        time.sleep(0.5)
        os.kill(os.getppid(), signal.SIGUSR2)
        os._exit(0)
    used: list[int] = []
    began = time.monotonic()
    try:
        with loaders.let_go():
            try:
                for batch in loader:
                    used += batch.tolist()  # type: ignore[attr-defined]
            except Left as error:
                loaders.end_torn(error)
            gc.collect()
    finally:
        os.waitpid(pid, 0)
    assert time.monotonic() - began < 4.5, "torch waits 5 s for a worker"
    return used


@pytest.mark.usefixtures("leaves")
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_are_held_up_are_not_waited_for_and_the_next_ones_begin_anew(tmp_path: Path, persistent: bool) -> None:
    loader: DataLoader[int] = DataLoader(Storage(tmp_path / "storage"), batch_size=2, num_workers=2, persistent_workers=persistent)
    before = {child.pid for child in multiprocessing.active_children()}
    assert wait_for_data(loader) == [0, 1, 2, 3]
    deadline = time.monotonic() + 30.0
    while {child.pid for child in multiprocessing.active_children()} - before:
        assert time.monotonic() < deadline, "a worker lives on"
        time.sleep(0.01)
    (tmp_path / "storage").unlink()
    assert torch.cat(list(loader)).tolist() == list(range(8))  # type: ignore[arg-type]


def test_an_iterator_that_the_error_did_not_come_through_lives_on(tmp_path: Path) -> None:
    loader: DataLoader[int] = DataLoader(range(8), batch_size=4, num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    assert len(list(loader)) == 2
    workers = loader._iterator
    try:
        raise Left
    except Left as error:
        with loaders.let_go():
            loaders.end_torn(error)
    assert len(list(loader)) == 2
    assert loader._iterator is workers is not None
