"""Warnings, advice and retries: words of trouble that are no evidence by themselves."""

from __future__ import annotations

import re
from typing import Final

from holdfast.diagnose.reading.line import Line

_ADVICE: Final = re.compile(
    r"Compile with `?TORCH_USE_CUDA_DSA|For debugging consider passing CUDA_LAUNCH_BLOCKING|CUDA kernel errors might be asynchronously"
    r"|To enable traceback see|JAX has removed its internal frames|fatal: not a git repository"
    r"|^\s*(?:Consider|Try|Please (?:try|consider|note|see)|Hint|Note|NOTE|Tip|See)\b|If this is a problem|is deprecated|will be (?:deprecated|removed)"
    r"|You (?:may|can|should) |it is recommended|we recommend|for more (?:details|information)|run with NCCL_DEBUG"
)
_ADVICE_WORDS: Final = frozenset((
    "compile", "debugging", "asynchronously", "traceback", "consider", "try", "please", "hint", "note", "tip", "see", "problem", "deprecated", "removed", "you",
    "recommended", "git", "recommend", "details", "information", "run",
))  # fmt: skip
_RETRIED: Final = re.compile(
    r"\b(?:retrying|reconnecting|ignoring|ignored|skipping|skipped|continuing|recovered|resolved)\b|\b(?:will|going to|about to) (?:be )?(?:retr(?:y|ied)"
    r"|try again|reconnect)"
    r"|\bretry (?:in|after|#?\d+)\b|\btrying (?:again|next|another|the next)\b|\bretries (?:left|remaining)\b|\bfall(?:ing)? back\b|\busing default\b"
    r"|\bnot fatal\b|\bnon-fatal\b",
    re.IGNORECASE,
)
_RETRIED_WORDS: Final = frozenset((
    "retrying", "reconnecting", "reconnect", "retried", "retry", "retries", "try", "trying", "fall", "falling", "ignoring", "ignored", "skipping", "skipped",
    "continuing", "default", "recovered", "fatal", "resolved",
))  # fmt: skip
_ATTEMPT: Final = re.compile(r"\b(?:attempt|try|retry)\s*#?(?P<this>\d{1,4})\s*(?:/|of|out of)\s*(?P<of>\d{1,4})", re.IGNORECASE)
_ATTEMPT_WORDS: Final = frozenset(("attempt", "try", "retry"))


def is_soft(line: Line) -> bool:
    """Said as a warning, an advice or something that is tried again. The last of so many attempts is none."""
    words = line.words
    attempt = _ATTEMPT.search(line.text) if not words.isdisjoint(_ATTEMPT_WORDS) else None
    if attempt is not None:
        return int(attempt["this"]) < int(attempt["of"])
    if line.level in ("warning", "info", "debug"):
        return True
    if not words.isdisjoint(_RETRIED_WORDS) and _RETRIED.search(line.text):
        return True
    if line.text.lstrip().lower().startswith(("error", "fatal:")):
        return False  # An error that comes with advice.
    return not words.isdisjoint(_ADVICE_WORDS) and _ADVICE.search(line.text) is not None
