"""Stream: an iterable data set of which each sample is used once, whatever the number of ranks: `DataLoader(Stream(dataset, batch_size=64), batch_size=None)`.

Every rank, and every worker of its loader, goes through the whole data set and keeps its own shares: reading is done more than once, and in return the place
in the data is one number, as with `Sampler`. So samples should be cheap to pass over (names of files, lines, tokens), and what is dear (decoding, augmenting)
belongs into `collate`, which sees a rank's own samples alone.

Is wrong    when the data set does not give the same samples in the same order to everybody who asks: shuffle it by a seed and `set_epoch`, not by chance.
Costs       the reading of all samples in each worker, and one step's samples in its memory. After a restart what was used is read again and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from holdfast.domain.treatment import Window, next_draw
from holdfast.errors import UserError
from holdfast.trainer.shares import Cutter, Share


class Stream(IterableDataset[Any], Cutter):
    """Batches of this rank, put together by `collate`. `batch_size` counts all ranks; `resize` as for `Sampler`; `drop_last` drops a short last batch.

    A data set with `set_epoch` is told the epoch before it is gone through.
    """

    def __init__(
        self, dataset: Iterable[Any], *, batch_size: int, collate: Callable[[list[Any]], Any] = default_collate, drop_last: bool = False,
        resize: bool = False, rank: int | None = None, world_size: int | None = None,
    ) -> None:  # fmt: skip
        Cutter.__init__(self, batch_size=batch_size, resize=resize, rank=rank, world_size=world_size)
        self._dataset, self._collate, self.drop_last = dataset, collate, drop_last
        self.epoch = self.position = 0
        self.draw = 0  # The number of the step's data at `position`,
        self.left_out: tuple[Window, ...] = ()  # and those that are passed over; `Feed` says both.
        self._told = torch.zeros(8, dtype=torch.int64).share_memory_()  # What persistent workers, which have a copy of all else, must hear of.

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at its beginning; the epoch it is in goes on where it is."""
        if epoch != self.epoch:
            self.seek(epoch, 0)

    def seek(self, epoch: int, position: int) -> None:
        self.epoch, self.position = epoch, position

    def tell(self) -> None:
        """To be called before the loader is opened: what its workers are to do."""
        self._told[:] = torch.tensor([self.epoch, self.position, self.accumulate, self.most, self.draw, self.rank, self.world_size, self.batch_size])

    def __iter__(self) -> Iterator[StreamBatch]:
        """From the place that was told to the end of the epoch; of a loader with workers each gives every so many batches."""
        epoch, position, self.accumulate, self.most, draw, self.rank, self.world_size, self.batch_size = (int(one) for one in self._told)
        here = get_worker_info()
        worker, workers = (here.id, here.num_workers) if here is not None else (0, 1)
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        left, number, passed = islice(iter(self._dataset), position, None), 0, Passed(0, 0)
        while step := list(islice(left, self.samples_per_step)):
            if self.drop_last:
                step = step[: len(step) - len(step) % self.batch_size]
            self._must_do_for_all(len(step))
            draw += 1
            if next_draw(self.left_out, draw - 1) >= draw:
                passed = Passed(passed.draws + 1, passed.samples + len(step))
                continue
            first = 0
            for share in self.cut(len(step)):
                if number % workers == worker:
                    own = step[first + share.begin : first + share.end] or step[first : first + 1]
                    yield StreamBatch(self._collate(own), share, passed)
                first, number, passed = first + share.samples, number + 1, Passed(0, 0)
        if passed.draws and number % workers == worker:
            yield StreamBatch(None, None, passed)

    def _must_do_for_all(self, samples: int) -> None:
        short = samples % self.batch_size
        if 0 < short < self.world_size and not self.resize:
            raise UserError(
                f"the last batch of the epoch has {short} samples for {self.world_size} ranks: expected at least one for each. Pass drop_last=True, or "
                "resize=True and multiply the loss with run.weight."
            )


@dataclass(frozen=True, slots=True)
class Passed:
    """What was left out right before a batch."""

    draws: int
    samples: int


class StreamBatch:
    """A batch on its way from a stream to the loop, with what it is of its step; without a share, only what was left out at the end of an epoch. No container
    that a loader would look into."""

    __slots__ = ("batch", "passed", "share")

    def __init__(self, batch: Any, share: Share | None, passed: Passed) -> None:
        self.batch, self.share, self.passed = batch, share, passed

    def pin_memory(self) -> StreamBatch:
        """Asked for by a loader with pin_memory=True."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return StreamBatch(pin_memory(self.batch), self.share, self.passed)
