"""Each sample once an epoch, the same samples in each step and the same order, through any failures, shrinks, grows and cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

import holdfast
from holdfast.checkpoint.errors import CheckpointMismatch
from holdfast.domain.treatment import Treatment, Window, joined, next_draw, windows_of
from holdfast.errors import UserError
from holdfast.trainer.feed import Feed

LENGTH, EPOCHS = 53, 2
Life = tuple[int, int | None, int, int]  # Ranks, room, steps, and how many of those are lost.


class Lines(IterableDataset[int]):
    """A stream in another order each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter(torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.epoch)).tolist())


def mapped(rank: int, ranks: int, workers: int = 0) -> Any:
    sampler = holdfast.Sampler(LENGTH, batch_size=8, seed=2, resize=True, rank=rank, world_size=ranks)
    options = {"persistent_workers": True, "prefetch_factor": 3} if workers else {}
    return DataLoader(range(LENGTH), batch_sampler=sampler, num_workers=workers, **options)  # type: ignore[arg-type]


def streamed(rank: int, ranks: int, workers: int = 0) -> Any:
    stream = holdfast.Stream(Lines(), batch_size=8, resize=True, rank=rank, world_size=ranks)
    return DataLoader(stream, batch_size=None, num_workers=workers, persistent_workers=bool(workers))


def play(
    loader: Any, progress: dict[str, Any] | None, most: int | None, steps: int, left_out: tuple[Window, ...] = ()
) -> tuple[list[list[int]], dict[str, Any] | None]:
    """The samples of each of up to so many steps of one rank, and the place after them; None at the end."""
    feed: Feed[torch.Tensor] = Feed(loader, first_epoch=0, last_epoch=EPOCHS, accumulate=2, resumes_itself=False, most=most, left_out=left_out)
    if progress is not None:
        feed.resume(progress, {})
    done: list[list[int]] = [[]]
    for batch in feed:
        assert most is None or len(batch) <= most
        done[-1] += batch.tolist() if feed.weight else []
        feed.use()
        if feed.boundary:
            if len(done) == steps:
                return done, feed.progress()
            done.append([])
    return done[:-1], None


def through(make: Callable[..., Any], lives: list[Life], left_out: tuple[Window, ...] = ()) -> list[list[int]]:
    """The samples of every step, when the run goes through these lives before one that comes to the end."""
    progress: dict[str, Any] | None = None
    kept: list[list[int]] = []
    for ranks, most, steps, lost in [*lives, (2, None, 1000, 0)]:
        saved = max(0, steps - lost)
        for count in (steps, saved) if lost else (steps,):  # What was lost was used, and is used again: the place is that of the save.
            if count == 0:
                continue
            played = [play(make(rank, ranks), progress, most, count, left_out) for rank in range(ranks)]
            assert len({len(done) for done, _ in played}) == 1
        if saved == 0:
            continue
        kept += [sorted(sample for done, _ in played for sample in done[step]) for step in range(len(played[0][0]))]
        progress = played[0][1]
        if progress is None:
            return kept
    return kept


LIVES = st.lists(st.tuples(st.integers(1, 5), st.none() | st.integers(1, 5), st.integers(1, 3), st.integers(0, 3)), max_size=4)


@pytest.mark.parametrize("make", [mapped, streamed])
@settings(max_examples=25, deadline=None)
@given(lives=LIVES)
def test_every_step_has_the_samples_it_would_have_had_and_an_epoch_has_each_once(make: Callable[..., Any], lives: list[Life]) -> None:
    kept = through(make, lives)
    assert kept == through(make, [])
    per_epoch = -(-LENGTH // 16)
    for epoch in range(EPOCHS):
        assert sorted(sample for step in kept[epoch * per_epoch : (epoch + 1) * per_epoch] for sample in step) == list(range(LENGTH))


@pytest.mark.parametrize("make", [mapped, streamed])
@settings(max_examples=25, deadline=None)
@given(lives=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=4))
def test_where_a_smaller_gang_has_a_smaller_batch_each_rank_has_as_much_as_before_and_an_epoch_has_each_once(
    make: Callable[..., Any], lives: list[tuple[int, int]]
) -> None:
    progress: dict[str, Any] | None = None
    kept: list[tuple[int, list[int]]] = []
    with pytest.MonkeyPatch.context() as patch:
        for ranks, steps in [*lives, (4, 1000)]:
            patch.setenv("HOLDFAST_BATCH_TIMES", repr(ranks / 4))
            played = [play(make(rank, ranks), progress, 2, steps) for rank in range(ranks)]
            kept += [(ranks, [sample for done, _ in played for sample in done[step]]) for step in range(len(played[0][0]))]
            progress = played[0][1]
            if progress is None:
                break
    used = [sample for _, step in kept for sample in step]
    assert [sorted(used[epoch * LENGTH : (epoch + 1) * LENGTH]) for epoch in range(EPOCHS)] == [list(range(LENGTH))] * EPOCHS
    position = 0
    for ranks, step in kept:
        assert len(step) == min(4 * ranks, LENGTH - position % LENGTH)
        position += len(step)


