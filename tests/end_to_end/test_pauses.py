"""Pauses that end by themselves are left alone, and what cannot end is found: real ranks that evaluate, sleep, wait for data, or for each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from end_to_end.jobs import Job

from holdfast.domain.plan import Rung

SCRIPT = Path(__file__).parent / "scripts" / "pauses.py"


def pausing(state: Path, what: str, seconds: float, *options: object) -> Job:
    (state / what).mkdir()
    return Job(state, what, script=SCRIPT, options=["--nproc", 2, *options], arguments=[state / what, what, seconds], torch=True)


def result(state: Path, what: str) -> str:
    return (state / what / "result").read_text()


@pytest.mark.timeout(240)
def test_an_evaluation_on_one_rank_and_late_data_are_told_and_waited_for(state: Path) -> None:
    with pausing(state, "evaluate", 30.0) as evaluating, pausing(state, "late", 30.0) as late:
        for job, kind, place in ((evaluating, "pause", "pauses.py:evaluate"), (late, "late_data", "pauses.py:__iter__")):
            ended = job.finished(200.0)
            (finding,) = [finding for incident in ended.incidents for finding in incident.findings if finding.kind in ("pause", "late_data", "silent_rank")]
            assert (finding.kind, finding.ranks) == (kind, (0,))
            assert place in finding.place
            assert not any(incident.plans for incident in ended.incidents), "nothing was done about it"
            ((known, lasted_s),) = ended.pauses.items()
            assert place in known
            assert 20.0 < lasted_s < 60.0
    assert [result(state, what) for what in ("evaluate", "late")] == ["300 1", "300 1"]


@pytest.mark.timeout(240)
def test_ranks_that_wait_for_each_other_are_found_by_themselves_and_one_that_sleeps_by_the_limit_that_was_set(state: Path) -> None:
    with pausing(state, "unequal", 0.0) as unequal, pausing(state, "asleep", 3600.0, "--hang-limit", "12s") as asleep:
        for job in (unequal, asleep):
            ended = job.finished(200.0)
            (incident,) = ended.incidents
            assert [plan.rung for plan in incident.plans] == [Rung.RESPAWN]
            assert incident.diagnoses[0].cause == "hang"
    assert asleep.incidents()[0].diagnoses[0].ranks == (0,)
    assert "its limit is 12 s" in asleep.incidents()[0].diagnoses[0].because
    waited = unequal.incidents()[0].findings[0]
    assert waited.because.startswith("every rank waits in a collective")
    assert 8.0 <= waited.lasted_s < 10.0
    assert [result(state, what) for what in ("unequal", "asleep")] == ["300 2", "300 2"]
