"""Steps: what `run.steps` returns, an iterator that has a length, so that a progress bar can show 5/1000."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Steps(Generic[Item]):
    """Step numbers or batches. The length is that of the whole run, those that are done already included."""

    def __init__(self, items: Iterator[Item], length: Callable[[], int]) -> None:
        self._items, self._length = items, length

    def __iter__(self) -> Iterator[Item]:
        return self._items  # The generator itself: a `for` loop asks it without us in between, and lets it go when it is left.

    def __next__(self) -> Item:
        return next(self._items)

    def __len__(self) -> int:
        """Raises TypeError for a loader without a length, as that loader does."""
        return self._length()
