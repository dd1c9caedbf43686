"""Sinks: where notifications go. One file each; each is a frozen value with its settings and one method that sends.

A sink judges nothing but the answer it got: when to try again, and when to give up, is decided in `delivery`.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.control.alerts.answer import Answer
from holdfast.control.alerts.notification import Notification
from holdfast.control.alerts.secret import Secret


class Sink(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def send_resolved(self) -> bool: ...

    @property
    def resend_s(self) -> float | None: ...  # None: it is told as routes say. Else it is told all that fires this often, and does the rest itself.

    @property
    def secrets(self) -> tuple[Secret, ...]: ...

    def send(self, notification: Notification, now: float) -> Answer:
        """Blocks, within limits; never raises for what the world does."""
        ...
