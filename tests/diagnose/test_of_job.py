"""One of our own jobs: the journal decides, and the logs say more."""

from __future__ import annotations

from dataclasses import replace

import histories
import pytest

from holdfast.control.shipped_text_model import shipped_text_model
from holdfast.diagnose.causes import diagnose
from holdfast.diagnose.of_job import beside_of, by_journal
from holdfast.diagnose.reading import read
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.job import Outcome
from holdfast.domain.log_diagnosis import LogDiagnosis
from holdfast.domain.state import State

STEPS = "".join(f"step {number} loss: {3 - number / 100:.3f}\n" for number in range(60))
MISLEADING = f'{STEPS}Traceback (most recent call last):\n  File "a.py", line 2, in f\n    x\nRuntimeError: Error(s) in loading state_dict for Net\n'


def judged(state: State, log: str = STEPS, *, runs: bool = False) -> LogDiagnosis:
    said = diagnose(read([("rank-0.log", [log.encode()])]), model=shipped_text_model(), beside=beside_of(state))
    return by_journal(said, state, job="demo", runs=runs)


@pytest.mark.parametrize("log", ["", STEPS, MISLEADING], ids=["empty", "calm", "misleading"])
def test_a_finished_job_is_healthy_and_says_so(log: str) -> None:
    one = judged(histories.calm().state, log)
    assert one.cause == "healthy"
    assert one.because == "The job finished: every rank ran to its end."


def test_a_finished_job_names_what_stopped_it_on_the_way() -> None:
    story = histories.History().submit().up().train(30).killed(2).train(30).hangs(1).train(30).finish()
    one = judged(story.state)
    assert one.cause == "healthy"
    assert one.because.endswith("2 incidents stopped it on the way: killed once, hang once.")


def test_a_job_that_hung_again_and_again_is_not_healthy_although_it_finished() -> None:
    story = histories.History().submit().up()
    for _ in range(4):
        story.train(20).hangs(1)
    one = judged(story.train(20).finish().state)
    assert one.cause == "hang"
    assert one.because.startswith("The job finished: every rank ran to its end. 4 incidents stopped it on the way: hang 4 times.")
    assert "stopped by a signal" in one.evidence[0].text


@pytest.mark.parametrize("log", ["", "loading the model\n", STEPS], ids=["empty", "silent", "calm"])
def test_a_job_that_ended_on_what_the_journal_names_is_never_unknown_or_healthy(log: str) -> None:
    story = histories.History().submit().up().train(30)
    state = story.hangs(1).state
    state.outcome, state.because = Outcome.FAILED, "hang came 11 times in a row without progress"
    one = judged(state, log)
    assert (one.cause, one.permanence) == ("hang", "unclear")
    assert one.confidence > 0.5
    assert "stopped by a signal" in one.because


def test_a_job_that_failed_for_good_is_permanent_with_the_words_of_its_journal() -> None:
    state = histories.failed().state
    assert state.outcome is Outcome.PERMANENT
    one = judged(state, f"{STEPS}{histories.TRACEBACK}")
    assert one.permanence == "permanent"
    assert "batch <3> has 0 rows" in one.because
    assert one.evidence[0].path.startswith("incident ")


def test_what_the_end_of_a_worker_said_outweighs_words_that_are_like_another_class() -> None:
    story = histories.History(nodes=1).submit()
    story.answer()
    refused = Exit(
        rank=0, pid=1, kind=ExitKind.EXCEPTION, code=1, exception="holdfast.errors.UserError", because="rank 0 raised holdfast.errors.UserError: ema is an EMA",
        never_passes="config_error", step=-1,
    )  # fmt: skip
    state = story.exits(refused).answer().state
    assert state.outcome is Outcome.PERMANENT
    one = judged(state, MISLEADING)
    assert (one.cause, one.permanence) == ("config_error", "permanent")
    assert "UserError" in one.because


def test_a_job_that_was_stopped_did_not_fail() -> None:
    one = judged(histories.stopped().state)
    assert one.cause == "user_cancelled"
    assert "stopped as it was asked to" in one.because
    assert "holdfast resume demo" in one.action


def test_a_job_that_runs_and_one_whose_launcher_is_gone_are_told_apart() -> None:
    state = histories.History().submit().up().train(30).state
    runs = judged(state, runs=True)
    assert runs.cause == "healthy"
    assert "The job runs" in runs.because
    gone = judged(state)
    assert (gone.cause, gone.permanence) == ("unknown", "unclear")
    assert "launcher of the job is gone" in gone.because


def test_the_answer_of_the_logs_is_kept_where_the_journal_has_no_incident() -> None:
    state = histories.calm().state
    state.outcome = Outcome.BROKEN
    said = judged(state, MISLEADING)
    assert said.cause == "checkpoint_mismatch"


def test_secrets_in_the_words_of_a_journal_are_masked() -> None:
    token = "hf_" + "a1B2" * 9
    state = histories.failed().state
    last = state.incidents[-1]
    told = replace(last.diagnoses[-1], because=f"rank 3 raised OSError: no access with {token}")
    state.incidents[-1] = replace(last, diagnoses=(*last.diagnoses[:-1], told))
    one = judged(state)
    assert token not in f"{one.because} {one.evidence}"
