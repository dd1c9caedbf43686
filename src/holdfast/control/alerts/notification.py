"""A notification: one message to one sink, about the alerts of one group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from holdfast.domain.alert import Alert, rank_of
from holdfast.domain.finding import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    id: str  # The same however often it is sent: who gets it twice can tell.
    job: str
    sink: str
    route: str
    group: str
    at: float
    alerts: tuple[Alert, ...]  # What fires first, the worst of it first.
    group_labels: dict[str, str] = field(default_factory=dict)
    before: dict[str, dict[str, str]] = field(default_factory=dict)  # By fingerprint: the labels it was last told with, where they were others.
    repeat: bool = False  # Nothing in it is new.
    test: bool = False  # A person asked for it, to see whether it arrives.

    @property
    def firing(self) -> tuple[Alert, ...]:
        return tuple(alert for alert in self.alerts if alert.fires)

    @property
    def severity(self) -> Severity:
        return max((alert.severity for alert in self.firing or self.alerts), key=rank_of)

    @property
    def title(self) -> str:
        """One line: `[firing] train-7: slow_rank (warning), and 2 more`."""
        first, more = self.alerts[0], len(self.alerts) - 1
        state = "firing" if self.firing else "resolved"
        return f"[{'test, ' if self.test else ''}{state}] {self.job}: {first.kind} ({self.severity})" + (f", and {more} more" if more else "")


def sorted_alerts(alerts: Iterable[Alert]) -> tuple[Alert, ...]:
    return tuple(sorted(alerts, key=lambda alert: (not alert.fires, -rank_of(alert.severity), alert.starts_at, alert.fingerprint)))


def merged(waiting: Notification, newer: Notification) -> Notification:
    """The newer one in place of one that was not sent yet: every alert of both, each as it is now. So a dead sink has one message a group waiting."""
    alerts = {alert.fingerprint: alert for alert in (*waiting.alerts, *newer.alerts)}
    return replace(
        newer, alerts=sorted_alerts(alerts.values()), before={**newer.before, **waiting.before}, repeat=waiting.repeat and newer.repeat,
    )  # fmt: skip
