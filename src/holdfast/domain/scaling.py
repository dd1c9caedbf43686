"""Scaling: what a gang that is smaller than asked for does otherwise, where a user prefers that to the global batch being kept (`--smaller-batch`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import assert_never


class SmallerBatch(StrEnum):
    """A smaller gang makes its steps of fewer samples, as many a rank as before, and the learning rate follows."""

    LINEAR = "linear"  # Half the batch, half the rate: as for plain gradient descent.
    SQRT = "sqrt"  # Half the batch, 0.71 of the rate: as for Adam and its kin.


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    batch: float = 1.0  # A step is made of so many times the samples,
    rate: float = 1.0  # and the learning rate is so many times what the script says.

    def __str__(self) -> str:
        return "as the script says" if self == Scaling() else f"batch times {self.batch:.3g}, learning rate times {self.rate:.3g}"

    def environment(self) -> dict[str, str]:
        """How a worker hears of it; told in any case, since who lives on has heard another."""
        return {"HOLDFAST_BATCH_TIMES": repr(self.batch), "HOLDFAST_RATE_TIMES": repr(self.rate)}


def scaling(rule: SmallerBatch | None, nodes: int, whole: int) -> Scaling:
    """For a gang of so many nodes, of a job that asked for `whole`."""
    share = nodes / whole
    match rule:
        case None:
            return Scaling()
        case SmallerBatch.LINEAR:
            return Scaling(batch=share, rate=share)
        case SmallerBatch.SQRT:
            return Scaling(batch=share, rate=sqrt(share))
        case _:
            assert_never(rule)
