"""However a step is cut up: its samples stay the same, every rank agrees, no rank has too many at once, and the weights make it one mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.trainer.shares import Cutter

STEPS = st.fixed_dictionaries({"samples": st.integers(1, 300), "ranks": st.integers(1, 9), "most": st.integers(1, 40), "batch_size": st.integers(1, 300)})


def cutters(ranks: int, most: int, batch_size: int) -> list[Cutter]:
    found = [Cutter(batch_size=batch_size, resize=True, rank=rank, world_size=ranks) for rank in range(ranks)]
    for one in found:
        one.most = most
    return found


@given(STEPS)
def test_a_step_is_shared_out_whole_and_evenly_and_nobody_has_too_much(step: dict[str, int]) -> None:
    samples = step.pop("samples")
    cut = [one.cut(samples) for one in cutters(**step)]
    assert len({len(shares) for shares in cut}) == 1
    given = []
    for batch in zip(*cut, strict=True):
        assert len({(share.samples, share.ends_step, share.batches) for share in batch}) == 1
        assert [share.begin for share in batch] == [0, *(share.end for share in batch[:-1])]
        assert batch[-1].end == batch[0].samples
        sizes = [share.end - share.begin for share in batch]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= step["most"]
        given.append(sum(sizes))
    assert sum(given) == samples
    assert [share.ends_step for share in cut[0]] == [False] * (len(cut[0]) - 1) + [True]


@given(STEPS, st.data())
def test_weighted_means_of_shares_add_up_to_the_mean_of_the_step(step: dict[str, int], data: st.DataObject) -> None:
    samples = step.pop("samples")
    losses = data.draw(st.lists(st.floats(-10, 10), min_size=samples, max_size=samples))
    of_ranks = []
    for one in cutters(**step):
        first, total = 0, 0.0
        for share in one.cut(samples):
            own = losses[first + share.begin : first + share.end] or losses[:1]
            total += share.weight * sum(own) / len(own)
            first += share.samples
        of_ranks.append(total)
    assert sum(of_ranks) / len(of_ranks) == pytest.approx(sum(losses) / samples, abs=1e-9)


def test_without_leave_to_resize_batches_are_as_the_script_says() -> None:
    plain = Cutter(batch_size=12, resize=False, rank=1, world_size=3)
    plain.accumulate = 2
    assert plain.sizes(plain.samples_per_step) == [12, 12]
    assert plain.sizes(17) == [12, 5]
    resizing = Cutter(batch_size=12, resize=True, rank=1, world_size=3)
    resizing.accumulate = 2
    assert resizing.sizes(24) == [12, 12], "where nothing has changed, nothing is cut otherwise"
