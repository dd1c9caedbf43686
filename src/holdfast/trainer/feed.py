"""Feed: the batches of a loader over its epochs, from where the run stopped, with the moments at which a step ends.

A step is an optimizer step: `accumulate` batches, or fewer at the end of an epoch when it does not divide. Only a loader without a length does
not tell its last batch: there the group goes on into the next epoch. With Holdfast's sampler a resumed epoch begins at its position. With
any other loader the batches already used are fetched again and dropped, with the random numbers that the epoch began with, so that a shuffling loader
gives the same order again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any, Generic, TypeVar

from holdfast.checkpoint.randomness import apply_randomness, capture_randomness
from holdfast.trainer.sampler import Sampler

Batch = TypeVar("Batch")


class Feed(Generic[Batch]):
    """Batches of the epochs [first_epoch, last_epoch) of a run."""

    def __init__(self, loader: Iterable[Batch], *, first_epoch: int, last_epoch: int, accumulate: int, resumes_itself: bool) -> None:
        self._loader, self._last_epoch, self._accumulate = loader, last_epoch, accumulate
        self._sampler = _sampler_of(loader)
        self._resumes_itself = resumes_itself
        self.epoch, self.batches, self._in_group = first_epoch, 0, 0
        self._epoch_randomness: dict[str, Any] = {}
        self._resume_randomness: dict[str, Any] | None = None
        self.boundary = False
        self.data_wait_s = 0.0
        self.length = _length_of(loader)

    @property
    def samples(self) -> int:
        """Samples used since the run began, where the sampler can tell."""
        return self.epoch * self._sampler.used_per_epoch + self._sampler.position if self._sampler else 0

    @property
    def steps_per_epoch(self) -> int:
        """0 for a loader without a length."""
        return -(-(self.length or 0) // self._accumulate)

    @property
    def epochs_done(self) -> float:
        """With the part of the one under way, where the loader has a length."""
        return self.epoch + (min(1.0, self.batches / self.length) if self.length else 0.0)

    def progress(self) -> dict[str, Any]:
        """What `resume` needs."""
        position = self._sampler.position if self._sampler else 0
        return {"epoch": self.epoch, "batches": self.batches, "position": position, "epoch_randomness": self._epoch_randomness}

    def resume(self, progress: dict[str, Any], randomness: dict[str, Any]) -> None:
        """Go on from `progress`; a feed whose epochs are all behind that point is empty."""
        self.epoch, self.batches = progress["epoch"], progress["batches"]
        self._epoch_randomness, self._resume_randomness = progress["epoch_randomness"], randomness
        if self._sampler:
            self._sampler.seek(self.epoch, progress["position"])
            self.batches = -(-progress["position"] // self._sampler.batch_size)

    @property
    def is_exact(self) -> bool:
        """Whether its place in the data means the same for any number of ranks."""
        return self._sampler is not None or self._resumes_itself

    def rescale(self, ranks_before: int, ranks: int) -> None:
        self.batches = self.batches * ranks_before // ranks

    def __iter__(self) -> Iterator[Batch]:
        while self.epoch < self._last_epoch:
            iterator = self._open_epoch()
            while True:
                asked = perf_counter()
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                self.data_wait_s += perf_counter() - asked
                self.boundary = self._in_group + 1 >= self._accumulate or self.batches + 1 == self.length
                yield batch
            self.epoch, self.batches = self.epoch + 1, 0

    def use(self) -> None:
        """The batch just given is used: it will not be given again after a save from now on."""
        self.batches += 1
        self._in_group = 0 if self.boundary else self._in_group + 1
        if self._sampler:
            self._sampler.advance()

    def _open_epoch(self) -> Iterator[Batch]:
        if self._resume_randomness is not None:
            return self._reopen_epoch(self._resume_randomness)
        _set_epoch(self._loader, self._sampler, self.epoch)
        self._epoch_randomness = capture_randomness()
        return iter(self._loader)

    def _reopen_epoch(self, randomness: dict[str, Any]) -> Iterator[Batch]:
        """The epoch in which the run stopped. Opening a loader draws random numbers, so those of the stopping point are put back last."""
        self._resume_randomness = None
        apply_randomness(self._epoch_randomness)
        _set_epoch(self._loader, self._sampler, self.epoch)
        iterator = iter(self._loader)
        if self._sampler is None and not self._resumes_itself:
            for _ in range(self.batches):
                next(iterator, None)
        apply_randomness(randomness)
        return iterator


def _sampler_of(loader: Any) -> Sampler | None:
    sampler = getattr(loader, "batch_sampler", None)
    return sampler if isinstance(sampler, Sampler) else None


def _length_of(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _set_epoch(loader: Any, sampler: Sampler | None, epoch: int) -> None:
    """Tell whoever orders the data which epoch it is: our sampler, a DistributedSampler, or a loader that can be told itself."""
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    candidates: tuple[Any, ...] = (sampler, getattr(loader, "sampler", None), inner, loader)
    for one in candidates:
        if hasattr(one, "set_epoch"):
            one.set_epoch(epoch)
            return
