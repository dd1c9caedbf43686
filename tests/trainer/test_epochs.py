"""How many epochs are done: whole ones, and the part of the one under way where the loader has a length."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.trainer.feed import Feed


class Endless:
    """A loader that does not know how long it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_the_part_of_an_epoch_counts_and_a_whole_one_is_one() -> None:
    feed: Feed[int] = Feed(list(range(4)), first_epoch=0, last_epoch=2, accumulate=1, resumes_itself=False)
    done = []
    for _ in feed:
        feed.use()
        done.append(feed.epochs_done)
    assert done == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]


def test_without_a_length_only_whole_epochs_are_known() -> None:
    feed: Feed[int] = Feed(Endless(), first_epoch=0, last_epoch=2, accumulate=1, resumes_itself=False)
    done = []
    for _ in feed:
        feed.use()
        done.append(feed.epochs_done)
    assert done == pytest.approx([0.0] * 4 + [1.0] * 4)
