"""A single line that says error, and no more structure than that; and exceptions and warnings of Python on a line of their own."""

from __future__ import annotations

import re
from typing import Final

from holdfast.diagnose.reading.forms.found import Found, single
from holdfast.diagnose.reading.forms.python import EXCEPTION
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm

_WORDS: Final = frozenset((
    "error", "errors", "exception", "fail", "failed", "failure", "fails", "fatal", "panic", "abort", "aborted", "aborting", "killed", "oom", "timeout",
    "cannot",
    "denied", "refused", "corrupt", "corrupted", "corruption", "invalid", "terminated", "cancelled", "canceled", "interrupted", "interrupt",
    "keyboardinterrupt",
    "preempt", "preempted", "preemption", "evicted", "mismatch", "missing", "unexpected", "died", "dead", "lost", "hung", "hang", "hangs", "hanging", "stuck",
    "stalled", "deadlock", "deadlocked", "unhandled", "unreachable", "stale", "exceeded", "nan", "nans", "infinite", "infinity", "overflow", "underflow",
    "diverged", "divergence", "diverging", "exploded", "exploding", "unavailable", "exhausted", "unrecognized", "crash", "crashed", "unsupported", "undefined",
    "illegal", "quota", "errno", "maintenance", "thermal", "slowdown", "throttling", "throttled", "sigterm", "sigint", "sigkill", "sigusr", "sighup", "sigsegv",
    "sigabrt", "sigbus", "traceback", "segfault", "oomkilled", "emfile", "enospc", "estale", "eacces", "enoent", "enomem", "econnreset", "econnrefused",
    "etimedout", "eaddrinuse", "epipe", "edquot", "fehler", "fehlgeschlagen", "erreur",
))  # fmt: skip
_PHRASES: Final = (
    "out of memory", "timed out", "can't", "unable to", "reset by", "broken pipe", "not found", "no such", "no module", "giving up", "not match",
    "needs to match", "no space", "not responding",
    "too many",
    "not finite", "non-finite", "core dumped", "segmentation fault", "bus error", "错误", "失败", "エラー", "ошибка",
)  # fmt: skip
# Exceptions that are not called so: zipfile.BadZipFile, queue.Full.
_DOTTED: Final = re.compile(
    r"(?P<class>(?:[a-z_]\w*\.)+(?:Bad|Invalid|Missing|No|Not|Un|Fail|Refused|Denied|Corrupt|Broken|Closed|Expired|Abort|Kill|Interrupt|Stop|Empty"
    r"|Full)\w*)(?:: (?P<message>.*)|:?)$"
)
_PYTHON_WARNING: Final = re.compile(r"(?:^|[\s:])(?P<class>[A-Z]\w*Warning): (?P<message>.*)")
# "0 errors", "error rate: 0.01", "no failures", "timeout=1800": words of trouble that say there is none.
_NONE: Final = re.compile(
    r"(?:no|0|zero|without(?: any)?) (?:\w+ )?(?:errors?|failures?|warnings?|exceptions?|issues|missing|nan)\b|errors?(?:[_ ]?rate"
    r"| count)?\s{0,8}[=:]\s{0,8}[\d.]+"
    r"|(?:max|mean|abs|rel|relative|absolute|val|validation|test|train|word|character|reconstruction|squared|prediction|quantization) error\b"
    r"|fail(?:ed|ures|s)?\s{0,8}[=:]\s{0,8}0\b|[\w.]{0,40}(?:timeout|on_error|ignore_errors|raise_on|fail_fast|fail_on|nan"
    r"|skip)\w{0,20}\s{0,8}[=:]\s{0,8}(?:none|true|false|\d)"
    r"|timeout of \d+|number of (?:nan|skipped) iterations:\s{0,8}0|error[_-]correct|error handling|error_file"
)


def exception(line: Line) -> Found | None:
    """An exception or a warning of Python without its traceback."""
    text = line.text.strip()
    if "Warning: " in text and (found := _PYTHON_WARNING.search(text, 0, 400)) is not None:
        return single(LogForm.LINE, found["class"], found["message"], line, warning=True)
    if (found := EXCEPTION.match(text)) is not None and not found["class"].endswith("Timeout"):
        error = found["of"] or found["class"]
        return single(LogForm.PYTHON, error, found["message"] or "", line, warning=error.endswith("Warning"))
    if "." in text and (found := _DOTTED.match(text)) is not None:
        return single(LogForm.PYTHON, found["class"], found["message"] or "", line)
    return None


def read(line: Line) -> Found | None:
    text = line.text.strip()
    if line.level not in ("error", "fatal"):
        if not _troubled(line.words, text):
            return None
        rest = _NONE.sub("", text.lower())
        if len(rest) < len(text) and not _troubled(Line(rest, rest, 0).words, rest):
            return None
    return single(LogForm.LINE, "", text, line)


def _troubled(words: frozenset[str], text: str) -> bool:
    if not words.isdisjoint(_WORDS) or "Error" in text or "Exception" in text:
        return True
    small = text.lower()
    return any(phrase in small for phrase in _PHRASES)

