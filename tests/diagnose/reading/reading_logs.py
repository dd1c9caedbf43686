"""Logs written in a test, and what was read in them."""

from __future__ import annotations

import textwrap

from holdfast.diagnose.reading import read
from holdfast.domain.log_event import LogDigest, LogEvent


def digest(text: str | bytes, path: str = "train.log") -> LogDigest:
    """Of one file; a text may be indented as it stands in the test."""
    data = text if isinstance(text, bytes) else textwrap.dedent(text).lstrip("\n").encode()
    return read([(path, [data])])


def only(text: str | bytes, path: str = "train.log", error: str | None = None) -> LogEvent:
    """The one event there is; or the one with this error."""
    events = [event for event in digest(text, path).events if error is None or event.error == error]
    assert len(events) == 1, events
    return events[0]