def test_workers_that_live_through_a_change_of_the_gang_hear_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (mapped, streamed):
        loader = make(0, 1, workers=2)
        monkeypatch.setenv("HOLDFAST_BATCH_TIMES", "1.0")
        first, place = play(loader, None, None, 1)
        monkeypatch.setenv("HOLDFAST_BATCH_TIMES", "0.5")
        second, place = play(loader, place, None, 2)
        monkeypatch.setenv("HOLDFAST_BATCH_TIMES", "1.0")
        third, _ = play(loader, place, None, 1)
        assert [len(step) for step in (*first, *second, *third)] == [16, 8, 8, 16]
        assert len({sample for step in (*first, *second, *third) for sample in step}) == 48


WINDOWS = st.sets(st.integers(0, 9), max_size=6).map(lambda draws: joined([Window(first=one, last=one) for one in draws]))


@pytest.mark.parametrize("make", [mapped, streamed])
@settings(max_examples=25, deadline=None)
@given(lives=LIVES, left_out=WINDOWS)
def test_what_is_left_out_is_those_steps_and_all_others_are_as_they_were(make: Callable[..., Any], lives: list[Life], left_out: tuple[Window, ...]) -> None:
    kept = through(make, lives, left_out)
    assert kept == [step for draw, step in enumerate(through(make, [])) if next_draw(left_out, draw) == draw]


@pytest.mark.parametrize("make", [mapped, streamed])
def test_workers_that_run_ahead_leave_out_the_same(make: Callable[..., Any]) -> None:
    left_out = (Window(first=1, last=1), Window(first=3, last=5))
    loader = make(0, 1, workers=2)
    first, place = play(loader, None, 2, 2, left_out)
    rest, _ = play(make(0, 1, workers=2), place, 3, 1000, left_out)
    assert [sorted(step) for step in [*first, *rest]] == [step for draw, step in enumerate(through(make, [])) if draw in (0, 2, 6, 7)]


@pytest.mark.parametrize("length", [True, False])
def test_of_an_ordinary_loader_what_is_left_out_is_fetched_and_dropped(length: bool) -> None:
    loader: Any = list(range(5)) if length else iter(range(6))
    feed: Feed[int] = Feed(loader, first_epoch=0, last_epoch=1, accumulate=2, resumes_itself=False, left_out=(Window(first=1, last=1),))
    used = []
    for batch in feed:
        used.append(batch)
        feed.use()
    assert used == ([0, 1, 4] if length else [0, 1, 4, 5])
    assert feed.draw == 3


@given(left_out=WINDOWS, step=st.integers(0, 12))
def test_a_step_is_made_of_the_draw_that_comes_after_so_many_steps(left_out: tuple[Window, ...], step: int) -> None:
    treatment = Treatment(left_out=left_out)
    used = [draw for draw in range(40) if next_draw(left_out, draw) == draw]
    assert treatment.draw_of(step) == used[step]
    assert treatment.step_of(used[step]) == step
    assert windows_of(treatment.environment().get("HOLDFAST_LEAVE_OUT", "")) == left_out


@pytest.mark.parametrize("make", [mapped, streamed])
def test_workers_that_run_ahead_and_live_through_epochs_change_nothing(make: Callable[..., Any]) -> None:
    whole = through(make, [])
    loader = make(0, 1, workers=2)
    first, place = play(loader, None, 2, 5)
    assert place is not None
    rest, _ = play(make(0, 1, workers=2), place, 3, 1000)
    assert [sorted(step) for step in [*first, *rest]] == whole


