"""The live view: what a person sees while a job runs.

`Live` is fed rank 0's output, byte for byte, and a `View` several times a second. It shows them in one of three modes:

    terminal   the output, untouched, and below it a panel that stays
    plain      the output, untouched, on standard output; changes, one line each, on standard error
    json       one object a line on standard output: views, incidents, and a summary at the end; no output of ranks

The panel stands in the bottom rows of the terminal, outside its scroll region, so that output is passed on as it came and interpreted by nobody but
the terminal: carriage returns, colours, nested progress bars and half a line work as if we were not there. Panel and output meet in one place only, the
cursor, which is saved before the panel is drawn and restored after it; in the middle of an escape sequence or of a character nothing is drawn.

Is wrong    when the output itself sets a scroll region or uses the terminal's one saved cursor: the panel heals itself at the next view.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import threading
from collections.abc import Callable
from io import StringIO
from typing import Any, BinaryIO, Literal, TextIO, TypeVar, cast

import msgspec
from rich.console import Console
from rich.text import Text

from holdfast.cli.newest import Newest
from holdfast.cli.panel import panel_lines
from holdfast.cli.tables import closing, show_json
from holdfast.cli.words import (
    bill_of,
    bill_sentence,
    cause_of,
    cost_words,
    duration,
    goodput_of,
    last_words,
    lasted_s,
    one_line,
    outcome_sentence,
    remedy_of,
    saving_line,
    share_text,
    shares_of,
    shortened,
    why_unknown,
)
from holdfast.domain.state import State
from holdfast.wire.messages import IncidentView, View

M = TypeVar("M", bound=Callable[..., None])
Mode = Literal["terminal", "plain", "json"]

_ROWS_MIN = 8  # Below this, a panel would leave no room for the output.
_COLUMNS_MIN = 20
_LINE_MAX = 90  # Of a line of status, without `holdfast: `: with it a hundred. The whole story is in `holdfast incidents`.
_TAIL_BYTES = 4096  # Longer than any escape sequence but a picture's.
_UNFINISHED = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z|[\xc2-\xdf]\Z|[\xe0-\xef][\x80-\xbf]?\Z|[\xf0-\xf4][\x80-\xbf]{0,2}\Z"
)
_PATIENCE = 3  # Views that wait for an unfinished sequence to end; then it is taken for rubbish.

_SAVE, _RESTORE, _DOWN, _PLAIN = "\x1b7", "\x1b8", "\x1bD", "\x1b[0m"


def mode_for(stdout: BinaryIO, *, as_json: bool) -> Mode:
    """What suits the place the output goes to."""
    if as_json:
        return "json"
    return "terminal" if stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and _size_of(stdout) is not None else "plain"


def _alone(method: M) -> M:
    """What two threads show must not meet in the middle of a line, or of a panel."""

    @functools.wraps(method)
    def locked(live: Live, *args: Any) -> None:
        with live.lock:
            method(live, *args)

    return cast(M, locked)


class Live:
    """Shows a running job. Whoever shows must not stop what is shown: a terminal that is gone sets `lost`, and nothing is raised."""

    def __init__(self, stdout: BinaryIO, stderr: TextIO, *, mode: Mode) -> None:
        self.lost = False
        self._stdout, self._stderr = stdout, stderr
        self._mode: Mode = mode
        if mode == "terminal" and mode_for(stdout, as_json=False) != "terminal":
            self._mode = "plain"
        self._changes = _Changes()
        self._region: _Region | None = None
        self._tail = b""
        self._waited = 0
        self._last: View | None = None
        self._noted = 0  # How many of control's notes were shown.
        self.lock = threading.RLock()  # A storm says what it does beside what is shown in another thread.

    @property
    def mode(self) -> Mode:
        return self._mode

    @_alone
    def output(self, data: bytes) -> None:
        """Rank 0 printed this."""
        if self._mode == "json":
            return
        self._write(data)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if self._waited and self._last is not None and not _UNFINISHED.search(self._tail):
            self._draw(self._last)

    @_alone
    def note(self, text: str) -> None:
        """Something that neither rank 0 nor control said, such as what a storm is about to do."""
        match self._mode:
            case "terminal":
                begin = "" if not self._tail or self._tail.endswith((b"\n", b"\r")) else "\n"
                self.output(f"{begin}{_styled(text)}".encode(errors="replace"))
            case "plain":
                self._say(f"holdfast: {text}\n")
            case "json":
                self._write(msgspec.json.encode({"kind": "note", "text": text}) + b"\n")

    @_alone
    def view(self, view: View) -> None:
        """The job looks like this now."""
        for note in view.notes[self._noted :]:
            self.note(one_line(note))
        self._noted = len(view.notes)
        match self._mode:
            case "terminal":
                self._draw(view)
            case "plain":
                for line in self._changes.lines(view):
                    self._say(f"holdfast: {line}\n")
            case "json":
                for record in self._changes.records(view):
                    self._write(msgspec.json.encode(record) + b"\n")
        self._last = view

    @_alone
    def close(self) -> None:
        """Give the terminal back as it was."""
        if self._region is not None:
            self._write(self._region.leave().encode())
            self._region = None
        if self._mode == "terminal" and self._tail and not self._tail.endswith(b"\n"):
            self._write(b"\n")
            self._tail = b""
        self._last, self._waited = None, 0

    @_alone
    def summary(self, state: State, newest: Newest | None = None) -> None:
        """How it ended, what it cost and what is saved; when it failed, the first cause's traceback is the last thing printed."""
        self.close()
        saved = str(newest) if newest is not None else ""
        match self._mode:
            case "json":
                self._write(msgspec.json.encode({"kind": "summary", **show_json(state), **(newest.as_json() if newest is not None else {})}) + b"\n")
                return
            case "terminal":
                self._say(_rendered(state, self._stderr) + (f"\n{saved}\n" if saved else ""))
            case "plain":
                self._say("".join(f"holdfast: {line}\n" for line in [*summary_lines(state), *([saved] if saved else [])]))
        words = last_words(state)
        if words:
            self._say(f"\n{words}")

    def _draw(self, view: View) -> None:
        """Draw the panel, unless the output is in the middle of something."""
        if _UNFINISHED.search(self._tail) and self._waited < _PATIENCE:
            self._waited += 1
            return
        self._waited = 0
        size = _size_of(self._stdout)
        if size is None:
            # Too small for both: the output has it alone until it grows again.
            if self._region is not None:
                self._write(self._region.leave().encode())
            self._region = None
            return
        lines = panel_lines(view, columns=size.columns - 1, rows=min(12, size.lines // 2))
        before = self._region
        self._region = _Region(rows=size.lines, columns=size.columns, height=max(len(lines), before.height if before and before.rows == size.lines else 0))
        self._write((self._region.enter(before) + self._region.paint(lines)).encode(errors="replace"))

    def _write(self, data: bytes) -> None:
        if self.lost or not data:
            return
        try:
            _write_all(self._stdout, data)
        except OSError:
            self.lost = True

    def _say(self, text: str) -> None:
        if self._mode == "plain" and self._tail and not self._tail.endswith((b"\n", b"\r")) and _are_one_file(self._stdout, self._stderr):
            text, self._tail = f"\n{text}", b""  # Half a line of the script's stands there.
        with contextlib.suppress(OSError):
            self._stderr.write(text)
            self._stderr.flush()


class _Region:
    """The rows at the bottom that are ours. Text in, control sequences out: the cursor of the output is back where it was after each."""

    def __init__(self, *, rows: int, columns: int, height: int) -> None:
        self.rows, self.columns, self.height = rows, columns, height

    def enter(self, before: _Region | None) -> str:
        """Make room for the panel and keep the output out of it."""
        if before is not None and (before.rows, before.columns) != (self.rows, self.columns):
            # After a resize nobody knows where the old panel lies, but it is below the cursor.
            return before.leave() + self.enter(None)
        more = self.height - (before.height if before is not None else 0)
        # Index, unlike a line feed, keeps the column, and scrolls where there is no room. Going back up by as much undoes it.
        room = _DOWN * more + f"\x1b[{more}A" if more > 0 else ""
        return f"{room}{_SAVE}\x1b[1;{self.rows - self.height}r{_RESTORE}"

    def paint(self, lines: list[str]) -> str:
        first = self.rows - self.height + 1
        padded = lines + [""] * (self.height - len(lines))
        drawn = "".join(f"\x1b[{first + index};1H{_PLAIN}\x1b[2K{line}" for index, line in enumerate(padded))
        return f"{_SAVE}{drawn}{_RESTORE}"

    def leave(self) -> str:
        """Clear what is below the cursor, and let the output have the whole screen."""
        whole = f"{_SAVE}\x1b[r{_RESTORE}"
        return f"{whole}{_DOWN}\x1b[A{_SAVE}\x1b[B\r{_PLAIN}\x1b[J{_RESTORE}"


class _Changes:
    """What is new in a view, for those who read lines."""

    def __init__(self) -> None:
        self._said: set[tuple[object, ...]] = set()
        self._phase: tuple[str, str, int] | None = None
        self._saving_every: int | None = None
        self._steady: dict[str, Any] = {}
        self._stepped_at = 0.0

    def lines(self, view: View) -> list[str]:
        found = [line for incident in view.incidents for line in self._incident_lines(incident)]
        phase = (view.phase, view.because, view.generation)
        if phase != self._phase:
            self._phase = phase
            found.append(shortened(f"{duration(view.run_s)} {one_line(view.phase)}: {one_line(view.because)}", _LINE_MAX))
        if view.saving is not None and view.saving.every != self._saving_every:
            self._saving_every = view.saving.every
            found.append(saving_line(view.saving.every, view.saving.interval_s))
        return found

    def _incident_lines(self, incident: IncidentView) -> list[str]:
        name, found = f"incident {incident.id}", []
        if self._new(incident.id, "noticed"):
            found.append(shortened(f"{name} noticed: {one_line(incident.because)}", _LINE_MAX))
        if incident.cause and incident.rung and self._new(incident.id, "diagnosed", incident.cause, incident.rung, incident.because):
            cause = one_line(incident.cause).replace("_", " ")
            told, remedy = f"{name} diagnosed: {cause}: {one_line(incident.because)}", f"; remedy: {one_line(incident.rung)}"
            found.append(f"{shortened(told, _LINE_MAX - len(remedy))}{remedy}")
        if incident.phase in ("resolved", "gave_up") and self._new(incident.id, "closed"):
            done = "resolved" if incident.phase == "resolved" else "given up"
            found.append(f"{name} {done} after {duration(incident.seconds)}")
        return found

    def records(self, view: View) -> list[dict[str, Any]]:
        """Views when something but time has changed, once a second at most while only the steps go on; and incidents as they move."""
        found = []
        for incident in view.incidents:
            if self._new(incident.id, incident.phase, incident.cause, incident.rung):
                found.append({"kind": "incident", "job": view.job, **_plain(incident)})
        body = _plain(view)
        del body["incidents"], body["notes"]
        body |= {name: None for name in ("step", "saved_step", "held_step") if body[name] < 0} | ({} if view.steps_total else {"steps_total": None})
        moving = ("at", "step", "steps_total", "steps_per_s", "loss", "goodput", "wall_s", "buckets", "ranks")
        steady = {name: value for name, value in body.items() if name not in moving}
        if steady != self._steady or view.at - self._stepped_at >= 1.0:
            self._steady, self._stepped_at = steady, view.at
            found.append({"kind": "view", **body})
        return found

    def _new(self, *what: object) -> bool:
        fresh = what not in self._said
        self._said.add(what)
        return fresh


def _are_one_file(stdout: BinaryIO, stderr: TextIO) -> bool:
    try:
        return os.path.sameopenfile(stdout.fileno(), stderr.fileno())
    except (OSError, ValueError):  # One of them is closed, or no file at all.
        return False


def summary_lines(state: State) -> list[str]:
    """The closing summary for those who read lines."""
    spent = " · ".join(f"{bucket} {duration(seconds)} ({share_text(share)})" for bucket, seconds, share in shares_of(state.ledger))
    why = why_unknown(state.ledger)
    lines = [outcome_sentence(state), *([f"goodput {why}", spent] if why else [f"goodput {goodput_of(state.ledger)}: {spent}"])]
    if state.interval is not None:
        lines.append(saving_line(state.interval.every, state.interval.interval_s))
    for incident in state.incidents:
        bill = bill_of(state, incident)
        told = f"incident {incident.id}: {cause_of(incident)}; remedy: {remedy_of(incident)}"
        if incident.stands:
            cost = f"; then {duration(sum(bill.values()))} ({bill_sentence(bill)})" if bill else ""
            lines.append(f"{told}; {duration((incident.closed_at or state.at) - incident.began_at)} beside the running job{cost}")
        else:
            closed = f"{str(incident.phase).replace('_', ' ')} after {duration(lasted_s(state, incident))}"
            lines.append(f"{told}; {closed}; {cost_words(state, incident)}{f' ({bill_sentence(bill)})' if bill else ''}")
    return lines


def _styled(note: str) -> str:
    """As the terminal takes it: NO_COLOR, TERM and COLORTERM are rich's to read."""
    out = StringIO()
    Console(file=out, force_terminal=True, highlight=False).print(Text(note, style="bold magenta"), soft_wrap=True)
    return out.getvalue()


def _rendered(state: State, stderr: TextIO) -> str:
    to_terminal = stderr.isatty()
    out = StringIO()
    size = _size_of(stderr) if to_terminal else None
    Console(file=out, force_terminal=to_terminal, width=size.columns if size else 80, highlight=False).print(closing(state), crop=False)
    return out.getvalue()


def _write_all(stream: BinaryIO, data: bytes) -> None:
    """Write to the end, also where another program made the terminal non-blocking: one that is full is not one that is gone."""
    while True:
        try:
            if not data:
                stream.flush()
                return
            written = stream.write(data) or 0
        except BlockingIOError as full:
            written = full.characters_written
        if not written:
            select.select([], [stream], [], 1.0)
        data = data[written:]


def _plain(message: msgspec.Struct) -> dict[str, Any]:
    """The fields of a message and of those inside it; the names of their types are the wire's business."""
    body: dict[str, Any] = _untagged(msgspec.to_builtins(message))
    return body


def _untagged(value: Any) -> Any:
    match value:
        case dict():
            return {name: _untagged(inner) for name, inner in value.items() if name != "type"}
        case list() | tuple():
            return [_untagged(inner) for inner in value]
        case _:
            return value


def _size_of(stream: BinaryIO | TextIO) -> os.terminal_size | None:
    """The size of the terminal behind `stream`; None when there is none, or it is too small for a panel."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return None
    return size if size.lines >= _ROWS_MIN and size.columns >= _COLUMNS_MIN else None
