"""Orders: in which order the samples of an epoch come, as one tensor of indices. Each is a function of the seed, the epoch and the data alone.

    Plain       every sample once, shuffled or not
    Weighted    drawn by weight, with replacement or without
    Mixed       several sources one after the other in one index space, interleaved in given proportions

No order knows ranks, world size or position: that is what makes a place in it one number.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import UserError


def generator_of(seed: int, *more: int) -> Any:
    """Random numbers for one epoch. Mixed, so that epoch 1 of seed 0 is not epoch 0 of seed 1; the constants are those of splitmix64."""
    import torch

    mixed = seed * 0x9E3779B97F4A7C15
    for number, one in enumerate(more):
        mixed += one * (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)[number]
    generator = torch.Generator()
    generator.manual_seed(mixed % (1 << 63))
    return generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    length: int
    seed: int
    shuffle: bool

    @property
    def samples(self) -> int:
        return self.length

    @property
    def identity(self) -> str:
        return ""

    def of(self, epoch: int) -> Any:
        import torch

        return torch.randperm(self.length, generator=generator_of(self.seed, epoch)) if self.shuffle else torch.arange(self.length)


class Weighted:
    """Sample i is drawn as often as `weights[i]` says: any number of times with replacement, once at most without."""

    def __init__(self, weights: Any, *, samples: int | None, replacement: bool, seed: int) -> None:
        import torch

        self._weights = torch.as_tensor(weights, dtype=torch.float64)
        self.length, self.seed, self._replacement = len(self._weights), seed, replacement
        self.samples = self.length if samples is None else samples
        if not bool(torch.isfinite(self._weights).all()) or bool((self._weights < 0).any()) or not bool((self._weights > 0).any()):
            raise UserError("weights: expected finite numbers of 0 or more, and one above 0 at least.")
        self.identity = f"weighted {zlib.crc32(self._weights.numpy().tobytes()):08x} {'with' if replacement else 'without'} replacement"
        drawable = int((self._weights > 0).sum())
        if not replacement and self.samples > drawable:
            raise UserError(
                f"an epoch of {self.samples} samples cannot be drawn without replacement: {drawable} of {self.length} have a weight above 0. "
                "Pass samples= with as many at most, or replacement=True."
            )

    def of(self, epoch: int) -> Any:
        """By the sums of the weights, or by the exponential race: torch.multinomial takes 2^24 weights at most."""
        import torch

        generator = generator_of(self.seed, epoch)
        if self._replacement:
            sums = self._weights.cumsum(0)
            drawn = torch.searchsorted(sums, torch.rand(self.samples, generator=generator, dtype=torch.float64) * sums[-1], right=True)
            return drawn.clamp_(max=self.length - 1)
        arrivals = torch.empty(self.length, dtype=torch.float64).exponential_(generator=generator) / self._weights
        return arrivals.argsort(stable=True)[: self.samples]


class Mixed:
    """Sources with `lengths` samples each, in proportions: in any stretch of the order each source has its proportion, to within a sample.

    A source is gone through again and again, over the ends of epochs too, in another order each time: none of its samples comes a third time before all came
    a second time.
    """

    def __init__(self, lengths: Sequence[int], proportions: Sequence[float], *, samples: int | None, seed: int, shuffle: bool) -> None:
        if len(lengths) != len(proportions) or min(lengths, default=0) < 1 or min(proportions, default=-1.0) < 0 or sum(proportions) <= 0:
            raise UserError(
                f"mix={list(proportions)} for sources of {list(lengths)} samples: expected one number of 0 or more for each, one above 0 at least, "
                "and no source without samples."
            )
        self._lengths, self._shuffle, self.seed = tuple(lengths), shuffle, seed
        self.length = sum(lengths)
        self.samples = self.length if samples is None else samples
        self.identity = f"mixed {list(lengths)} as {list(proportions)}"
        self._counts = _rounded(self.samples, proportions)

    def of(self, epoch: int) -> Any:
        import torch

        drawn, due = [], []
        for source, count in enumerate(self._counts):
            drawn.append(self._drawn(source, epoch * count, count) + sum(self._lengths[:source]))
            due.append((torch.arange(count, dtype=torch.float64) + 0.5) / max(1, count))
        return torch.cat(drawn)[torch.cat(due).argsort(stable=True)]

    def _drawn(self, source: int, first: int, count: int) -> Any:
        """Samples [first, first + count) of the endless order of a source."""
        import torch

        length = self._lengths[source]
        rounds = range(first // length, -(-(first + count) // length))
        orders = [torch.randperm(length, generator=generator_of(self.seed, one, source)) if self._shuffle else torch.arange(length) for one in rounds]
        if not orders:
            return torch.arange(0)
        return torch.cat(orders)[first - rounds[0] * length :][:count]


def _rounded(samples: int, proportions: Sequence[float]) -> list[int]:
    """Whole numbers in these proportions that add up to `samples`: who lost most by rounding down is given what is left."""
    exact = [samples * one / sum(proportions) for one in proportions]
    counts = [int(one) for one in exact]
    by_loss = sorted(range(len(exact)), key=lambda source: (counts[source] - exact[source], source))
    for source in by_loss[: samples - sum(counts)]:
        counts[source] += 1
    return counts
