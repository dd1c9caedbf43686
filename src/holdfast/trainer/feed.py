"""Feed: the batches of a loader over its epochs, from where the run stopped, with the moments at which a step ends and what each batch weighs in it.

A step is an optimizer step: `accumulate` batches, or fewer at the end of an epoch when it does not divide. Only a loader without a length does
not tell its last batch: there the group goes on into the next epoch. With Holdfast's `Sampler` or `Stream` a resumed epoch begins at its position, and the
samples of a step are what stays, in as many batches as it takes. With any other loader the batches already used are fetched again and dropped, with the
random numbers that the epoch began with, so that a shuffling loader gives the same order again. The same is done when a disk or a network stumbles, and the
loader has lost the batch that it was to give.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any, Generic, TypeVar

from holdfast.checkpoint.errors import CheckpointMismatch
from holdfast.checkpoint.randomness import apply_randomness, capture_randomness
from holdfast.domain.treatment import Window, next_draw
from holdfast.errors import UserError
from holdfast.trainer.loaders import let_go
from holdfast.trainer.read_again import Patience, ReadAgain
from holdfast.trainer.sampler import Sampler

Batch = TypeVar("Batch")


class Feed(Generic[Batch]):
    """Batches of the epochs [first_epoch, last_epoch) of a run."""

    def __init__(
        self, loader: Iterable[Batch], *, first_epoch: int, last_epoch: int, accumulate: int, resumes_itself: bool, most: int | None = None,
        read_again: ReadAgain | None = None, draw: int = 0, left_out: tuple[Window, ...] = (),
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        """`most`: samples of one rank that fit at once, where that was found out. `draw`: the number of the first step's data, by which some are left out.
        `waiting`: entered while the loader is asked for something, which may take long.
        """
        self._loader, self._last_epoch, self._accumulate = loader, last_epoch, accumulate
        self._sampler, self._stream = _sampler_of(loader), _stream_of(loader)
        self._exact = self._sampler or self._stream
        if self._exact is not None:
            self._exact.take_place()  # It may have been made when this process had another.
        if self._exact is not None and resumes_itself:
            raise UserError(
                f"the loader was given to guard(), and its {type(self._exact).__name__} keeps the place in the data: two who do are one too many. "
                "Leave the loader out."
            )
        self.resumes_itself, self._read_again, self._limit, self._waiting = resumes_itself, read_again, most, waiting
        self.epoch, self.batches, self._in_group = first_epoch, 0, 0
        self._of_step = 0  # Samples of the step under way that were used already; of a stream.
        self.samples = 0  # Used since the run began, where they are counted.
        self.draw, self._left_out = draw, left_out
        self._epoch_randomness: dict[str, Any] = {}
        self._chance: list[tuple[Any, Any]] = []  # The loader's own random numbers, as they were when the epoch was opened.
        self._resume_randomness: dict[str, Any] | None = None
        self.boundary, self._given = False, 0
        self.weight = 1.0  # What the mean loss of the batch counts for in its step.
        self.accumulate = accumulate  # Batches of the step under way.
        self.data_wait_s = 0.0
        self._meant = self._exact.meant if self._exact else 0
        self._cut()

    def _cut(self) -> None:
        if self._exact is not None:
            self._exact.accumulate, self._exact.most = self._accumulate, min(self._meant, self._limit or self._meant)
            self._exact.draw, self._exact.left_out = self.draw, self._left_out
            self._exact.seek(self._exact.epoch, self._exact.position)
        self.length = _length_of(self._loader)

    @property
    def micro_batch(self) -> int:
        """The most samples that a rank is given at once, where that may be changed; else 0."""
        if self._exact is None or not self._exact.resize:
            return 0
        return -(-max(self._exact.sizes(self._exact.samples_per_step)) // self._exact.world_size)

    @property
    def bad_samples(self) -> int:
        """Samples of this rank that could not be read, and were left out."""
        return len(self._read_again.bad) if self._read_again is not None else 0

    @property
    def batches_read_again(self) -> int:
        return self._read_again.batches if self._read_again is not None else 0

    @property
    def steps_per_epoch(self) -> int:
        """0 for a loader without a length."""
        if self._sampler is not None:
            return -(-self._sampler.used_per_epoch // self._sampler.samples_per_step)
        return -(-(self.length or 0) // self._accumulate)

    @property
    def epochs_done(self) -> float:
        """With the part of the one under way, where the loader has a length."""
        if self._sampler is not None:
            return self.epoch + (self._sampler.position / self._sampler.used_per_epoch if self._sampler.epoch == self.epoch else 0.0)
        return self.epoch + (min(1.0, self.batches / self.length) if self.length else 0.0)

    def progress(self) -> dict[str, Any]:
        """What `resume` needs."""
        here: dict[str, Any] = {"epoch": self.epoch, "batches": self.batches, "epoch_randomness": self._epoch_randomness, "draw": self.draw}
        if self._exact is not None:
            here |= {"position": self._exact.position, "samples": self.samples, "meant": self._meant, "batch_size": self._exact.batch_size}
        if self._sampler is not None:
            here["order"] = self._sampler.state_dict()
        if self._read_again is not None:
            here["bad"] = dict(self._read_again.bad)
        return here

    def bookmark(self) -> tuple[Any, ...]:
        """The place in the data, at once; `turned_to` goes back there."""
        exact = self._exact
        return (self.epoch, self.batches, self.draw, self.samples, self._epoch_randomness, *((exact.epoch, exact.position) if exact is not None else ()))

    @contextmanager
    def turned_to(self, bookmark: tuple[Any, ...]) -> Iterator[None]:
        """Within, `progress` is as it was there."""
        now = self.bookmark()
        self._turn_to(*bookmark)
        try:
            yield
        finally:
            self._turn_to(*now)

    def _turn_to(self, epoch: int, batches: int, draw: int, samples: int, randomness: dict[str, Any], *exact: int) -> None:
        self.epoch, self.batches, self.draw, self.samples, self._epoch_randomness = epoch, batches, draw, samples, randomness
        if self._exact is not None:
            self._exact.epoch, self._exact.position = exact

    def resume(self, progress: dict[str, Any], randomness: dict[str, Any], *, step: int = 0) -> None:
        """Go on from `progress`, at `step`; a feed whose epochs are all behind that point is empty."""
        self.epoch, self.batches, self.draw = progress["epoch"], progress["batches"], progress.get("draw", step)
        self._epoch_randomness, self._resume_randomness = progress["epoch_randomness"], randomness
        if self._read_again is not None:
            self._read_again.bad |= progress.get("bad", {})
        if self._exact is None or self.epoch >= self._last_epoch:  # What was stopped was another loop over other data.
            return
        if self._sampler is not None and "order" in progress:
            self._sampler.load_state_dict(progress["order"])
        self._exact.seek(self.epoch, progress["position"])
        self.samples = progress.get("samples", progress["position"])
        if progress.get("batch_size") == self._exact.batch_size:
            self._meant = progress["meant"]  # As it was when the run began: what a rank was given then fits into its memory.
        self._cut()

    @property
    def shares_among(self) -> int | None:
        """How many ranks a sampler of torch's shares out among, which was told so when it was made; None where nobody says."""
        loader: Any = self._loader
        inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        told = (getattr(one, "num_replicas", None) for one in (getattr(loader, "sampler", None), inner))
        return next((ranks for ranks in told if ranks is not None), None)

    def moved(self, ranks_before: int, ranks: int) -> str:
        """What to say when others saved than go on; nothing where the place in the data means the same to both. Raises CheckpointMismatch where it means
        nothing to these."""
        if self._exact is not None:
            return ""
        if self.resumes_itself and _is_stateful(self._loader):
            raise CheckpointMismatch(
                f"{ranks_before} ranks saved and {ranks} go on: torchdata's StatefulDataLoader keeps the place of each rank by itself, and nobody can share "
                f"out the places of {ranks_before} among {ranks}. Give it batch_sampler=holdfast.Sampler(...), whose place is one number for all, "
                f"or go on with {ranks_before}."
            )
        if self.resumes_itself:
            return ""
        self.batches = self.batches * ranks_before // ranks
        return (
            f"{ranks_before} ranks saved and {ranks} go on: this loader counts batches of one rank, so the place in the epoch is kept only about. "
            "holdfast.Sampler keeps it exactly."
        )

    def __iter__(self) -> Iterator[Batch]:
        while self.epoch < self._last_epoch:
            iterator: Iterator[Any] | None = self._open_epoch()
            patience: Patience | None = None
            while True:
                asked = perf_counter()
                try:
                    iterator = self._open_again() if iterator is None else iterator
                    with self._waiting():
                        self._pass_over(iterator)
                        fetched = self._fetch(iterator)
                except StopIteration:
                    break
                except Exception as error:
                    patience = patience or Patience()
                    if iterator is self._loader or not self._comes_back(error, patience):
                        raise
                    error.__traceback__ = None  # Its frames hold the iterator, whose workers end before others begin.
                    with let_go():
                        iterator = None
                    continue
                patience = None
                batch = self._weigh(fetched)
                self.data_wait_s += perf_counter() - asked
                yield batch
            if self._sampler is not None:  # What was left out at the end of the epoch.
                self.draw += -(-(self._sampler.used_per_epoch - self._sampler.position) // self._sampler.samples_per_step)
            self.epoch, self.batches = self.epoch + 1, 0

    def use(self) -> None:
        """The batch just given is used: it will not be given again after a save from now on."""
        self.batches += 1
        self._in_group = 0 if self.boundary else self._in_group + 1
        self.draw += self.boundary
        if self._sampler is not None:
            self.samples += self._sampler.share.samples
            self._sampler.advance()
            self.draw = self._sampler.draw
        elif self._stream is not None:
            self.samples += self._given
            self._stream.position += self._given
            self._of_step = 0 if self.boundary else self._of_step + self._given

    def _pass_over(self, iterator: Iterator[Any]) -> None:
        """Fetch and drop what is left out, where the loader is not told of it."""
        while self._exact is None and not self._in_group and next_draw(self._left_out, self.draw) != self.draw:
            group = self._group()
            for _ in range(group):
                next(iterator)
            self.batches, self.draw = self.batches + group, self.draw + 1

    def _fetch(self, iterator: Iterator[Any]) -> tuple[Any, float]:
        """The next batch, and what of it could be read."""
        try:
            fetched = next(iterator)
            if self._stream is not None:
                self._stream.position, self.draw = self._stream.position + fetched.passed.samples, self.draw + fetched.passed.draws
                fetched = fetched if fetched.share is not None else next(iterator)
            return fetched, 1.0
        except StopIteration:
            raise
        except Exception as error:
            if self._read_again is None or self._sampler is None or not self._read_again.can_help(error):
                raise
            indices = self._sampler.indices()
            batch, read = self._read_again.read(indices, self._sampler.others(), error)
            return batch, read / max(1, len(indices))

    def _comes_back(self, error: Exception, patience: Patience) -> bool:
        """Whether to open the loader anew, after a wait, for the batch that it has lost. With our sampler it was read already, as far as it can be."""
        if self._read_again is None or self._sampler is not None or self.resumes_itself:
            return False
        with self._waiting():
            return self._read_again.waits(error, f"batch {self.batches} of epoch {self.epoch} (both from 0)", patience)

    def _open_again(self) -> Iterator[Batch]:
        """The epoch under way, at the batch that comes next. A stream begins with the step under way, so that it is cut as it was."""
        for generator, state in self._chance:
            generator.set_state(state)
        if self._stream is None:
            return self._reopen_epoch(capture_randomness())
        self._stream.position -= self._of_step
        try:
            iterator = self._reopen_epoch(capture_randomness())
            with self._waiting():
                for _ in range(self._in_group):
                    next(iterator)
        finally:
            self._stream.position += self._of_step
        return iterator

    def _weigh(self, fetched: tuple[Any, float]) -> Any:
        """The batch itself; what it is of its step is told by whoever cut the step, or else by counting."""
        batch, part = fetched
        if self._exact is None:
            group = self._group()
            self.accumulate, self.weight = group, 1.0 / group
            self.boundary = self._in_group + 1 >= group
            return batch
        share = batch.share if self._stream is not None else self._sampler.share  # type: ignore[union-attr]
        self.accumulate, self.weight, self.boundary, self._given = share.batches, share.weight * part, share.ends_step, share.samples
        return batch.batch if self._stream is not None else batch

    def _group(self) -> int:
        """Batches of the step under way, by counting."""
        left = 0 if self.length is None else self.length - self.batches + self._in_group
        return min(self._accumulate, left) if left > 0 else self._accumulate

    def _open_epoch(self) -> Iterator[Batch]:
        if self._resume_randomness is not None:
            return self._reopen_epoch(self._resume_randomness)
        self._set_epoch()
        self._epoch_randomness = capture_randomness()
        return self._open()

    def _reopen_epoch(self, randomness: dict[str, Any]) -> Iterator[Batch]:
        """The epoch in which the run stopped. Opening a loader draws random numbers, so those of the stopping point are put back last."""
        self._resume_randomness = None
        apply_randomness(self._epoch_randomness)
        self._set_epoch()
        iterator = self._open()
        if self._exact is None and not self.resumes_itself:
            with self._waiting():
                for _ in range(self.batches):
                    next(iterator, None)
        apply_randomness(randomness)
        return iterator

    def _open(self) -> Iterator[Batch]:
        """Workers that live through epochs finish what they had begun before they begin another one. While they are started, nothing is waited for."""
        self._chance = [(generator, generator.get_state()) for generator in _generators_of(self._loader)]
        starts_workers = getattr(self._loader, "num_workers", 0) and getattr(self._loader, "_iterator", None) is None
        with nullcontext() if starts_workers else self._waiting():
            return iter(self._loader)

    def _set_epoch(self) -> None:
        """Tell whoever orders the data which epoch it is: our sampler or stream, a DistributedSampler, or a loader that can be told itself."""
        loader: Any = self._loader
        inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        candidates: tuple[Any, ...] = (self._exact, getattr(loader, "sampler", None), inner, loader)
        told = next((one for one in candidates if hasattr(one, "set_epoch")), None)
        if told is not None:
            told.set_epoch(self.epoch)
        if self._exact is not None:
            self._exact.draw = self.draw
        if self._stream is not None:
            self._stream.tell()


def _generators_of(loader: Any) -> list[Any]:
    """Those that order its samples, where it was given its own; each once."""
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    found = (getattr(one, "generator", None) for one in (loader, getattr(loader, "sampler", None), inner))
    return list({id(one): one for one in found if hasattr(one, "get_state")}.values())


def spare_memory(loader: Any, workers: int | None) -> str:
    """Give a loader no more than so many workers, and say so; the ones of a loader with a time limit cannot all be taken away."""
    wanted = getattr(loader, "num_workers", 0)
    if workers is None or wanted <= workers:
        return ""
    loader.num_workers = max(workers, 1 if getattr(loader, "timeout", 0) else 0)
    return f"the data loader has {loader.num_workers} workers instead of {wanted}: with more the memory of the machine was short."


def _sampler_of(loader: Any) -> Sampler | None:
    sampler = getattr(loader, "batch_sampler", None)
    return sampler if isinstance(sampler, Sampler) else None


def _stream_of(loader: Any) -> Any:
    """The `Stream` that a loader is of, where there is one."""
    module = sys.modules.get("holdfast.trainer.stream")
    dataset = getattr(loader, "dataset", None)
    if module is None or not isinstance(dataset, module.Stream):
        return None
    if loader.batch_size is not None:
        raise UserError(f"the loader of a holdfast.Stream has batch_size={loader.batch_size}: expected batch_size=None, since a stream gives whole batches.")
    return dataset


def _is_stateful(loader: Any) -> bool:
    return any(kind.__name__ == "StatefulDataLoader" for kind in type(loader).__mro__)


def _length_of(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
