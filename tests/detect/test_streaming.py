"""Every detector over time: what it says after some looks is what it would say had there been no more."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.detect.blocks import Blocks, leaning, noise
from holdfast.detect.flapping import Flapping
from holdfast.detect.gap import Gap
from holdfast.detect.hopelessly_slow import HopelesslySlow
from holdfast.detect.over_time import OverTime, Spent
from holdfast.detect.plateau import Plateau
from holdfast.domain.finding import Finding
from holdfast.domain.job import Limits

LOOKS = 900
ODD = Finding(kind="slow_disk", node="a", because="slow")


def _plateau(one: Plateau, look: int) -> None:
    one.look(0.9 + np.exp(-look / 10) + 0.02 * np.sin(look * look), 1e-3, nan, float(look))


def _gap(one: Gap, look: int) -> None:
    one.look(1 / (1 + look), 1.0 + abs(look // 10 - 20) / 10, float(look))


def _over_time(one: OverTime, look: int) -> None:
    one.look(Spent(elapsed_s=float(look), progress=look / 5000, epoch=look / 400), float(look))


def _hopeless(one: HopelesslySlow, look: int) -> None:
    one.look(0.1 if look < 400 else 2.0, {"data": 0.01}, elapsed_s=float(look), needs_s=look + 1e5, now=float(look))


def _flapping(one: Flapping, look: int) -> None:
    one.look({ODD.key: ODD} if look // 30 % 2 else {}, float(look))


MADE: list[tuple[Callable[[], Any], Callable[[Any, int], None]]] = [
    (lambda: Plateau(history=100), _plateau), (Gap, _gap), (lambda: OverTime(limits=Limits(job_s=600.0, epoch_s=300.0)), _over_time),
    (lambda: HopelesslySlow(lasts_s=100.0, history=100), _hopeless), (Flapping, _flapping),
]  # fmt: skip


@pytest.mark.parametrize(("make", "look"), MADE, ids=["plateau", "gap", "over_time", "hopelessly_slow", "flapping"])
@settings(max_examples=8)
@given(cut=st.integers(1, LOOKS))
def test_what_comes_later_changes_nothing_of_what_was_said(make: Callable[[], Any], look: Callable[[Any, int], None], cut: int) -> None:
    whole, prefix = make(), make()
    said = []
    for number in range(LOOKS):
        look(whole, number)
        said.append(list(whole.standing))
    for number in range(cut):
        look(prefix, number)
    assert prefix.standing == said[cut - 1]
    assert any(said), "what is never said proves nothing"


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=600))
def test_blocks_keep_the_mean_of_all_that_is_in_them(values: list[float]) -> None:
    blocks = Blocks(1, size=16)
    for value in values:
        blocks.take((value,))
    kept = values[: len(blocks) * blocks.per]
    assert len(blocks) < 16
    assert len(values) - len(kept) < blocks.per
    assert np.allclose(blocks.rows[:, 0], np.array(kept).reshape(len(blocks), blocks.per).mean(axis=1) if kept else [], atol=1e-6)


def test_leaning_knows_up_from_down_and_neither() -> None:
    assert leaning(np.arange(20.0)) > 5
    assert leaning(-np.arange(20.0)) < -5
    assert abs(leaning(np.array([1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0]))) < 1


def test_noise_is_not_hidden_by_a_trend() -> None:
    dice = np.random.default_rng(1)
    assert noise(100.0 * np.arange(500) + dice.standard_normal(500)) == pytest.approx(1.0, rel=0.2)
