"""A leak is told from memory that was never enough, and from what comes and goes."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.detect.growth import Growth, Leak

MB = 1_000_000


def grown(held: list[float], *, every: int = 1) -> Growth:
    growth = Growth()
    for look, value in enumerate(held):
        growth.look(1 + look * every, int(value))
    return growth


@pytest.mark.parametrize("looks", [12, 64, 65, 500, 20_000])
@pytest.mark.parametrize("every", [1, 25])
def test_a_leak_is_told_with_its_rate_however_long_it_took(looks: int, every: int) -> None:
    leak = grown([200 * MB + look * every * 5 * MB for look in range(looks)], every=every).leak()
    assert isinstance(leak, Leak)
    assert leak.rate == pytest.approx(5 * MB)
    assert leak.now == 200 * MB + (looks - 1) * every * 5 * MB, "the newest look counts, whatever is kept"
    assert str(leak).startswith("memory grew by 5 MB a step over ")


def test_what_does_not_fit_at_once_is_no_leak() -> None:
    assert grown([900 * MB] * 200).leak() is None
    assert grown([900 * MB] * 200 + [1500 * MB]).leak() is None, "one long sample at the end"
    assert grown([900 * MB] * 3 + [1500 * MB]).leak() is None
    assert grown([]).leak() is None


@pytest.mark.parametrize("seed", range(20))
def test_what_wanders_comes_and_goes_or_fills_up_is_no_leak(seed: int) -> None:
    dice = np.random.default_rng(seed)
    assert grown(list(900 * MB + 100 * MB * dice.standard_normal(400))).leak() is None
    assert grown([500 * MB + (look % 50) * 10 * MB for look in range(400)]).leak() is None
    assert grown([900 * MB - 600 * MB * 0.99**look for look in range(600)]).leak() is None


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_is_seen_through_what_a_step_takes_and_gives_back(seed: int) -> None:
    dice = np.random.default_rng(seed)
    leak = grown([500 * MB + look * 5 * MB + 100 * MB * dice.random() for look in range(200)]).leak()
    assert leak is not None
    assert leak.rate == pytest.approx(5 * MB, rel=0.2)


def test_a_look_without_a_new_step_says_nothing() -> None:
    growth = Growth()
    for look in range(100):
        growth.look(3, 500 * MB + look * MB)
    assert growth.leak() is None