def test_what_a_rank_is_given_at_once_stays_what_it_was_when_the_run_began() -> None:
    _, place = play(mapped(0, 4), None, None, 1)
    assert place is not None
    feed: Feed[Any] = Feed(mapped(0, 1), first_epoch=0, last_epoch=1, accumulate=2, resumes_itself=False)
    feed.resume(place, {})
    assert feed.micro_batch == 2, "8 samples of 4 ranks are 2 of each"
    assert next(iter(feed)).tolist()
    assert feed.accumulate == 8


def test_weights_of_an_ordinary_loader_count_the_batches_of_the_step() -> None:
    feed: Feed[int] = Feed([1, 2, 3, 4, 5], first_epoch=0, last_epoch=1, accumulate=2, resumes_itself=False)
    weights = []
    for _ in feed:
        weights.append((feed.weight, feed.boundary))
        feed.use()
    assert weights == [(0.5, False), (0.5, True), (0.5, False), (0.5, True), (1.0, True)]


def test_a_loop_over_other_data_is_not_taken_for_the_one_that_was_stopped() -> None:
    _, place = play(mapped(0, 1), None, None, 5)
    assert place is not None
    assert place["epoch"] == 1
    other = DataLoader(range(7), batch_sampler=holdfast.Sampler(7, batch_size=2))  # type: ignore[arg-type]
    feed: Feed[Any] = Feed(other, first_epoch=0, last_epoch=1, accumulate=1, resumes_itself=False)
    feed.resume(place, {})
    assert list(feed) == []
    with pytest.raises(UserError, match="its Sampler keeps the place"):
        Feed(other, first_epoch=0, last_epoch=1, accumulate=1, resumes_itself=True)


def test_epochs_are_counted_by_samples() -> None:
    feed: Feed[Any] = Feed(mapped(0, 1), first_epoch=0, last_epoch=2, accumulate=2, resumes_itself=False)
    done = []
    for _ in feed:
        feed.use()
        done.append(round(feed.epochs_done * LENGTH))
    assert done[-1] == 2 * LENGTH
    assert done == sorted(done)
    assert round(feed.epochs_done * LENGTH) == 2 * LENGTH


def test_a_stream_that_is_batched_twice_or_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(UserError, match="batch_size=None"):
        Feed(DataLoader(holdfast.Stream(Lines(), batch_size=8), batch_size=4), first_epoch=0, last_epoch=1, accumulate=1, resumes_itself=False)
    with pytest.raises(UserError, match="multiple of 3"):
        holdfast.Stream(Lines(), batch_size=8, rank=0, world_size=3)
    feed: Feed[Any] = Feed(
        DataLoader(holdfast.Stream(range(9), batch_size=8, rank=0, world_size=2), batch_size=None),
        first_epoch=0, last_epoch=1, accumulate=1, resumes_itself=False,
    )  # fmt: skip
    with pytest.raises(UserError, match="the last batch of the epoch has 1 samples for 2 ranks"):
        list(feed)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # By torchdata 0.11, of torch 2.13.
def test_a_stateful_loader_goes_on_where_it_was_and_is_refused_at_another_world_size() -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    loader = torchdata.StatefulDataLoader(range(LENGTH), batch_size=4, num_workers=2, shuffle=False)
    feed: Feed[torch.Tensor] = Feed(loader, first_epoch=0, last_epoch=1, accumulate=1, resumes_itself=True)
    used = []
    for batch, _ in zip(feed, range(3), strict=False):
        used += batch.tolist()
        feed.use()
        progress, state = feed.progress(), loader.state_dict()
    again = torchdata.StatefulDataLoader(range(LENGTH), batch_size=4, num_workers=2, shuffle=False)
    again.load_state_dict(state)
    resumed: Feed[torch.Tensor] = Feed(again, first_epoch=0, last_epoch=1, accumulate=1, resumes_itself=True)
    resumed.resume(progress, {})
    used += [sample for batch in resumed for sample in batch.tolist()]
    assert used == list(range(LENGTH))
    with pytest.raises(CheckpointMismatch, match="4 ranks saved and 2 go on: torchdata's StatefulDataLoader"):
        resumed.moved(4, 2)
