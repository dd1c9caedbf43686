"""Routing: which alerts are told to whom, and when. Pure: time is an argument, and what it remembers is plain data that survives control.

    alerts ─► muted? (silences, inhibition) ─► routes ─► one group a sink and labels ─► wait, interval, repeat ─► notifications

    news       an alert that a sink was never told of, or not as it is now
    wait       from the first news of a group to its first message: what belongs together comes within seconds
    interval   between two messages of a group when there is news; what became worse does not wait for it
    repeat     between two messages when there is none, and something still fires

A muted alert is told when it is muted no longer, if it fires then. What was told to fire is told to be over, muted or not. An alert reaches a sink by one
route, the first that names it. What began and ended before it could be told is told once, as over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.control.alerts.notification import Notification, sorted_alerts
from holdfast.control.alerts.routes import Outlet, Pace, Route, Routes, Silence
from holdfast.domain.alert import Alert, AlertStatus, rank_of
from holdfast.domain.finding import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a sink was last told of an alert."""

    version: str
    status: AlertStatus
    severity: Severity
    labels: dict[str, str]
    group: str


@dataclass(slots=True, kw_only=True)
class Group:
    route: str
    sink: str
    labels: dict[str, str]
    told_at: float | None = None
    waiting_since: float | None = None  # Since when there has been news.


@dataclass(slots=True, kw_only=True)
class Memory:
    """All that routing knows. Written beside what it decided to send, in one transaction."""

    instance: str  # Made up once for a job's directory: two jobs of one name elsewhere are not mixed up.
    known: int = 0  # Incidents up to this number were seen.
    count: int = 0  # Notifications made.
    alerts: dict[str, Alert] = field(default_factory=dict)  # By fingerprint: what fires, and what is over and not told everywhere.
    told: dict[str, dict[str, Told]] = field(default_factory=dict)  # By sink and fingerprint.
    groups: dict[str, Group] = field(default_factory=dict)
    muted: dict[str, str] = field(default_factory=dict)  # By fingerprint: why.


@dataclass(slots=True)
class _Members:
    """Of one group, at one look."""

    route: Route
    outlet: Outlet
    labels: dict[str, str]
    alerts: list[Alert] = field(default_factory=list)

    @property
    def pace(self) -> Pace:
        if self.outlet.resend_s is None:
            return self.route.pace
        return Pace(group_by=(), group_wait_s=0.0, group_interval_s=0.0, repeat_interval_s=self.outlet.resend_s)


