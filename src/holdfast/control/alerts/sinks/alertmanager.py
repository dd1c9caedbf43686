"""Alertmanager, version 2 of its API. It groups, silences and repeats by itself: it is told all that fires, again and again, and what is over once.

What is not told again ends by itself after four times `resend`; what the job ended on, of which nobody tells again, after a day. An alert is known there by its
labels, so when those change the alert with the old ones is ended.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.control.alerts.answer import Answer, Verdict
from holdfast.control.alerts.notification import Notification
from holdfast.control.alerts.posting import post
from holdfast.control.alerts.secret import Secret, SecretMissing
from holdfast.control.alerts.sinks.webhook import link_to, rfc3339
from holdfast.domain.alert import Alert

JOB_LABEL = "holdfast_job"  # As the rules exported for Prometheus have it, which has a label `job` of its own.
_PATH = "/api/v2/alerts"
_STANDS_FOR = 4  # Times `resend`, as Prometheus does: three may be lost.
_GIVEN_UP_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alertmanager:
    kind: ClassVar[str] = "alertmanager"

    name: str
    url: Secret
    user: str = ""
    password: Secret | None = None
    token: Secret | None = None
    link: str = ""
    ca_file: str = ""
    timeout_s: float = 10.0
    send_resolved: bool = True
    resend_s: float | None = 60.0

    @property
    def secrets(self) -> tuple[Secret, ...]:
        return tuple(one for one in (self.url, self.password, self.token) if one is not None)

    def send(self, notification: Notification, now: float) -> Answer:
        try:
            url, password, token = self.url.read(), self.password.read() if self.password else "", self.token.read() if self.token else ""
        except SecretMissing as error:
            return Answer(verdict=Verdict.LATER, said=str(error))
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        elif self.user:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{self.user}:{password}".encode()).decode()
        body = json.dumps(self._body(notification, now), ensure_ascii=False).encode()
        address = url.rstrip("/") if url.rstrip("/").endswith(_PATH) else url.rstrip("/") + _PATH
        known = bool(token or password)
        return post(address, body, headers, timeout_s=self.timeout_s, ca_file=self.ca_file, secrets=(token, password), secret=known)

    def _body(self, notification: Notification, now: float) -> list[dict[str, Any]]:
        told = [self._alert(alert, alert.labels, self._ends_at(alert, now)) for alert in notification.alerts]
        known = [labels_of(alert.kind, alert.labels) for alert in notification.alerts]
        for alert in notification.alerts:
            before = notification.before.get(alert.fingerprint)
            if before is not None and labels_of(before.get("kind", alert.kind), before) not in known:
                told.append(self._alert(alert, before, now))
        return told

    def _ends_at(self, alert: Alert, now: float) -> float:
        if not alert.fires:
            return min(alert.ends_at or now, now)
        return now + (_GIVEN_UP_S if alert.given_up else _STANDS_FOR * (self.resend_s or 60.0))

    def _alert(self, alert: Alert, labels: Mapping[str, str], ends_at: float) -> dict[str, Any]:
        annotations = {"summary": alert.summary, "description": "\n".join(alert.evidence), "incident": alert.id}
        link = {"generatorURL": link_to(alert, self.link)} if self.link else {}
        return {
            "labels": labels_of(labels.get("kind", alert.kind), labels), "annotations": {name: value for name, value in annotations.items() if value},
            "startsAt": rfc3339(min(alert.starts_at, ends_at)), "endsAt": rfc3339(ends_at), **link,
        }  # fmt: skip


def labels_of(kind: str, labels: Mapping[str, str]) -> dict[str, str]:
    """As Prometheus has them from our rules: a CamelCase `alertname`, and the job under a name that Prometheus leaves alone."""
    name = kind.removeprefix("rule:")
    alertname = "".join(word[:1].upper() + word[1:] for word in name.split("_"))
    kept = {name: value for name, value in labels.items() if name not in ("kind", "job")}
    return {"alertname": alertname, JOB_LABEL: labels.get("job", ""), **kept}
