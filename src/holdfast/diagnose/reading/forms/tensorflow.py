"""Status lines of TensorFlow, XLA, JAX and gRPC: "RESOURCE_EXHAUSTED: Out of memory while trying to allocate …"."""

from __future__ import annotations

import re
from typing import Final

from holdfast.diagnose.reading.forms.found import Found, single
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm

_STATUS: Final = re.compile(
    r"\b(?P<code>ABORTED|ALREADY_EXISTS|CANCELLED|DATA_LOSS|DEADLINE_EXCEEDED|FAILED_PRECONDITION|INTERNAL|INVALID_ARGUMENT|NOT_FOUND|OUT_OF_RANGE"
    r"|PERMISSION_DENIED"
    r"|RESOURCE_EXHAUSTED|UNAUTHENTICATED|UNAVAILABLE|UNIMPLEMENTED|UNKNOWN): (?P<message>\S.*)"
)
_WORDS: Final = frozenset(
    ("aborted", "already", "cancelled", "data", "deadline", "failed", "internal", "invalid", "not", "out", "permission", "resource", "unauthenticated",
    "unavailable", "unimplemented", "unknown")
)


def read(line: Line) -> Found | None:
    found = _STATUS.search(line.text) if ": " in line.text and not line.words.isdisjoint(_WORDS) else None
    if found is None:
        return None
    return single(LogForm.TENSORFLOW, found["code"], found["message"], line, warning=line.level in ("warning", "info", "debug"))
