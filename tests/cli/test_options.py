"""Options of `holdfast run`: what a spelling means. What is refused is in test_bad_input.py."""

from __future__ import annotations

import pytest

from holdfast.cli.options import checkpoint_every
from holdfast.domain.job import SaveEvery
from holdfast.errors import UserError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", None),
        ("auto", SaveEvery()),
        ("0", SaveEvery(steps=0)),
        ("458", SaveEvery(steps=458)),
        ("30s", SaveEvery(seconds=30.0)),
        ("1.5m", SaveEvery(seconds=90.0)),
        ("5min", SaveEvery(seconds=300.0)),
        ("2h", SaveEvery(seconds=7200.0)),
        ("250ms", SaveEvery(seconds=0.25)),
    ],
)
def test_an_interval_is_a_number_of_steps_a_time_or_what_is_best(text: str, meant: SaveEvery | None) -> None:
    assert checkpoint_every(text) == meant


@pytest.mark.parametrize("text", ["often", "2.5", "-5", "0s", "-3m", "nans", "infs", "1e3s", "5 m", "10S", "s", "autos", "0x10"])
def test_what_is_none_of_these_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"^--checkpoint-every "):
        checkpoint_every(text)
