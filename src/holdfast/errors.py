"""What can be raised, and what the person who reads it can do about it.

    HoldfastError          Holdfast could not do what it was asked to do                   exit code 81
    ├── UserError          the input is wrong: change it, nothing was started              exit code 2
    └── Retryable          the world failed: the same call may succeed a moment later      exit code 81, when nobody retried

Rooms derive their own errors from one of these three and keep them beside the code that raises them. A message says what was seen, what was
expected, and what to do next. Our own mistakes are none of these: they are `assert`, and stop.
"""

from __future__ import annotations

from typing import ClassVar


class HoldfastError(Exception):
    """Holdfast could not do what it was asked to do."""

    exit_code: ClassVar[int] = 81  # Unlike a training script's own 1, and below 128, where signals begin.


class UserError(HoldfastError):
    """What a person gave us cannot work; raised early, before anything is started or written."""

    exit_code: ClassVar[int] = 2


class Retryable(HoldfastError):
    """The world failed in a way that may pass: whoever decides about retries may try again."""
