"""The newest checkpoint of a job and the steps that are in none, in a sentence."""

from __future__ import annotations

import pytest

from holdfast.cli.newest import Newest


@pytest.mark.parametrize(
    ("step", "reached", "said"),
    [
        (40, 2000, "the newest checkpoint is step 40; steps 41 to 2,000 are in no checkpoint"),
        (40, 41, "the newest checkpoint is step 40; step 41 is in no checkpoint"),
        (2000, 2000, "the newest checkpoint is step 2,000"),
        (-1, 300, "nothing is saved; steps 1 to 300 are in no checkpoint"),
    ],
)
def test_the_end_of_a_job_says_what_is_saved_and_what_is_not(step: int, reached: int, said: str) -> None:
    newest = Newest(step=step, reached=reached, ended=True)
    assert str(newest) == said
    unsaved = newest.as_json()["steps_in_no_checkpoint"]
    assert unsaved == (None if step == reached else [max(step, 0) + 1, reached])


def test_a_job_that_runs_will_save_the_rest() -> None:
    assert str(Newest(step=40, reached=55, ended=False)) == "the newest checkpoint is step 40"
