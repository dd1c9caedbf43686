"""One file for each kind of writer: how its errors look, and what is taken from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.diagnose.reading.forms import collective, cuda, elastic, java, kernel, native, plain, python, rust, scheduler, tensorflow
from holdfast.diagnose.reading.forms.found import Assembler, Found
from holdfast.diagnose.reading.forms.soft import is_soft
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm

_OPENERS: Final[tuple[Callable[[Line], Assembler | None], ...]] = (python.opens, native.opens, elastic.opens, rust.opens, java.opens)
# From the one with the narrowest eye to the one that takes any trouble.
_READERS: Final[tuple[Callable[[Line], Found | None], ...]] = (
    plain.exception, kernel.read, collective.read, cuda.read, scheduler.read, native.read, tensorflow.read, plain.read,
)  # fmt: skip
# These report what has happened: a level or a hopeful word does not soften it.
_SAID_FOR_GOOD: Final = frozenset((LogForm.KERNEL, LogForm.NATIVE, LogForm.SCHEDULER))


def opens(line: Line) -> Assembler | None:
    """The reader of an error of several lines that starts here."""
    for opener in _OPENERS:
        assembler = opener(line)
        if assembler is not None:
            return assembler
    return None


def read_line(line: Line) -> Found | None:
    """What a line says on its own."""
    for reader in _READERS:
        found = reader(line)
        if found is not None:
            found.warning |= found.form not in _SAID_FOR_GOOD and is_soft(line)
            return found
    return None
