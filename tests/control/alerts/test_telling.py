"""Incidents into alerts."""

from __future__ import annotations

from dataclasses import replace

from control.alerts.given import closed, diagnosed, incident

from holdfast.control.alerts.telling import Seen, alerts_of
from holdfast.detect.rules.rule import Condition, Rule, Term
from holdfast.domain.alert import Alert
from holdfast.domain.finding import Severity
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import Outcome

RULE = Rule(name="DiskNearlyFull", conditions=(Condition(term=Term(metric="disk_free_bytes")),), labels={"team": "storage"}, route="storage")


def told(*incidents: Incident, outcome: Outcome | None = None, because: str = "", untold: bool = False) -> list[Alert]:
    seen = Seen(at=300.0, incidents=incidents, outcome=outcome, because=because, end_untold=untold)
    return alerts_of(seen, "train", "i", {RULE.kind: RULE})


def test_an_open_incident_fires_with_what_a_stranger_needs() -> None:
    alert, end = told(diagnosed(incident(7, kind="worker_exited", severity=Severity.CRITICAL)))
    assert alert.id == "train/7"
    assert alert.fires
    assert alert.starts_at == 100.0
    assert alert.ends_at is None
    assert alert.summary == "rank 3 was killed by SIGKILL"
    assert "seen twice" in alert.evidence
    assert alert.labels == {"job": "train", "incident": "7", "kind": "worker_exited", "severity": "critical", "node": "node-0", "rank": "3", "cause": "killed"}
    assert not end.fires


def test_a_rule_puts_its_labels_and_its_route_on_it() -> None:
    alert, _ = told(incident(1, kind="rule:DiskNearlyFull", ranks=()))
    assert alert.labels["team"] == "storage"
    assert alert.labels["route"] == "storage"
    assert alert.labels["stands"] == "true"
    assert "rank" not in alert.labels


def test_a_closed_one_is_over_and_what_the_job_ended_on_is_not() -> None:
    over, gave_up = closed(incident(1)), closed(incident(2), to=IncidentPhase.GAVE_UP)
    first, second, end = told(over, gave_up, outcome=Outcome.FAILED, because="the budget is used up")
    assert (first.fires, first.ends_at) == (False, 200.0)
    assert second.fires
    assert second.given_up
    assert second.severity is Severity.CRITICAL
    assert "the budget is used up" in second.summary
    assert not end.fires
    assert [one.fires for one in told(gave_up)[:1]] == [False], "the job runs again"
    assert [one.fires for one in told(gave_up, outcome=Outcome.STOPPED)[:1]] == [False], "somebody wanted it so"


def test_an_end_that_no_incident_tells_of_is_an_alert_of_its_own() -> None:
    (end,) = told(outcome=Outcome.BROKEN, because="2 nodes are needed, 1 is usable", untold=True)
    assert end.fires
    assert end.id == "train/end"
    assert "2 nodes are needed" in end.summary


def test_sentences_may_change_without_news_and_labels_may_not() -> None:
    plain = incident(1)
    other = replace(plain, findings=(replace(plain.findings[0], because="3.2 s a step"),))
    assert told(plain)[0].version == told(other)[0].version != told(diagnosed(plain))[0].version
    assert told(plain)[0].version != told(closed(plain))[0].version
    assert told(plain)[0].fingerprint == told(closed(plain))[0].fingerprint != told(incident(2))[0].fingerprint


def test_what_a_job_says_is_one_clean_line_of_some_length() -> None:
    noisy = replace(incident(1), findings=(replace(incident(1).findings[0], because="a\x1b[31m\nb" + "x" * 9999, ranks=tuple(range(100))),))
    alert = told(noisy)[0]
    assert alert.summary.startswith("a [31m b")
    assert len(alert.summary) == 500
    assert alert.labels["rank"] == "several"
