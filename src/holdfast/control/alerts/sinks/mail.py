"""E-mail over SMTP: plain text, and the same as simple HTML. STARTTLS unless said otherwise, certificates verified.

4xx of the server are tried again; 5xx are final. Of several recipients some may be refused: the others have it, so it is not sent again.
"""

from __future__ import annotations

import contextlib
import email.utils
import html
import smtplib
import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from enum import StrEnum
from typing import ClassVar

from holdfast.control.alerts.answer import Answer, Verdict
from holdfast.control.alerts.notification import Notification
from holdfast.control.alerts.secret import Secret, SecretMissing, redacted
from holdfast.control.alerts.sinks.webhook import link_to, rfc3339
from holdfast.domain.alert import Alert

_SHOWN = 50  # Of the alerts of one message.


class Tls(StrEnum):
    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


PORTS = {Tls.STARTTLS: 587, Tls.TLS: 465, Tls.NONE: 25}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    kind: ClassVar[str] = "email"
    resend_s: ClassVar[float | None] = None

    name: str
    host: str
    port: int
    sender: str
    to: tuple[str, ...]
    tls: Tls = Tls.STARTTLS
    user: str = ""
    password: Secret | None = None
    link: str = ""
    ca_file: str = ""
    timeout_s: float = 20.0
    send_resolved: bool = True

    @property
    def secrets(self) -> tuple[Secret, ...]:
        return (self.password,) if self.password is not None else ()

    def send(self, notification: Notification, now: float) -> Answer:
        where = f"{self.host}:{self.port}"
        try:
            password = self.password.read() if self.password is not None else ""
        except SecretMissing as error:
            return Answer(verdict=Verdict.LATER, said=str(error))
        try:
            refused = self._deliver(self._message(notification, now), password)
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            verdict = Verdict.LATER if any(code < 500 for code in codes) else Verdict.REFUSED
            return Answer(verdict=verdict, said=f"{where} took no recipient: {', '.join(map(str, sorted(set(codes))))}")
        except smtplib.SMTPNotSupportedError as error:
            return Answer(verdict=Verdict.REFUSED, said=f"{where}: {error}")
        except smtplib.SMTPResponseException as error:
            said = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else str(error.smtp_error)
            verdict = Verdict.REFUSED if error.smtp_code >= 500 else Verdict.LATER
            return Answer(verdict=verdict, said=redacted(f"{where} answered {error.smtp_code}: {' '.join(said.split())[:200]}", (password,)))
        except ssl.SSLCertVerificationError as error:
            return Answer(verdict=Verdict.LATER, said=f"{where} has a certificate that is not trusted: {error.verify_message}")
        except (OSError, smtplib.SMTPException) as error:
            why = "did not answer in time" if isinstance(error, TimeoutError) else f"cannot be used: {getattr(error, 'strerror', None) or type(error).__name__}"
            return Answer(verdict=Verdict.LATER, said=f"{where} {why}")
        left_out = f"; it refused {', '.join(sorted(refused))}" if refused else ""
        return Answer(verdict=Verdict.DELIVERED, said=f"{where} took it{left_out}")

    def _deliver(self, message: EmailMessage, password: str) -> set[str]:
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.tls is Tls.TLS:
            server: smtplib.SMTP = smtplib.SMTP_SSL(self.host, self.port, timeout=self.timeout_s, context=context)
        else:
            server = smtplib.SMTP(self.host, self.port, timeout=self.timeout_s)
        try:
            if self.tls is Tls.STARTTLS:
                server.starttls(context=context)
            if self.user:
                server.login(self.user, password)
            refused = set(server.send_message(message))
            with contextlib.suppress(OSError, smtplib.SMTPException):  # It has taken the message; how it says goodbye changes nothing.
                server.quit()
            return refused
        finally:
            server.close()

    def _message(self, notification: Notification, now: float) -> EmailMessage:
        message = EmailMessage()
        message["Subject"] = notification.title
        message["From"], message["To"] = self.sender, ", ".join(self.to)
        message["Date"] = email.utils.formatdate(now)
        message["Message-ID"] = f"<{notification.id}@holdfast.invalid>"  # The same however often it is sent: mail programs show it once.
        message["Auto-Submitted"] = "auto-generated"
        shown, more = notification.alerts[:_SHOWN], len(notification.alerts) - _SHOWN
        rest = [f"… and {more} more: holdfast incidents {notification.job}"] if more > 0 else []
        message.set_content("\n\n".join([*("\n".join(self._lines(alert)) for alert in shown), *rest]) + "\n")
        parts = "".join(f"<h3>{html.escape(first)}</h3><ul>{''.join(f'<li>{html.escape(line)}</li>' for line in others)}</ul>"
                        for first, *others in (self._lines(alert) for alert in shown))  # fmt: skip
        message.add_alternative(f"<html><body>{parts}{''.join(f'<p>{html.escape(line)}</p>' for line in rest)}</body></html>", subtype="html")
        return message

    def _lines(self, alert: Alert) -> list[str]:
        link = link_to(alert, self.link)
        until = f", over at {rfc3339(alert.ends_at)}" if alert.ends_at is not None else ""
        where = f"holdfast incidents {alert.job} {alert.incident}" if alert.incident else f"holdfast show {alert.job}"
        return [
            f"{alert.status}: {alert.kind} ({alert.severity})", alert.summary, f"since {rfc3339(alert.starts_at)}{until}",
            "labels: " + ", ".join(f"{name}={value}" for name, value in sorted(alert.labels.items())),
            *(line for line in alert.evidence if line != alert.summary), where, *([link] if link else []),
        ]  # fmt: skip
