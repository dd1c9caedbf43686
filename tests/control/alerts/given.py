"""Alerts, incidents, routes and notifications for tests, with few words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.control.alerts.matching import matcher
from holdfast.control.alerts.notification import Notification
from holdfast.control.alerts.routes import Inhibition, Outlet, Pace, Route, Routes, Silence
from holdfast.control.alerts.routing import Memory, Router
from holdfast.domain.alert import Alert, AlertStatus
from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.incident import Incident, IncidentPhase

QUICK = Pace(group_wait_s=10.0, group_interval_s=60.0, repeat_interval_s=600.0)


def alert(number: int = 1, *, kind: str = "slow_rank", severity: Severity = Severity.WARNING, at: float = 100.0, job: str = "train", **labels: str) -> Alert:
    given = {"job": job, "incident": str(number), "kind": kind, "severity": severity.value, **labels}
    return Alert(
        fingerprint=f"f{number}", job=job, incident=number, status=AlertStatus.FIRING, severity=severity, kind=kind, summary=f"{kind} of {number}",
        evidence=("rank 3 takes 2.1 s a step, the others 1.0 s",), starts_at=at, labels=given,
    )  # fmt: skip


def over(one: Alert, at: float = 200.0) -> Alert:
    return replace(one, status=AlertStatus.RESOLVED, ends_at=at)


def worse(one: Alert, severity: Severity = Severity.CRITICAL) -> Alert:
    return replace(one, severity=severity, labels={**one.labels, "severity": severity.value})


def route(name: str = "all", *match: str, to: tuple[str, ...] = ("chat",), pace: Pace = QUICK, go_on: bool = False) -> Route:
    return Route(name=name, to=to, match=tuple(map(matcher, match)), pace=pace, go_on=go_on)


def inhibit(when: str, mute: str, *equal: str) -> Inhibition:
    return Inhibition(when=(matcher(when),), mute=(matcher(mute),), equal=equal)


def silence(*match: str, until: float, id: int = 0) -> Silence:
    return Silence(match=tuple(map(matcher, match)), until=until, id=id)


def routes(*given: Route, outlets: dict[str, Outlet] | None = None, inhibitions: tuple[Inhibition, ...] = (), silences: tuple[Silence, ...] = ()) -> Routes:
    names = {name for one in given for name in one.to}
    return Routes(outlets={**{name: Outlet(name=name) for name in sorted(names)}, **(outlets or {})}, routes=given, inhibitions=inhibitions, silences=silences)


def router(*given: Route, memory: Memory | None = None, **more: Any) -> Router:
    return Router("train", routes(*given, **more), memory or Memory(instance="i"))


def notification(*alerts: Alert, sink: str = "chat", id: str = "i-1", group: str = "g", at: float = 100.0, **more: Any) -> Notification:
    return Notification(id=id, job="train", sink=sink, route="all", group=group, at=at, alerts=alerts or (alert(),), **more)


def incident(number: int = 1, *, kind: str = "slow_rank", severity: Severity = Severity.WARNING, ranks: tuple[int, ...] = (3,)) -> Incident:
    finding = Finding(kind=kind, because=f"{kind} it is", node="node-0", ranks=ranks, since=100.0, severity=severity, evidence=("seen twice",))
    return Incident(id=number, generation=1, opened_at=101.0, began_at=100.0, findings=(finding,), stands=not finding.breaks)


def closed(one: Incident, at: float = 200.0, to: IncidentPhase = IncidentPhase.RESOLVED) -> Incident:
    return one.move(to, at=at, because="as told")


def diagnosed(one: Incident) -> Incident:
    diagnosis = Diagnosis(cause=Cause.KILLED, permanent=False, confidence=0.9, because="rank 3 was killed by SIGKILL", ranks=(3,), node="node-0")
    return replace(one, diagnoses=(diagnosis,))
