"""Precursors: more of a sign is never better news, and what is said names the sign."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.learn.precursor_weights import WEIGHTS
from holdfast.learn.precursors import NAMES, SIGNS, features, fit, foretell

COUNTS = st.fixed_dictionaries({sign: st.floats(0.0, 1e6) for sign in SIGNS})


@given(COUNTS, COUNTS, st.sampled_from(SIGNS), st.floats(0.0, 1e6))
def test_more_of_a_sign_never_lowers_the_chance(last: dict[str, float], usual: dict[str, float], sign: str, more: float) -> None:
    before, after = foretell(last, usual), foretell({**last, sign: last[sign] + more}, usual)
    assert 0.0 <= before.chance <= after.chance + 1e-12 <= 1.0 + 1e-9


def test_there_is_a_weight_for_each_feature_and_none_is_good_news() -> None:
    assert len(WEIGHTS) == len(NAMES) == 2 * len(SIGNS)
    assert all(weight >= 0.0 for weight in WEIGHTS)


def test_what_speaks_for_a_failure_is_named() -> None:
    told = foretell({"corrected_errors": 400.0, "contained_xids": 2.0}, {"corrected_errors": 1.0})
    assert told.alarm
    assert "400 corrected memory errors in a day (usual: 1)" in told.says
    quiet = foretell({}, {})
    assert not quiet.alarm
    assert "no sign speaks for it" in quiet.says


def test_a_node_that_always_corrects_errors_is_not_sick_for_it() -> None:
    assert foretell({"corrected_errors": 100.0}, {"corrected_errors": 100.0}).chance < foretell({"corrected_errors": 100.0}, {}).chance


def test_what_is_missing_or_broken_counts_as_nothing() -> None:
    found = features(np.array([[np.nan, -3.0, 0.0, 0.0, 0.0]]), np.zeros((1, 5)))
    assert not found.any()


def test_the_fit_finds_the_sign_that_was_planted() -> None:
    dice = np.random.default_rng(0)
    found = dice.exponential(1.0, (4000, len(NAMES)))
    failed = (dice.random(4000) < 1.0 / (1.0 + np.exp(4.0 - 2.0 * found[:, 3]))).astype(float)
    bias, weights = fit(found, failed)
    assert weights[3] == pytest.approx(2.0, rel=0.2)
    assert np.delete(weights, 3).max() < 0.3
    assert bias == pytest.approx(-4.0, rel=0.2)
