"""A sampler that can stop anywhere and go on: `Sampler`, for `DataLoader(dataset, batch_sampler=Sampler(...))`.

The order of an epoch is a function of seed and epoch alone. Where a run stands in it is one number, `position`: the samples [0, position) of the
order are used, the others are not, whatever the number of ranks. Each optimizer step is the next samples of the order, and each rank takes its shares of
them. It is a batch sampler because then one item is one batch: DataLoader workers may run ahead as they like, and the position moves by
whole batches when the loop has used them (`advance`), not when they were fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

from holdfast.checkpoint.errors import CheckpointMismatch
from holdfast.domain.treatment import Window, next_draw
from holdfast.errors import UserError
from holdfast.trainer.order import Mixed, Plain, Weighted
from holdfast.trainer.shares import Cutter, Share


class Sampler(Cutter):
    """Batches of indices for this rank. `batch_size` counts all ranks together, so it means the same at any world size.

    The last batch of an epoch is short when the batch size does not divide the data set, and is shared out as evenly as it goes; `drop_last` leaves
    it out instead.

    `resize` says that a step may be cut into more or fewer batches, and ranks be given uneven shares, while its samples stay the same: the loss must be a
    mean over the batch, and be multiplied with `run.weight`. Then any world size will do. A rank for which nothing is left of a batch is given one sample
    that another has, with weight 0, since it has to take part in the collectives.

    `weights` draws `samples` of them an epoch by weight, with `replacement` or without. `mix` interleaves the sources of a ConcatDataset in proportions.
    """

    def __init__(
        self,
        dataset: Sized | int,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        resize: bool = False,
        weights: Any = None,
        replacement: bool = True,
        mix: Sequence[float] | None = None,
        samples: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.length = dataset if isinstance(dataset, int) else len(dataset)
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self._orders = _orders(dataset, self.length, seed, shuffle, weights, replacement, mix, samples)
        super().__init__(batch_size=batch_size, resize=resize, rank=rank, world_size=world_size)
        self.epoch = self.position = 0
        self._order: tuple[int, Any] | None = None
        self._left: list[Share] = []  # Of the step under way.
        self.draw = 0  # The number of the step's data at `position`,
        self.left_out: tuple[Window, ...] = ()  # and those that are passed over; `Feed` says both.
        self._last_cut: tuple[int, list[Share]] | None = None

    def take_place(self) -> None:
        super().take_place()
        self._check_last_batch()

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's share of every batch from `position`, where a step begins, to the end of the epoch."""
        order, first, draw = self._order_of_epoch(), self.position, self.draw
        while (first := self._beyond(first, draw)) < self.used_per_epoch:
            draw = next_draw(self.left_out, draw) + 1
            for share in self._step_at(first):
                own = order[first + share.begin : first + share.end].tolist()
                yield own or order[first : first + 1].tolist()
                first += share.samples

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        whole, rest = divmod(self.used_per_epoch, self.samples_per_step)
        return whole * len(self.sizes(self.samples_per_step)) + len(self.sizes(rest))

    @property
    def used_per_epoch(self) -> int:
        samples: int = self._orders.samples
        return samples - samples % self.batch_size if self.drop_last else samples

    @property
    def share(self) -> Share:
        """What this rank has of the batch that is used next. Not to be asked at the end of an epoch, where there is none."""
        if not self._left:
            self.position, self.draw = self._beyond(self.position, self.draw), next_draw(self.left_out, self.draw)
            self._left = self._step_at(self.position)
        return self._left[0]

    def advance(self) -> None:
        """Say that the loop has used one more batch. `run.steps(loader)` does this; a loop of your own calls it after every batch."""
        if self.position < self.used_per_epoch:
            self.position += self.share.samples
            self.draw += self.share.ends_step
            del self._left[0]

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at its beginning; the epoch it is in goes on where it is."""
        if epoch != self.epoch:
            self.seek(epoch, 0)

    def seek(self, epoch: int, position: int) -> None:
        """Begin a step there, cut as `accumulate` and `most` say now."""
        self.epoch, self.position, self._left, self._last_cut = epoch, position, [], None

    def indices(self) -> list[int]:
        """The samples of the share that is used next."""
        share, first = self.share, self.position
        indices: list[int] = self._order_of_epoch()[first + share.begin : first + share.end].tolist()
        return indices

    def others(self) -> Iterator[int]:
        """Samples that may stand in for one of the share that is used next: those of its batch first, then those after it."""
        order, count = self._order_of_epoch(), self._orders.samples
        return (int(order[(self.position + further) % count]) for further in range(count))

    def state_dict(self) -> dict[str, Any]:
        """Alike on every rank: nothing in it depends on rank or world size."""
        return {**self._identity(), "epoch": self.epoch, "position": self.position, "fingerprint": self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, here in self._identity().items():
            if state.get(name, here) != here:
                raise CheckpointMismatch(
                    f"the sampler was saved with {name}={state[name]} and this script has {name}={here}: its position means nothing in another "
                    "order. Put the old value back, or start anew."
                )
        self.seek(state["epoch"], state["position"])
        if state["fingerprint"] != self._fingerprint():
            raise CheckpointMismatch("torch orders samples differently for the same seed than the one that saved: use the same torch, or start anew.")

    def _identity(self) -> dict[str, Any]:
        return {"length": self.length, "seed": self.seed, "shuffle": self.shuffle, "samples": self._orders.samples, "order": self._orders.identity}

    def _fingerprint(self) -> list[int]:
        """The first samples of the epoch, by which another order for the same seed is noticed."""
        first: list[int] = self._order_of_epoch()[:8].tolist()
        return first

    def _order_of_epoch(self) -> Any:
        """The order of the epoch, as one tensor of whole numbers; made once per epoch."""
        if self._order is None or self._order[0] != self.epoch:
            self._order = (self.epoch, self._orders.of(self.epoch))
        return self._order[1]

    def _beyond(self, first: int, draw: int) -> int:
        """The position of the next step that is not left out, or the end of the epoch; `draw` is the number of the one at `first`."""
        return min(first + (next_draw(self.left_out, draw) - draw) * self.samples_per_step, self.used_per_epoch)

    def _step_at(self, first: int) -> list[Share]:
        samples = min(self.samples_per_step, self.used_per_epoch - first)
        if self._last_cut is None or self._last_cut[0] != samples:  # Nearly all steps are alike.
            self._last_cut = (samples, self.cut(samples))
        return list(self._last_cut[1])

    def _check_last_batch(self) -> None:
        short = self.used_per_epoch % self.batch_size
        if self.used_per_epoch == 0 or (0 < short < self.world_size and not self.resize):
            raise UserError(
                f"{self.length} samples in batches of {self.batch_size} leave {short or 'nothing'} for the last batch of {self.world_size} ranks: "
                "expected at least one sample for each. Pass drop_last=True, another batch_size, or resize=True and multiply the loss with run.weight."
            )


def _orders(
    dataset: Sized | int, length: int, seed: int, shuffle: bool, weights: Any, replacement: bool, mix: Sequence[float] | None, samples: int | None
) -> Plain | Weighted | Mixed:  # fmt: skip
    if weights is not None and mix is not None:
        raise UserError("Sampler(weights=…, mix=…): expected one of the two. Put the proportions of the sources into the weights.")
    if weights is not None:
        weighted = Weighted(weights, samples=samples, replacement=replacement, seed=seed)
        if weighted.length != length:
            raise UserError(f"there are {weighted.length} weights for {length} samples: expected one for each.")
        return weighted
    if mix is not None:
        sources = getattr(dataset, "datasets", None)
        if sources is None:
            raise UserError(f"mix={list(mix)} needs a torch.utils.data.ConcatDataset, whose sources it mixes; the dataset is a {type(dataset).__qualname__}.")
        return Mixed([len(source) for source in sources], mix, samples=samples, seed=seed, shuffle=shuffle)
    if samples not in (None, length):
        raise UserError(f"samples={samples} of {length}: expected weights or mix with it, since without them an epoch is every sample once.")
    return Plain(length=length, seed=seed, shuffle=shuffle)
