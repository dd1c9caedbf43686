"""Each sample is used once per epoch, whatever stops and resumes there are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

import holdfast
from holdfast.checkpoint.errors import CheckpointMismatch
from holdfast.errors import UserError
from holdfast.trainer.feed import Feed


def use(sampler: holdfast.Sampler, batches: int) -> list[int]:
    """What a rank gets when it uses that many batches and is stopped then."""
    used: list[int] = []
    for _, batch in zip(range(batches), sampler, strict=False):
        used += batch
        sampler.advance()
    return used


@given(length=st.integers(1, 200), share=st.integers(1, 9), seed=st.integers(0, 99), epoch=st.integers(0, 5), data=st.data())
def test_each_sample_is_used_once_through_any_stops_and_any_world_sizes(length: int, share: int, seed: int, epoch: int, data: st.DataObject) -> None:
    batch_size = share * 12  # Divides by every world size below.
    world_sizes = [world for world in (1, 2, 3, 4) if length % batch_size == 0 or length % batch_size >= world]
    used: list[int] = []
    state = holdfast.Sampler(length, batch_size=batch_size, seed=seed).state_dict() | {"epoch": epoch}
    state["fingerprint"] = seek(holdfast.Sampler(length, batch_size=batch_size, seed=seed), epoch).state_dict()["fingerprint"]
    while state["position"] < length:
        world_size = data.draw(st.sampled_from(world_sizes), label="ranks")
        batches = data.draw(st.integers(1, 4), label="batches until the stop")
        ranks = [holdfast.Sampler(length, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size) for rank in range(world_size)]
        for rank in ranks:
            rank.load_state_dict(dict(state))
            used += use(rank, batches)
        assert len({str(rank.state_dict()) for rank in ranks}) == 1
        state = ranks[0].state_dict()
        whole = seek(holdfast.Sampler(length, batch_size=length, seed=seed), epoch)
        assert sorted(used) == sorted(next(iter(whole))[: state["position"]])
    assert sorted(used) == list(range(length))


def seek(sampler: holdfast.Sampler, epoch: int) -> holdfast.Sampler:
    sampler.set_epoch(epoch)
    return sampler


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    orders = {str(next(iter(seek(holdfast.Sampler(50, batch_size=50, seed=seed), epoch)))) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    assert next(iter(holdfast.Sampler(50, batch_size=50, seed=1))) == next(iter(holdfast.Sampler(range(50), batch_size=50, seed=1)))
    assert list(holdfast.Sampler(5, batch_size=2, shuffle=False)) == [[0, 1], [2, 3], [4]]
    assert list(holdfast.Sampler(5, batch_size=2, shuffle=False, drop_last=True)) == [[0, 1], [2, 3]]


@settings(max_examples=3)
@given(stop=st.integers(1, 7))
def test_batches_that_workers_fetched_ahead_are_not_counted(stop: int) -> None:
    used: list[int] = []
    state = holdfast.Sampler(50, batch_size=6).state_dict()
    while state["position"] < 50:
        sampler = holdfast.Sampler(50, batch_size=6)
        sampler.load_state_dict(state)
        loader = DataLoader(range(50), batch_sampler=sampler, num_workers=2, prefetch_factor=4)  # type: ignore[arg-type]
        for _, batch in zip(range(stop), loader, strict=False):
            used += batch.tolist()
            sampler.advance()
        state = sampler.state_dict()
    assert sorted(used) == list(range(50))


@pytest.mark.parametrize(
    ("other", "said"), [({"length": 51}, "length=50 and this script has length=51"), ({"seed": 1}, "seed=0"), ({"shuffle": False}, "shuffle=True")]
)
def test_a_position_in_another_order_is_refused(other: dict[str, int], said: str) -> None:
    options = {"length": 50, "seed": 0, "shuffle": True} | other
    length = int(options.pop("length"))
    with pytest.raises(CheckpointMismatch, match=said):
        holdfast.Sampler(length, batch_size=5, **options).load_state_dict(holdfast.Sampler(50, batch_size=5).state_dict())  # type: ignore[arg-type]


@given(
    length=st.integers(1, 99), batch_size=st.integers(1, 40), ranks=st.integers(1, 6), accumulate=st.integers(1, 3), most=st.integers(1, 20), drop=st.booleans()
)
def test_a_sampler_that_resizes_knows_how_many_batches_it_gives_and_gives_none_that_is_empty(
    length: int, batch_size: int, ranks: int, accumulate: int, most: int, drop: bool
) -> None:
    if drop and length < batch_size:
        return
    for rank in range(ranks):
        sampler = holdfast.Sampler(length, batch_size=batch_size, resize=True, drop_last=drop, rank=rank, world_size=ranks)
        sampler.accumulate, sampler.most = accumulate, most
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert all(1 <= len(batch) <= most for batch in batches)


def test_a_batch_that_cannot_be_shared_out_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="batch_size is 5 for 2 ranks: expected a multiple of 2"):
        holdfast.Sampler(50, batch_size=5, rank=0, world_size=2)
    with pytest.raises(UserError, match="leave 1 for the last batch of 2 ranks"):
        holdfast.Sampler(51, batch_size=10, rank=0, world_size=2)


def test_a_sampler_that_was_made_for_another_size_takes_its_new_place_with_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one made outside of a function that rejoins does; a rank and a size that were given stay."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    made, given = holdfast.Sampler(40, batch_size=10, resize=True), holdfast.Sampler(40, batch_size=10, rank=0, world_size=2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for sampler in (made, given):
        Feed(DataLoader(range(40), batch_sampler=sampler), first_epoch=0, last_epoch=1, accumulate=1, resumes_itself=False)
    assert [(one.rank, one.world_size) for one in (made, given)] == [(1, 2), (0, 2)]
    monkeypatch.setenv("WORLD_SIZE", "3")
    uneven = holdfast.Sampler(40, batch_size=12, drop_last=True)
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(UserError, match="12 for 5 ranks"):
        Feed(DataLoader(range(40), batch_sampler=uneven), first_epoch=0, last_epoch=1, accumulate=1, resumes_itself=False)


def test_how_many_ranks_a_sampler_of_torchs_was_made_for_is_known() -> None:
    shared = DataLoader(range(40), batch_size=4, sampler=DistributedSampler(range(40), num_replicas=3, rank=0))  # type: ignore[var-annotated, arg-type]
    for loader, ranks in ((shared, 3), (DataLoader(range(40), batch_size=4), None)):  # type: ignore[arg-type]
        assert Feed(loader, first_epoch=0, last_epoch=1, accumulate=1, resumes_itself=False).shares_among == ranks
