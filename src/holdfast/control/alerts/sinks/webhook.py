"""Webhook: JSON to an address of your own, signed.

    Holdfast-Timestamp   seconds since the epoch, when it was sent
    Holdfast-Signature   v1=HMAC-SHA256(key, timestamp + "." + body), in hexadecimal
    Idempotency-Key      the same however often the notification is sent

docs/alerts.md shows how to verify it. A 2xx says that it arrived; 408, 425, 429 and 5xx are tried again; every other answer is final.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from holdfast.control.alerts.answer import Answer, Verdict
from holdfast.control.alerts.notification import Notification
from holdfast.control.alerts.posting import post
from holdfast.control.alerts.secret import Secret, SecretMissing
from holdfast.domain.alert import Alert


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    kind: ClassVar[str] = "webhook"
    resend_s: ClassVar[float | None] = None

    name: str
    url: Secret
    key: Secret
    link: str = ""
    ca_file: str = ""
    timeout_s: float = 10.0
    send_resolved: bool = True

    @property
    def secrets(self) -> tuple[Secret, ...]:
        return (self.url, self.key)

    def send(self, notification: Notification, now: float) -> Answer:
        try:
            url, key = self.url.read(), self.key.read()
        except SecretMissing as error:
            return Answer(verdict=Verdict.LATER, said=str(error))
        body = json.dumps(body_of(notification, self.link), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": notification.id, **signed(key, body, now)}
        return post(url, body, headers, timeout_s=self.timeout_s, ca_file=self.ca_file, secrets=(url, key))


def signed(key: str, body: bytes, now: float) -> Mapping[str, str]:
    timestamp = str(int(now))
    digest = hmac.new(key.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"Holdfast-Timestamp": timestamp, "Holdfast-Signature": f"v1={digest}"}


def body_of(notification: Notification, link: str = "") -> dict[str, Any]:
    """The JSON of a notification."""
    return {
        "version": 1, "id": notification.id, "job": notification.job, "status": "firing" if notification.firing else "resolved",
        "severity": notification.severity.value, "title": notification.title, "route": notification.route, "group": notification.group_labels,
        "test": notification.test, "repeat": notification.repeat, "alerts": [_alert(alert, link) for alert in notification.alerts],
    }  # fmt: skip


def _alert(alert: Alert, link: str) -> dict[str, Any]:
    return {
        "id": alert.id, "fingerprint": alert.fingerprint, "incident": alert.incident, "status": alert.status.value, "severity": alert.severity.value,
        "kind": alert.kind, "summary": alert.summary, "evidence": list(alert.evidence), "labels": alert.labels, "given_up": alert.given_up,
        "starts_at": rfc3339(alert.starts_at), "ends_at": rfc3339(alert.ends_at) if alert.ends_at is not None else None, "link": link_to(alert, link),
    }  # fmt: skip


def link_to(alert: Alert, link: str) -> str:
    """Where a person reads on; empty when nobody said where that is."""
    return link.replace("{job}", alert.job).replace("{incident}", str(alert.incident))


def rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