class Router:
    def __init__(self, job: str, routes: Routes, memory: Memory) -> None:
        self._job, self._routes, self.memory = job, routes, memory
        self._by_name = {route.name: route for route in routes.routes}

    def take(self, alerts: Iterable[Alert]) -> None:
        """How alerts stand now. One that is left out stands as it did."""
        for alert in alerts:
            self.memory.known = max(self.memory.known, alert.incident)
            self.memory.alerts[alert.fingerprint] = replace(alert, labels={**self._routes.labels, **alert.labels})

    def look(self, now: float, silences: Sequence[Silence] = (), *, hurry: bool = False) -> list[Notification]:
        """What is to be sent now. In a `hurry` nothing waits: the job has ended, and nobody will ask again."""
        memory = self.memory
        memory.muted = self._muted(now, [*self._routes.silences, *silences])
        groups = self._gather(now)
        sent = [self._notify(key, members, now) for key, members in sorted(groups.items()) if self._is_due(key, members, now, hurry=hurry)]
        self._forget(groups, now)
        return sent

    # Who is in which group.

    def _gather(self, now: float) -> dict[str, _Members]:
        found: dict[str, _Members] = {}
        for alert in self.memory.alerts.values():
            reached = self._reached(alert)
            for sink, route in reached.items():
                told = self.memory.told.get(sink, {}).get(alert.fingerprint)
                if alert.fingerprint in self.memory.muted and (alert.fires or told is None):
                    continue
                self._join(found, route, self._routes.outlets[sink], alert)
            for sink, heard in self.memory.told.items():
                left = heard.get(alert.fingerprint)
                if sink not in reached and left is not None and left.status is AlertStatus.FIRING:
                    self._leave(found, sink, left, alert, now)
        return found

    def _reached(self, alert: Alert) -> dict[str, Route]:
        reached: dict[str, Route] = {}
        for route in self._routes.of(alert):
            for sink in route.to:
                reached.setdefault(sink, route)
        return reached

    def _leave(self, found: dict[str, _Members], sink: str, left: Told, alert: Alert, now: float) -> None:
        """It changed, and others are told now: for this sink it is over, in the group it was told in."""
        group = self.memory.groups.get(left.group)
        if group is None or sink not in self._routes.outlets or group.route not in self._by_name:
            del self.memory.told[sink][alert.fingerprint]  # The configuration is another one, and nobody is left to tell.
            return
        over = alert
        if alert.fires:
            summary = f"goes on as {alert.kind} ({alert.severity}), of which others are told now"
            over = replace(alert, status=AlertStatus.RESOLVED, ends_at=now, labels=left.labels, summary=summary)
        members = found.setdefault(left.group, _Members(self._by_name[group.route], self._routes.outlets[sink], group.labels))
        members.alerts.append(over)

    def _join(self, found: dict[str, _Members], route: Route, outlet: Outlet, alert: Alert) -> None:
        by = () if outlet.resend_s is not None else route.pace.group_by
        labels = {name: alert.labels.get(name, "") for name in by}
        key = _digest(route.name, outlet.name, labels)
        members = found.setdefault(key, _Members(route, outlet, labels))
        members.alerts.append(alert)

    # When a group is told.

    def _is_due(self, key: str, members: _Members, now: float, *, hurry: bool) -> bool:
        group = self.memory.groups.get(key)
        if group is None:
            group = self.memory.groups[key] = Group(route=members.route.name, sink=members.outlet.name, labels=members.labels)
        group.told_at = min(group.told_at, now) if group.told_at is not None else None  # A clock that was turned back must not silence a group.
        news, pace = self._news(members), members.pace
        if not news:
            group.waiting_since = None
            return group.told_at is not None and any(alert.fires for alert in members.alerts) and now - group.told_at >= pace.repeat_interval_s
        group.waiting_since = min(group.waiting_since, now) if group.waiting_since is not None else now
        if hurry or any(self._is_worse(members.outlet.name, alert) for alert in news):
            return True
        waited = now - group.waiting_since >= pace.group_wait_s
        return waited and (group.told_at is None or now - group.told_at >= pace.group_interval_s)

    def _news(self, members: _Members) -> list[Alert]:
        heard = self.memory.told.get(members.outlet.name, {})
        found = [alert for alert in members.alerts if alert.fingerprint not in heard or heard[alert.fingerprint].version != alert.version]
        if not members.outlet.send_resolved:
            found = [alert for alert in found if alert.fires or alert.fingerprint not in heard]
        return found

    def _is_worse(self, sink: str, alert: Alert) -> bool:
        told = self.memory.told.get(sink, {}).get(alert.fingerprint)
        return alert.fires and (alert.given_up or (told is not None and rank_of(alert.severity) > rank_of(told.severity)))

    def _notify(self, key: str, members: _Members, now: float) -> Notification:
        memory, sink, news = self.memory, members.outlet.name, self._news(members)
        heard = memory.told.setdefault(sink, {})
        alerts = sorted_alerts({alert.fingerprint: alert for alert in (*(alert for alert in members.alerts if alert.fires), *news)}.values())
        before = {alert.fingerprint: heard[alert.fingerprint].labels for alert in alerts
                  if alert.fingerprint in heard and heard[alert.fingerprint].labels != alert.labels}  # fmt: skip
        for alert in alerts:
            heard[alert.fingerprint] = Told(version=alert.version, status=alert.status, severity=alert.severity, labels=dict(alert.labels), group=key)
        group = memory.groups[key]
        group.told_at, group.waiting_since = now, None
        memory.count += 1
        return Notification(
            id=f"{memory.instance}-{memory.count}", job=self._job, sink=sink, route=members.route.name, group=key, group_labels=members.labels, at=now,
            alerts=alerts, before=before, repeat=not news,
        )  # fmt: skip

    def _forget(self, groups: Mapping[str, _Members], now: float) -> None:
        """What is over and told, or over and muted, is done with; so is a group in which nothing is and that need not keep an interval any more."""
        memory = self.memory
        awaited = {alert.fingerprint for members in groups.values() for alert in self._news(members)}
        for fingerprint in [one for one, alert in memory.alerts.items() if not alert.fires and one not in awaited]:
            del memory.alerts[fingerprint]
            for heard in memory.told.values():
                heard.pop(fingerprint, None)
        memory.told = {sink: heard for sink, heard in memory.told.items() if heard and sink in self._routes.outlets}
        used = {told.group for heard in memory.told.values() for told in heard.values()} | groups.keys()
        for key, group in list(memory.groups.items()):
            route = self._by_name.get(group.route)
            if key not in used and (route is None or group.told_at is None or now - group.told_at >= route.pace.group_interval_s):
                del memory.groups[key]

    # What is muted.

    def _muted(self, now: float, silences: Sequence[Silence]) -> dict[str, str]:
        alerts = list(self.memory.alerts.values())
        muted: dict[str, str] = {}
        for alert in alerts:
            silence = next((one for one in silences if one.mutes(alert, now)), None)
            if silence is not None:
                muted[alert.fingerprint] = f"silenced ({silence})"
        inhibited: set[str] = set()
        for rule in self._routes.inhibitions:
            # Only what no rule before this one mutes may mute: of those that would mute each other one is always told.
            sources = [alert for alert in alerts if alert.fires and alert.fingerprint not in inhibited]
            for alert in alerts:
                source = next((one for one in sources if rule.mutes(one, alert)), None)
                if source is not None:
                    inhibited.add(alert.fingerprint)
                    muted.setdefault(alert.fingerprint, f"muted while {source.id} ({source.kind}) fires")
        return muted


def _digest(route: str, sink: str, labels: Mapping[str, str]) -> str:
    return hashlib.blake2b(json.dumps([route, sink, sorted(labels.items())]).encode(), digest_size=8).hexdigest()
