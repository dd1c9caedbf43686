"""Beyond its time: a job goes on with an incident that says so, unless it was asked to stop there; then it saves, leaves and can be resumed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core.teller import Teller

from holdfast.domain.event import FindingMade
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.job import JobPhase, Limits, Outcome

OVER = Finding(kind="over_time", of="job", because="the job was allowed 12 h and has been run for 12 h", severity=Severity.WARNING)


def running(limits: Limits) -> Teller:
    teller = Teller()
    for command in ("submit nodes=2", "hear n1 n2", "up", "progress 3"):
        teller.play(command)
    assert teller.core.state.spec is not None
    teller.core.state.spec = replace(teller.core.state.spec, limits=limits)
    teller.said = []
    return teller


def found(teller: Teller, finding: Finding) -> Teller:
    teller.take(FindingMade(at=teller.at, generation=1, finding=replace(finding, since=teller.at)))
    return teller


def test_by_default_it_is_an_incident_and_the_job_goes_on() -> None:
    teller = found(running(Limits(job_s=1.0)), OVER)
    assert teller.said == []
    assert teller.core.state.phase is JobPhase.RUNNING
    (incident,) = teller.core.state.incidents
    assert incident.stands
    assert incident.is_open


def test_where_it_was_asked_for_the_job_is_stopped_with_all_the_time_to_save_and_exits_with_124() -> None:
    teller = found(running(Limits(job_s=1.0, stop=True)), OVER)
    assert [line for line in teller.said if line.startswith("StopGang")] == ["StopGang g1 on n1, graceful, 30 s", "StopGang g1 on n2, graceful, 30 s"]
    for command in ("exit 0 code code=143 ours", "done StopGang n1", "exit 1 code code=143 ours", "done StopGang n2"):
        teller.play(command)
    state = teller.core.state
    assert (state.outcome, state.code) == (Outcome.STOPPED, 124)
    assert state.because == f"its time is over: {OVER.because}"
    assert [incident.is_open for incident in state.incidents] == [False]


def test_what_is_only_foreseen_stops_nothing() -> None:
    teller = found(running(Limits(job_s=1.0, stop=True)), replace(OVER, kind="over_time_soon"))
    assert teller.core.state.phase is JobPhase.RUNNING


def test_a_job_that_was_asked_to_stop_before_is_not_asked_again() -> None:
    teller = running(Limits(job_s=1.0, stop=True))
    teller.play("stop")
    found(teller, OVER)
    assert teller.core.state.stop is not None
    assert teller.core.state.stop.code == 130


@pytest.mark.parametrize("waits_for", ["a person", "a node"])
def test_a_job_whose_time_is_over_while_nobody_trains_waits_no_longer(waits_for: str) -> None:
    teller = Teller()
    for command in ("submit nodes=2 mode=ask" if waits_for == "a person" else "submit nodes=2", "hear n1 n2"):
        teller.play(command)
    assert teller.core.state.spec is not None
    teller.core.state.spec = replace(teller.core.state.spec, limits=Limits(job_s=30.0, stop=True))
    lost = ("silent n2", "done StopGang n1")
    broken = ("exit 1 exception code=1 exception=E step=3 print=a", "stopped")
    for command in ("up", "progress 3", *(broken if waits_for == "a person" else lost), "wait 29"):
        teller.play(command)
    assert teller.core.state.phase is JobPhase.WAITING
    teller.play("wait 1")
    state = teller.core.state
    assert (state.outcome, state.code) == (Outcome.STOPPED, 124)
    assert state.because.startswith("its time is over: the job was allowed 30 s, and nobody trains: ")


def test_a_wait_that_is_over_in_time_has_no_limit_any_more() -> None:
    teller = running(Limits(job_s=30.0, stop=True))
    for command in ("exit 1 exception code=1 exception=E step=3 print=a", "stopped", "up step-3:3", "wait 60"):
        teller.play(command)
    assert teller.core.state.phase is JobPhase.RUNNING
