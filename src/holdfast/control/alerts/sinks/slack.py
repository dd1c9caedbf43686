"""Slack: an incoming webhook, and whatever speaks the same (Mattermost, Rocket.Chat, Discord's /slack). The address itself is the secret."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.control.alerts.answer import Answer, Verdict
from holdfast.control.alerts.notification import Notification
from holdfast.control.alerts.posting import post
from holdfast.control.alerts.secret import Secret, SecretMissing
from holdfast.control.alerts.sinks.webhook import link_to
from holdfast.domain.alert import Alert
from holdfast.domain.finding import Severity

_SHOWN = 10  # Of the alerts of one message.
_COLOURS = {Severity.INFO: "#439fe0", Severity.WARNING: "warning", Severity.CRITICAL: "danger"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    kind: ClassVar[str] = "slack"
    resend_s: ClassVar[float | None] = None

    name: str
    url: Secret
    link: str = ""
    ca_file: str = ""
    timeout_s: float = 10.0
    send_resolved: bool = True

    @property
    def secrets(self) -> tuple[Secret, ...]:
        return (self.url,)

    def send(self, notification: Notification, now: float) -> Answer:
        try:
            url = self.url.read()
        except SecretMissing as error:
            return Answer(verdict=Verdict.LATER, said=str(error))
        body = json.dumps(_body(notification, self.link), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json; charset=utf-8"}
        return post(url, body, headers, timeout_s=self.timeout_s, ca_file=self.ca_file, secrets=(url,), secret=True)


def _body(notification: Notification, link: str) -> dict[str, Any]:
    more = len(notification.alerts) - _SHOWN
    attachments = [_attachment(alert, link) for alert in notification.alerts[:_SHOWN]]
    if more > 0:
        attachments.append({"fallback": f"and {more} more", "text": f"… and {more} more: `holdfast incidents {_escaped(notification.job)}`"})
    return {"text": f"*{_escaped(notification.title)}*", "attachments": attachments}


def _attachment(alert: Alert, link: str) -> dict[str, Any]:
    evidence = "".join(f"\n• {_escaped(line)}" for line in alert.evidence if line != alert.summary)
    shown = {name: value for name, value in alert.labels.items() if name not in ("job", "incident", "kind")}
    where = f"`holdfast incidents {_escaped(alert.job)} {alert.incident}`" if alert.incident else f"`holdfast show {_escaped(alert.job)}`"
    return {
        "color": _COLOURS[alert.severity] if alert.fires else "good", "fallback": _escaped(alert.summary), "mrkdwn_in": ["text"],
        "title": _escaped(f"{alert.status}: {alert.kind}"), **({"title_link": link_to(alert, link)} if link else {}),
        "text": f"{_escaped(alert.summary)}{evidence}\n{where}", "ts": int(alert.starts_at),
        "fields": [{"title": name, "value": _escaped(value), "short": True} for name, value in sorted(shown.items())],
    }  # fmt: skip


def _escaped(text: str) -> str:
    """The three characters that mean something; so nobody is called by <!channel> in a log line."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
