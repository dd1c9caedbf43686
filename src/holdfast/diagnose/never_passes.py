"""What never passes: ends of a worker that another start of the same script would meet again, by what it said last.

    never_passes(exit) -> Refusal | None     pure: the class of the taxonomy, and the words that say it

Sees        the exception that ended it; where there is none, its last lines.
Says        wrong arguments, settings and versions, a file that is not there, a checkpoint of another shape, a service that refuses: what signatures know well
            and the taxonomy calls permanent. Not the program's own slips, for an empty answer of a service looks like one. Not memory, disks or GPUs.
Is wrong    about a file that comes later, which only its own node can see: the caller looks for `path` first. Where one exception was raised from another,
            the last one decides.
Costs       a millisecond.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.diagnose.permanence import permanence_of
from holdfast.diagnose.readings import Reading, read_event
from holdfast.diagnose.signatures import STRONG
from holdfast.diagnose.taxonomy import Permanence, Role
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.log_event import LogEvent, LogForm

_CLASSES = ("config_error", "checkpoint_mismatch", "file_not_found", "remote_service_error")
_LAST_LINES = 3
_PATH = re.compile(r"No such file or directory: '([^'\n]+)'|can't open file '([^'\n]+)'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    cause: str  # A class of the taxonomy.
    path: str = ""  # The file that was not found, where the words name it.


def never_passes(exit: Exit) -> Refusal | None:
    """Says which class it is, if every further start would end the same."""
    if exit.kind is ExitKind.EXCEPTION:
        events = [_event(LogForm.PYTHON, exit.message, error=exit.exception)]
    elif exit.kind is ExitKind.CODE:
        lines = [line.strip() for line in exit.tail.splitlines() if line.strip()]
        events = [_event(LogForm.LINE, line) for line in lines[-_LAST_LINES:]]
    else:
        return None
    readings = [one for event in events for one in read_event(event, running=False, counts=1.0) if one.role is Role.ROOT]
    clearest = max(readings, key=lambda one: one.strength, default=None)
    if clearest is None or clearest.strength < STRONG or clearest.cause not in _CLASSES or _permanence(clearest) is not Permanence.PERMANENT:
        return None
    found = _PATH.search(clearest.event.message)
    return Refusal(cause=clearest.cause, path=(found[1] or found[2]) if found else "")


def _event(form: LogForm, message: str, *, error: str = "") -> LogEvent:
    return LogEvent(form=form, error=error, message=message, text=(f"{error}: {message}" if error else message,), path="", first_line=1, last_line=1)


def _permanence(one: Reading) -> Permanence:
    return permanence_of(one.cause, [one], {})[0]
