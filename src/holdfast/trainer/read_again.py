"""Reading again what a data loader could not read: `ReadAgain`. A disk that stumbles costs seconds, and a sample that cannot be decoded costs that sample.

A loader whose worker failed gives its exception in the place of the batch, and goes on with the next. With our `Sampler` the samples of that batch are known,
so they are read one by one in this process: what was a moment's failure is there now or in a few seconds, and what is left is a bad sample, which is left out
if the script allows for some. Any other loader has lost the batch, and is opened anew where it was (`feed.py`), as long as what failed may pass.

Is wrong    when a data set can be read only in a loader's workers: then its samples look bad from here, and as many are left out as the script allows for.
Costs       nothing until a batch fails. A loader that is opened anew fetches the batches of its epoch once more.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from holdfast.checkpoint.passing import passes
from holdfast.checkpoint.randomness import apply_randomness, capture_randomness
from holdfast.errors import HoldfastError
from holdfast.trainer.say import Say

PATIENCE_S: Final = 10.0  # For one batch: all ranks wait for the one that reads, and from 20 s on they may be taken for hung.
_FIRST_WAIT_S: Final = 0.05
_FROM_WORKER: Final = "in DataLoader worker process"  # What torch puts before the words of an exception that a worker raised.
_NUMBER: Final = re.compile(r"\[Errno (\d+)\]")  # All that is left of an error's number when it comes from a worker.
_FILLERS: Final = 32  # Samples tried for one that can be read, when nothing of a batch can.


class BadSamples(Exception):
    """More samples could not be read than may be left out."""


class ReadAgain:
    """For one loader. `skip_bad` samples of this rank may be left out, over the whole run; `bad` says which were, and why."""

    def __init__(self, loader: Any, *, skip_bad: int, say: Say, pause: Callable[[], AbstractContextManager[None]]) -> None:
        self._loader, self._skip_bad, self._say, self._pause = loader, skip_bad, say, pause
        self.bad: dict[int, str] = {}
        self.batches = 0  # That were read again, in this process.
        self._until = 0.0

    def can_help(self, error: Exception) -> bool:
        """Whether the loader goes on after this. It does not after the death of a worker, and a data set that is iterated over is at its end."""
        return not getattr(self._loader, "num_workers", 0) or _FROM_WORKER in str(error)

    def read(self, indices: list[int], others: Iterable[int], error: Exception) -> tuple[Any, int]:
        """The batch of `indices` without its bad samples, and how many are in it; if none is, one of the `others` stands in for them."""
        before = capture_randomness()
        self._until = monotonic() + PATIENCE_S
        self.batches += 1
        try:
            with self._pause():
                samples = [sample for index in indices for sample in self._sample(index, error)]
                filled = samples or self._any_of(others, error)
        finally:
            if getattr(self._loader, "num_workers", 0):
                apply_randomness(before)  # The loop's own stream of random numbers knows nothing of reading.
        try:
            return self._loader.collate_fn(filled), len(samples)
        except Exception as failed:
            self._say.line(
                f"samples {_listed(indices)} can be read one by one, and make no batch: {_words(failed)}, in {_where(failed)}. They do not fit together: "
                "make them alike in the data set, or let collate_fn do it."
            )
            raise

    def _may_pass(self, error: Exception) -> bool:
        """Whether the same may work in a moment."""
        number = _NUMBER.search(_last_line(error)) if isinstance(error, OSError) and _FROM_WORKER in str(error) else None
        return passes(OSError(int(number[1]), "")) if number else passes(error)

    def waits(self, error: Exception, what: str, patience: Patience) -> bool:
        """Wait a little for what may pass. False, and said, when there is nothing to wait for any more, or ever was."""
        if isinstance(error, HoldfastError):
            return False  # It says all there is to say.
        if not self._may_pass(error):
            self._say.line(f"{what} cannot be had: {_words(error)}, in {_where(error)}. The same would come again: mend the data or what reads it.")
            return False
        self.batches += patience.tries == 0
        with self._pause():
            if patience.wait():
                self._say.once("transient", f"{what} could not be read and is tried again for {PATIENCE_S:g} s: {_words(error)}")
                return True
        self._give_up(what, patience, error)
        return False

    def _give_up(self, what: str, patience: Patience, error: Exception) -> None:
        self._say.line(f"{what} is given up: it could not be read for {PATIENCE_S:g} s, in {patience.tries + 1} tries: {_words(error)}. Look at its storage.")

    def _sample(self, index: int, first: Exception) -> list[Any]:
        """The sample, or nothing if it is bad."""
        try:
            return [self._read_patiently(index)]
        except Exception as error:
            if not passes(error) and not self._skip_bad:
                self._say.line(
                    f"sample {index} cannot be read: {_words(error)}, in {_where(error)}. Mend it, or allow for some that are bad: "
                    "run.steps(loader, skip_bad=16), with resize=True in holdfast.Sampler."
                )
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
        patience = Patience(self._until)
        while True:
            try:
                return self._loader.dataset[index]
            except Exception as error:
                if not passes(error):
                    raise
                if not patience.wait():
                    self._give_up(f"sample {index}", patience, error)
                    raise
                self._say.once("transient", f"sample {index} could not be read and is tried again for {PATIENCE_S:g} s: {_words(error)}")

    def _any_of(self, others: Iterable[int], first: Exception) -> list[Any]:
        for index, _ in zip(others, range(_FILLERS), strict=False):
            with contextlib.suppress(Exception):
                return [self._loader.dataset[index]]
        raise first


class Patience:
    """Ever longer waits, up to a moment."""

    def __init__(self, until: float | None = None) -> None:
        self._until, self._wait_s, self.tries = monotonic() + PATIENCE_S if until is None else until, _FIRST_WAIT_S, 0

    def wait(self) -> bool:
        """Wait before the next try; False, at once, when there is no time for one."""
        if monotonic() + self._wait_s > self._until:
            return False
        sleep(self._wait_s)
        self._wait_s *= 2
        self.tries += 1
        return True


def _words(error: BaseException) -> str:
    """Its first line; of one that a worker raised the last one, which has its own words."""
    if _FROM_WORKER in str(error):
        return _last_line(error)[:200]
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _last_line(error: BaseException) -> str:
    return str(error).strip().rpartition("\n")[2]


def _where(error: BaseException) -> str:
    """The line that raised it."""
    told = re.findall(r'File "(.+)", line (\d+)', str(error)) if _FROM_WORKER in str(error) else []
    frames = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]
    file, line = (told or frames)[-1]
    return f"{Path(file).name}:{line}"


def _listed(numbers: Iterable[int]) -> str:
    shown = sorted(numbers)
    return ", ".join(map(str, shown[:8])) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
