"""Options of `holdfast run`: what a spelling means. What is refused is in test_bad_input.py."""

from __future__ import annotations

import pytest

from holdfast.cli.options import checkpoint_every, limited_anew, limits_of, target_of
from holdfast.domain.job import Limits, SaveEvery, Target
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


def limits(**said: str) -> Limits | None:
    return limits_of(**{"time_limit": "", "epoch_limit": "", "target": "", "within": "", "at_limit": "report", **said})


def test_limits_are_times_a_target_and_what_to_do_beyond_them() -> None:
    assert limits() is None
    assert limits(time_limit="12h") == Limits(job_s=43200.0)
    assert limits(time_limit="2d", at_limit="stop") == Limits(job_s=172800.0, stop=True)
    assert limits(epoch_limit="90m") == Limits(epoch_s=5400.0)
    assert limits(target="validation_loss<=0.5", within="6h") == Limits(target=Target(metric="validation_loss", value=0.5), target_s=21600.0)
    assert limits(target="accuracy >= 0.9") == Limits(target=Target(metric="accuracy_ratio", value=0.9, below=False))


@pytest.mark.parametrize(("name", "metric"), [("val_loss", "validation_loss"), ("bleu", "user_bleu"), ("user_bleu", "user_bleu"), ("loss", "loss")])
def test_a_target_may_be_called_as_the_script_reports_it(name: str, metric: str) -> None:
    assert target_of(f"{name}<=1").metric == metric


@pytest.mark.parametrize("text", ["loss", "loss<0.5", "loss<=", "loss<=nan", "<=3", "Loss<=3", "loss<=0.5 and more", "host_load<=3"])
def test_what_is_no_target_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match="loss"):
        target_of(text)


@pytest.mark.parametrize(
    "said",
    [{"time_limit": "12"}, {"time_limit": "0h"}, {"time_limit": "long"}, {"within": "6h"}, {"at_limit": "kill", "time_limit": "1h"}, {"at_limit": "stop"}],
)
def test_limits_that_mean_nothing_are_refused(said: dict[str, str]) -> None:
    with pytest.raises(UserError):
        limits(**said)


def test_a_job_that_is_resumed_may_be_given_more_time() -> None:
    before = Limits(job_s=3600.0, epoch_s=60.0, stop=True)
    assert limited_anew(before, "2h", None) == Limits(job_s=7200.0, epoch_s=60.0, stop=True)
    assert limited_anew(before, None, "report") == Limits(job_s=3600.0, epoch_s=60.0)
    assert limited_anew(Limits(job_s=3600.0), "", None) is None
    assert limited_anew(None, None, None) is None
    with pytest.raises(UserError, match="report"):
        limited_anew(before, None, "kill")
