"""Shares: how the samples of one optimizer step are cut into batches, and each batch into the parts of the ranks.

    a step of 10 samples, 3 ranks, 2 samples each at most     batch 0: 0 │ 1 2 │ 3 4     batch 1: 5 │ 6 7 │ 8 9

Sizes differ by one at most, and every rank comes to the same cut by itself. A share weighs what its mean loss must be multiplied with, so that the mean over
the ranks of the sum over the batches, which is what DDP and FSDP leave in the gradients, is the gradient of the mean over all samples of the step.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import UserError
from holdfast.trainer.place import place_here


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one batch."""

    begin: int  # Of the samples of the batch [begin, end) are this rank's.
    end: int
    samples: int  # Of all ranks in this batch.
    weight: float
    ends_step: bool
    batches: int  # In the step.


class Cutter:
    """How one rank cuts up steps. `batch_size` counts all ranks; `accumulate` batches of it make a step, and how many samples that are never changes.

    In a gang that is smaller than asked for both are less, where `--smaller-batch` says so.

    With `resize` a step is cut so that no rank has more than `most` samples at once; else as the script says.
    """

    def __init__(self, *, batch_size: int, resize: bool, rank: int | None, world_size: int | None) -> None:
        """Without `rank` and `world_size`: those of this process."""
        self._said, self.resize = batch_size, resize
        self._asked = rank, world_size
        self.take_place()
        self.accumulate, self.most = 1, self.meant

    def take_place(self) -> None:
        """Where this process stands now: in a gang of another size it has another share, also of what was made before."""
        place, (rank, world_size) = place_here(), self._asked
        self.batch_size = max(min(1, self._said), round(self._said * place.scaling.batch))
        self.rank, self.world_size = place.rank if rank is None else rank, place.world_size if world_size is None else world_size
        if self.batch_size < 1 or (self.batch_size % self.world_size and not self.resize):
            raise UserError(
                f"batch_size is {self.batch_size} for {self.world_size} ranks: expected a multiple of {self.world_size}, since it counts the "
                "samples of all ranks together. With resize=True, and the loss multiplied with run.weight, any world size will do."
            )

    @property
    def meant(self) -> int:
        """The most samples of one rank in one batch, as the script was written for this world size."""
        return max(1, -(-self.batch_size // self.world_size))

    @property
    def samples_per_step(self) -> int:
        return self.batch_size * self.accumulate

    def sizes(self, samples: int) -> list[int]:
        """The batches of a step of so many samples, all ranks together."""
        if self.resize:
            return even(samples, batches_for(samples, ranks=self.world_size, most=self.most)) if samples else []
        return [min(self.batch_size, samples - begun) for begun in range(0, samples, self.batch_size)]

    def cut(self, samples: int) -> list[Share]:
        """This rank's shares of them."""
        sizes = self.sizes(samples)
        return [_share(number, sizes, samples, self.rank, self.world_size) for number in range(len(sizes))]


def batches_for(samples: int, *, ranks: int, most: int) -> int:
    """How many batches a step needs so that no rank has more than `most` samples in one."""
    of_a_rank = -(-samples // ranks)
    return max(1, -(-of_a_rank // most))


def even(samples: int, parts: int) -> list[int]:
    """Sizes that differ by one at most."""
    return [samples * (part + 1) // parts - samples * part // parts for part in range(parts)]


def _share(number: int, sizes: list[int], samples: int, rank: int, ranks: int) -> Share:
    begin, end = sizes[number] * rank // ranks, sizes[number] * (rank + 1) // ranks
    return Share(begin, end, sizes[number], (end - begin) * ranks / samples, number + 1 == len(sizes), len(sizes))
