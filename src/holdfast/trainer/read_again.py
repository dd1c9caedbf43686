"""Reading again what a data loader could not read: `ReadAgain`. A disk that stumbles costs seconds, and a sample that cannot be decoded costs that sample.

A loader whose worker failed gives its exception in the place of the batch, and goes on with the next. The samples of that batch are known, so they are read
one by one in this process: what was a moment's failure is there now or in a few seconds, and what is left is a bad sample, which is left out if the
script allows for some.

Is wrong    when a data set can be read only in a loader's workers: then its samples look bad from here, and as many are left out as the script allows for.
Costs       nothing until a batch fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from time import monotonic, sleep
from typing import Any, Final

from holdfast.checkpoint.passing import passes
from holdfast.checkpoint.randomness import apply_randomness, capture_randomness
from holdfast.trainer.say import Say

PATIENCE_S: Final = 10.0  # For one batch: all ranks wait for the one that reads, and from 20 s on they may be taken for hung.
_FIRST_WAIT_S: Final = 0.05
_FROM_WORKER: Final = "in DataLoader worker process"  # What torch puts before the words of an exception that a worker raised.
_FILLERS: Final = 32  # Samples tried for one that can be read, when nothing of a batch can.


class BadSamples(Exception):
    """More samples could not be read than may be left out."""


class ReadAgain:
    """For one loader. `skip_bad` samples of this rank may be left out, over the whole run; `bad` says which were, and why."""

    def __init__(self, loader: Any, *, skip_bad: int, say: Say, pause: Callable[[], AbstractContextManager[None]]) -> None:
        self._loader, self._skip_bad, self._say, self._pause = loader, skip_bad, say, pause
        self.bad: dict[int, str] = {}
        self._until = 0.0

    def can_help(self, error: Exception) -> bool:
        """Whether the loader goes on after this. It does not after the death of a worker, and a data set that is iterated over is at its end."""
        return not getattr(self._loader, "num_workers", 0) or _FROM_WORKER in str(error)

    def read(self, indices: list[int], others: Iterable[int], error: Exception) -> tuple[Any, int]:
        """The batch of `indices` without its bad samples, and how many are in it; if none is, one of the `others` stands in for them."""
        before = capture_randomness()
        self._until = monotonic() + PATIENCE_S
        try:
            with self._pause():
                samples = [sample for index in indices for sample in self._sample(index, error)]
                filled = samples or self._any_of(others, error)
        finally:
            if getattr(self._loader, "num_workers", 0):
                apply_randomness(before)  # The loop's own stream of random numbers knows nothing of reading.
        return self._loader.collate_fn(filled), len(samples)

    def _sample(self, index: int, first: Exception) -> list[Any]:
        """The sample, or nothing if it is bad."""
        try:
            return [self._read_patiently(index)]
        except Exception as error:
            if passes(error) or not self._skip_bad:
                raise error from first
            if index not in self.bad and len(self.bad) >= self._skip_bad:
                raise BadSamples(
                    f"sample {index} cannot be read ({_words(error)}), and {len(self.bad)} were left out already ({_listed(self.bad)}): "
                    f"skip_bad={self._skip_bad}. Mend the data, or allow for more."
                ) from error
            if index not in self.bad:
                self._say.line(f"sample {index} cannot be read and is left out: {_words(error)}")
            self.bad[index] = _words(error)
            return []

    def _read_patiently(self, index: int) -> Any:
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                sample = self._loader.dataset[index]
            except Exception as error:
                if not passes(error) or monotonic() + wait_s > self._until:
                    raise
                self._say.once("transient", f"sample {index} could not be read and is tried again for {PATIENCE_S:g} s: {_words(error)}")
                sleep(wait_s)
                wait_s *= 2
            else:
                return sample

    def _any_of(self, others: Iterable[int], first: Exception) -> list[Any]:
        for index, _ in zip(others, range(_FILLERS), strict=False):
            with contextlib.suppress(Exception):
                return [self._loader.dataset[index]]
        raise first


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _listed(bad: Iterable[int]) -> str:
    shown = sorted(bad)
    return ", ".join(map(str, shown[:8])) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
