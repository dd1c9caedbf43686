"""A sampler that can stop anywhere and go on: `Sampler`, for `DataLoader(dataset, batch_sampler=Sampler(...))`.

The order of an epoch is a function of seed and epoch alone. Where a run stands in it is one number, `position`: the samples [0, position) of the
order are used, the others are not, whatever the number of ranks. Each global batch is the next `batch_size` samples of the order, and each rank takes
its slice of it. It is a batch sampler because then one item is one batch: DataLoader workers may run ahead as they like, and the position moves by
whole batches when the loop has used them (`advance`), not when they were fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from holdfast.checkpoint.errors import CheckpointMismatch
from holdfast.errors import UserError
from holdfast.trainer.place import place_here


class Sampler:
    """Batches of indices for this rank. `batch_size` counts all ranks together, so it means the same at any world size.

    The last batch of an epoch is short when the batch size does not divide the data set, and is shared out as evenly as it goes; `drop_last` leaves
    it out instead.
    """

    def __init__(
        self,
        dataset: Sized | int,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        place = place_here()
        self.length = dataset if isinstance(dataset, int) else len(dataset)
        self.batch_size, self.seed, self.shuffle, self.drop_last = batch_size, seed, shuffle, drop_last
        self.rank = place.rank if rank is None else rank
        self.world_size = place.world_size if world_size is None else world_size
        self.epoch = self.position = 0
        self._order: tuple[int, Any] | None = None
        self._check()

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's share of every batch from `position` to the end of the epoch."""
        order = self._order_of_epoch()
        for first in range(self.position, self.used_per_epoch, self.batch_size):
            batch = order[first : min(first + self.batch_size, self.used_per_epoch)]
            yield batch[len(batch) * self.rank // self.world_size : len(batch) * (self.rank + 1) // self.world_size].tolist()

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return -(-self.used_per_epoch // self.batch_size)

    @property
    def used_per_epoch(self) -> int:
        return self.length - self.length % self.batch_size if self.drop_last else self.length

    def advance(self) -> None:
        """Say that the loop has used one more batch. `run.steps(loader)` does this; a loop of your own calls it after every batch."""
        self.position = min(self.position + self.batch_size, self.used_per_epoch)

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at its beginning; the epoch it is in goes on where it is."""
        if epoch != self.epoch:
            self.seek(epoch, 0)

    def seek(self, epoch: int, position: int) -> None:
        self.epoch, self.position = epoch, position

    def state_dict(self) -> dict[str, Any]:
        """Alike on every rank: nothing in it depends on rank or world size."""
        return {**self._identity(), "epoch": self.epoch, "position": self.position, "fingerprint": self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, here in self._identity().items():
            if state[name] != here:
                raise CheckpointMismatch(
                    f"the sampler was saved with {name}={state[name]} and this script has {name}={here}: its position means nothing in another "
                    "order. Put the old value back, or start anew."
                )
        self.seek(state["epoch"], state["position"])
        if state["fingerprint"] != self._fingerprint():
            raise CheckpointMismatch("torch orders samples differently for the same seed than the one that saved: use the same torch, or start anew.")

    def _identity(self) -> dict[str, Any]:
        return {"length": self.length, "seed": self.seed, "shuffle": self.shuffle}

    def _fingerprint(self) -> list[int]:
        """The first samples of the epoch, by which another order for the same seed is noticed."""
        first: list[int] = self._order_of_epoch()[:8].tolist()
        return first

    def _order_of_epoch(self) -> Any:
        """The order of the epoch, as one tensor of whole numbers; made once per epoch."""
        import torch

        if self._order is None or self._order[0] != self.epoch:
            generator = torch.Generator()
            # Mixed, so that epoch 1 of seed 0 is not epoch 0 of seed 1; the constants are those of splitmix64.
            generator.manual_seed((self.seed * 0x9E3779B97F4A7C15 + self.epoch * 0xBF58476D1CE4E5B9) % (1 << 63))
            self._order = (self.epoch, torch.randperm(self.length, generator=generator) if self.shuffle else torch.arange(self.length))
        return self._order[1]

    def _check(self) -> None:
        if self.batch_size < 1 or self.batch_size % self.world_size:
            raise UserError(
                f"batch_size is {self.batch_size} for {self.world_size} ranks: expected a multiple of {self.world_size}, since it counts the "
                "samples of all ranks together."
            )
        short = self.used_per_epoch % self.batch_size
        if self.used_per_epoch == 0 or 0 < short < self.world_size:
            raise UserError(
                f"{self.length} samples in batches of {self.batch_size} leave {short or 'nothing'} for the last batch of {self.world_size} ranks: "
                "expected at least one sample for each. Pass drop_last=True, or another batch_size."
            )
