"""The losses of a run by step, in a file that somebody compares afterwards: `holdfast bisect`. Rank 0 writes it; on a GPU not every step is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from holdfast.trainer.place import Place

Told = Callable[[str, float, int], None]


class Curve:
    def __init__(self, file: TextIO) -> None:
        self._file = file

    def beside(self, told: Told) -> Told:
        """The same, and the losses are written down."""

        def both(name: str, value: float, step: int) -> None:
            told(name, value, step)
            if name == "loss":
                print(step, value, file=self._file, flush=True)

        return both


def open_curve(place: Place) -> Curve | None:
    return Curve(place.curve.open("w")) if place.curve is not None and place.rank == 0 else None
