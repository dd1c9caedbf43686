"""Figures: what is not known is not called anything else, and a run pays for its own incidents only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import History

from holdfast.domain.event import FindingEnded, FindingMade, GangRestored, JobResumed, ProgressSeen, Ticked, WorkerExited
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import IncidentPhase


def _killed(rank: int, step: int = -1) -> Exit:
    return Exit(rank=rank, pid=100 + rank, kind=ExitKind.SIGNAL, signal=9, because=f"rank {rank} was ended by SIGKILL", step=step)


def _later(history: History, seconds: float) -> History:
    history.at += seconds
    history.tell(Ticked(at=history.at))
    return history


def _without_our_lines() -> History:
    """Its ranks are up for 18 s, one is killed, and all are up again."""
    history = _later(History(spares=0).submit().answer(), 18.0)
    return history.exits(_killed(1)).answer()


def test_a_script_that_does_not_say_when_it_steps_is_not_called_productive() -> None:
    history = _later(History(spares=0).submit().answer(), 20.0)
    assert history.state.ledger.goodput is None
    assert Bucket.PRODUCTIVE not in history.state.ledger.totals()
    assert history.state.ledger.totals()[Bucket.UNKNOWN] == pytest.approx(20.0)
    history.finish()
    assert history.state.ledger.goodput is None, "also of one that ends within the time in which a beat is waited for"
    assert Bucket.RENDEZVOUS not in history.state.ledger.totals()


def test_after_a_restart_from_nothing_all_work_is_done_again_and_the_cost_is_not_known() -> None:
    history = _later(_without_our_lines(), 31.0)
    incident = history.state.incidents[0]
    assert (incident.phase, incident.from_nothing) == (IncidentPhase.RESOLVED, True)
    assert incident.closed_at is not None
    assert incident.closed_at - incident.began_at == pytest.approx(sum(incident.costs.values())), "it was over when the ranks were up, which was seen later"


def test_one_that_ends_before_it_is_known_not_to_beat_was_started_from_nothing_too() -> None:
    history = _later(_without_our_lines(), 4.5).finish()
    incident = history.state.incidents[0]
    assert incident.from_nothing
    assert Bucket.RENDEZVOUS not in incident.costs or incident.costs[Bucket.RENDEZVOUS] < 1.0, "the time it trained is no rendezvous"


def test_one_that_told_of_its_steps_and_is_slow_to_begin_again_has_a_cost() -> None:
    history = _later(History(spares=0).submit().up().train(10).exits(_killed(1, step=10)).answer(), 31.0)
    assert not history.state.incidents[0].from_nothing
    history.up().train(20)
    assert history.state.ledger.goodput is not None, "what was unknown for a while was the way to its first step"


def test_a_script_that_is_slow_to_its_first_step_has_a_long_start_and_no_unknown_time() -> None:
    history = _later(History(spares=0).submit().answer(), 40.0).up()
    assert history.state.ledger.totals()[Bucket.START] > 40.0
    assert Bucket.UNKNOWN not in history.state.ledger.totals()
    assert history.train(10).state.ledger.goodput is not None


def test_steps_that_were_done_again_before_anybody_looked_are_in_the_bill() -> None:
    history = History(spares=0).submit().up().train(30)
    history.exits(_killed(2, step=history.step)).answer()
    history.at += 2.0
    history.tell(GangRestored(at=history.at, generation=history.state.generation, step=20, done=12))
    history.tell(ProgressSeen(at=history.at, generation=history.state.generation, step=32, save_s=0.0))
    again_s = history.state.incidents[0].costs[Bucket.RECOMPUTE]
    assert again_s == pytest.approx(11 / history.steps_per_s, rel=0.2)
    assert history.state.ledger.open_bucket is Bucket.PRODUCTIVE


def test_what_a_resumed_job_does_again_is_not_put_down_to_the_incidents_of_the_run_before() -> None:
    history = History(spares=0).submit().up().train(50).killed(1).train(70).finish()
    before = history.state.incidents[0]
    assert history.state.spec is not None
    history.at += 60.0
    history.tell(JobResumed(at=history.at, spec=replace(history.state.spec, run="again")))
    history.heard().up().train(5)
    assert history.state.ledger.open_bucket is Bucket.RECOMPUTE
    assert history.state.incidents[0].costs == before.costs


def test_the_time_after_the_last_event_in_which_the_job_was_seen_was_not_down() -> None:
    history = _later(History(spares=0).submit().answer(), 31.0)
    seen_until = history.at + 3600.0
    assert history.state.spec is not None
    history.at += 4000.0
    history.tell(JobResumed(at=history.at, spec=replace(history.state.spec, run="again"), ran_until=seen_until))
    totals = history.state.ledger.totals()
    assert totals[Bucket.DOWN] == pytest.approx(400.0)
    assert totals[Bucket.UNKNOWN] == pytest.approx(3631.0)


def test_a_job_that_was_stopped_is_at_the_step_its_ranks_left_at() -> None:
    history = History(spares=0).submit().up().train(30)
    history.at += 9.0  # What was told last is that old.
    history.stop_asked()
    for rank in range(4):
        exit = Exit(rank=rank, pid=1, kind=ExitKind.CODE, code=83, because="left as asked", step=83 + rank, stopped_by_us=True)
        history.tell(WorkerExited(at=history.at, node=history.state.gang.nodes[rank // 2], generation=1, exit=exit))
    history.answer()
    assert history.state.step == 83


def _rule_says() -> Finding:
    return Finding(kind="rule:LossHigh", because="the loss is 0.69", severity=Severity.WARNING)


def _tell(history: History, finding: Finding) -> None:
    history.tell(FindingMade(at=history.at, generation=history.state.generation, finding=finding))


def test_a_condition_that_lasts_over_restarts_is_one_incident() -> None:
    history = History(spares=0).submit().up().train(30)
    _tell(history, _rule_says())
    for _ in range(3):
        history.killed(1).train(30)
    standing = [incident for incident in history.state.incidents if incident.stands]
    assert [(incident.id, incident.is_open) for incident in standing] == [(1, True)]
    history.tell(FindingEnded(at=history.at, generation=history.state.generation, key=_rule_says().key, because="the loss is 0.3"))
    _later(history, 31.0)
    assert not history.state.incidents[0].is_open


def test_what_was_seen_beside_one_gang_alone_is_over_with_it() -> None:
    history = History(spares=0).submit().up().train(30)
    _tell(history, Finding(kind="slow_job", because="steps take longer", severity=Severity.WARNING))
    history.killed(1)
    assert not history.state.incidents[0].is_open


def test_the_time_after_the_loop_is_not_productive() -> None:
    history = History(spares=0).submit().up().train(40)
    productive_s = history.state.ledger.totals()[Bucket.PRODUCTIVE]
    history.at += 90.0
    history.tell(ProgressSeen(at=history.at, generation=1, step=history.step, save_s=0.0, left_s=89.0))
    history.finish()
    totals = history.state.ledger.totals()
    assert totals[Bucket.END] >= 89.0
    assert totals[Bucket.PRODUCTIVE] <= productive_s + 1.5
