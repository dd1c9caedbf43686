"""Orders depend on seed and epoch alone, and have in them what they promise."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, TensorDataset

import holdfast
from holdfast.errors import UserError
from holdfast.trainer.order import Mixed, Weighted


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4), seed=st.integers(0, 9), samples=st.integers(1, 150), data=st.data())
def test_a_mix_has_its_proportions_in_every_stretch_and_goes_through_each_source_evenly(
    lengths: list[int], seed: int, samples: int, data: st.DataObject
) -> None:
    proportions = data.draw(st.lists(st.floats(0.05, 1.0), min_size=len(lengths), max_size=len(lengths)))
    mixed = Mixed(lengths, proportions, samples=samples, seed=seed, shuffle=True)
    firsts = [sum(lengths[:source]) for source in range(len(lengths))]
    counted: Counter[int] = Counter()
    for epoch in range(3):
        order = mixed.of(epoch).tolist()
        assert len(order) == samples
        counted.update(order)
        sources = [max(source for source, first in enumerate(firsts) if first <= index) for index in order]
        for source, proportion in enumerate(proportions):
            wanted = proportion / sum(proportions)
            for length in range(1, samples + 1):
                assert abs(sources[:length].count(source) - wanted * length) <= len(lengths) + 1
    for source, first in enumerate(firsts):
        times = [counted[index] for index in range(first, first + lengths[source])]
        assert max(times) - min(times) <= 1, "none comes again before all came"


def test_weights_are_kept_with_and_without_replacement() -> None:
    weights = torch.tensor([0.0, 1.0, 2.0, 7.0])
    drawn = Counter(Weighted(weights, samples=20000, replacement=True, seed=1).of(0).tolist())
    assert drawn[0] == 0
    assert [drawn[index] / 20000 for index in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.7], abs=0.02)
    firsts: Counter[int] = Counter()
    for epoch in range(4000):
        order = Weighted(weights, samples=3, replacement=False, seed=1).of(epoch).tolist()
        assert sorted(order) == [1, 2, 3]
        firsts[order[0]] += 1
    assert [firsts[index] / 4000 for index in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.7], abs=0.03)


def test_another_order_is_refused_for_a_saved_place() -> None:
    saved = holdfast.Sampler(4, batch_size=2, weights=[1, 2, 3, 4]).state_dict()
    holdfast.Sampler(4, batch_size=2, weights=[1, 2, 3, 4]).load_state_dict(saved)
    with pytest.raises(Exception, match="was saved with order=weighted"):
        holdfast.Sampler(4, batch_size=2, weights=[1, 2, 3, 5]).load_state_dict(saved)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": [1, 2, 3]}, "3 weights for 4 samples"),
        ({"weights": [1, 0, 0, -1]}, "0 or more"),
        ({"weights": [1, 0, 0, 1], "replacement": False}, "2 of 4 have a weight above 0"),
        ({"mix": [1, 1]}, "needs a torch.utils.data.ConcatDataset"),
        ({"samples": 3}, "an epoch is every sample once"),
        ({"weights": [1, 1, 1, 1], "mix": [1]}, "expected one of the two"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        holdfast.Sampler(4, batch_size=2, **options)  # type: ignore[arg-type]


def test_sources_are_mixed_by_their_place_in_a_concatenation() -> None:
    sources = ConcatDataset([TensorDataset(torch.arange(10)), TensorDataset(torch.arange(30))])
    sampler = holdfast.Sampler(sources, batch_size=8, mix=[0.5, 0.5], samples=32)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 4
    assert [sum(index < 10 for index in batch) for batch in batches] == [4, 4, 4, 4]
    with pytest.raises(UserError, match="expected one number"):
        holdfast.Sampler(sources, batch_size=8, mix=[1.0])
