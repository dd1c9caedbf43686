"""What a smaller gang does with its batch and its learning rate, where it is not to keep the batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.scaling import Scaling, SmallerBatch, scaling


@given(rule=st.sampled_from([None, *SmallerBatch]), nodes=st.integers(1, 10_000))
def test_a_whole_gang_trains_exactly_as_the_script_says(rule: SmallerBatch | None, nodes: int) -> None:
    assert scaling(rule, nodes, nodes) == Scaling()


def test_the_rate_follows_the_batch_as_the_rule_says() -> None:
    assert scaling(None, 3, 4) == Scaling(), "as it comes the batch is kept, and so is the rate"
    assert scaling(SmallerBatch.LINEAR, 3, 4) == Scaling(batch=0.75, rate=0.75)
    assert scaling(SmallerBatch.SQRT, 1, 4) == Scaling(batch=0.25, rate=0.5)
    assert str(scaling(SmallerBatch.SQRT, 1, 2)) == "batch times 0.5, learning rate times 0.707"


def test_a_worker_is_told_in_any_case_since_one_that_lives_on_has_heard_another() -> None:
    assert Scaling().environment().keys() == Scaling(batch=0.5, rate=0.5).environment().keys()
    assert float(scaling(SmallerBatch.SQRT, 2, 3).environment()["HOLDFAST_RATE_TIMES"]) == pytest.approx((2 / 3) ** 0.5, rel=0, abs=0)
