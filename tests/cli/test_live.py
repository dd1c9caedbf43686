"""The live view, on a real pseudo-terminal whose screen is worked out by a small interpreter of what was written to it."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import histories
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.cli.live import Live, mode_for
from holdfast.cli.panel import panel_lines
from holdfast.wire.messages import IncidentView, NodeView, Reading, SavingView, Uploading, View

TOKEN = re.compile(r"\x1b\[([?0-9;]*)([@-~])|\x1b([78DMc])|([\r\n\x08])|(.)", re.DOTALL)


MARK, END = b"<all read>", b"<all done>"


class Screen:
    """A terminal, as far as progress bars and our panel use one."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.lines = [[" "] * columns for _ in range(rows)]
        self.row = self.column = self.top = 0
        self.bottom = rows - 1
        self.wrap = False
        self.saved = (0, 0, False)
        self.gone: list[str] = []

    def feed(self, data: bytes) -> Screen:
        for match in TOKEN.finditer(data.decode(errors="replace")):
            parameters, final, escape, control, text = match.groups()
            if final:
                self._control([int(one) if one.isdigit() else 0 for one in parameters.split(";")], final)
            elif escape:
                self._escape(escape)
            elif control:
                self._move(control)
            else:
                self._put(text)
        return self

    def text(self) -> list[str]:
        return ["".join(line).rstrip() for line in self.lines]

    def resize(self, rows: int, columns: int) -> None:
        """As a terminal that drops rows from the top to keep the cursor, and resets its margins."""
        over = max(0, self.row + 1 - rows)
        kept = [(line + [" "] * columns)[:columns] for line in self.lines[over : over + rows]]
        self.lines = kept + [[" "] * columns for _ in range(rows - len(kept))]
        self.row, self.column, self.rows, self.columns = self.row - over, min(self.column, columns - 1), rows, columns
        self.top, self.bottom = 0, rows - 1

    def _put(self, text: str) -> None:
        if self.wrap:
            self._index()
            self.column, self.wrap = 0, False
        self.lines[self.row][self.column] = text
        if self.column == self.columns - 1:
            self.wrap = True
        else:
            self.column += 1

    def _index(self) -> None:
        if self.row == self.bottom:
            self.gone.append("".join(self.lines.pop(self.top)).rstrip())
            self.lines.insert(self.bottom, [" "] * self.columns)
        elif self.row < self.rows - 1:
            self.row += 1

    def _move(self, control: str) -> None:
        if control == "\n":
            self._index()
            self.column = 0
        else:
            self.column = 0 if control == "\r" else max(0, self.column - 1)
        self.wrap = False

    def _escape(self, which: str) -> None:
        match which:
            case "7":
                self.saved = (self.row, self.column, self.wrap)
            case "8":
                self.row, self.column, self.wrap = self.saved
            case "D":
                self._index()
                self.wrap = False
            case _:
                raise AssertionError(f"the interpreter does not know ESC {which}")

    def _control(self, numbers: list[int], final: str) -> None:
        count = max(1, numbers[0])
        match final:
            case "m":
                return
            case "A":
                self.row = max(self.top if self.row >= self.top else 0, self.row - count)
            case "B":
                self.row = min(self.bottom if self.row <= self.bottom else self.rows - 1, self.row + count)
            case "H":
                self.row, self.column = count - 1, (numbers[1] if len(numbers) > 1 else 1) - 1
            case "J":
                self._blank(self.row, self.column, self.columns)
                for row in range(self.row + 1, self.rows):
                    self._blank(row, 0, self.columns)
            case "K":
                self._blank(self.row, 0 if numbers[0] == 2 else self.column, self.columns)
            case "r":
                self.top, self.bottom = (numbers[0] or 1) - 1, (numbers[1] if len(numbers) > 1 else self.rows) - 1
                self.row = self.column = 0
            case _:
                raise AssertionError(f"the interpreter does not know CSI {final}")
        self.wrap = False

    def _blank(self, row: int, first: int, last: int) -> None:
        self.lines[row][first:last] = [" "] * (last - first)


class Terminal:
    """A pseudo-terminal, and everything that was written to it."""

    def __init__(self, rows: int, columns: int) -> None:
        self._near, self._far = pty.openpty()
        tty.setraw(self._far)  # What is written arrives as it is; the interpreter takes a line feed for both.
        self.size(rows, columns)
        self.stdout = os.fdopen(os.dup(self._far), "wb", buffering=0)
        self.stderr = os.fdopen(os.dup(self._far), "w", encoding="utf-8")
        self._seen = bytearray()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> bytes:
        """All that was written since the last time. A mark is written behind it, so that nothing still on its way is missed."""
        os.write(self._far, MARK)
        deadline = time.monotonic() + 10
        while not self._seen.endswith(MARK):
            assert time.monotonic() < deadline, f"the mark did not come through; the last bytes were {bytes(self._seen[-60:])!r}"
            time.sleep(0.001)
        data = bytes(self._seen).removesuffix(MARK)
        self._seen.clear()
        return data

    def _drain(self) -> None:
        # A pseudo-terminal holds a few kilobytes, and whoever writes more waits for a reader.
        while data := os.read(self._near, 65536):
            if data.endswith(END):
                return
            self._seen += data

    def close(self) -> None:
        os.write(self._far, END)
        self._reader.join(timeout=10)
        self.stdout.close()
        self.stderr.close()
        os.close(self._far)
        os.close(self._near)


@contextmanager
def terminal(rows: int = 24, columns: int = 80) -> Iterator[Terminal]:
    opened = Terminal(rows, columns)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(autouse=True)
def _a_terminal_that_can_do_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def reading(rank: int, *, step: int = 420, phase: str = "step", silent_s: float = 0.1) -> Reading:
    return Reading(rank=rank, generation=1, pid=100 + rank, step=step, phase=phase, silent_s=silent_s)


def seen(step: int = 420, *, ranks: int = 4, incidents: tuple[IncidentView, ...] = (), **more: object) -> View:
    nodes = (NodeView(name="node0", state="ready", role="gang", connected=True), NodeView(name="node1", state="ready", role="spare", connected=True))
    fields = {
        "job": "demo", "at": 1000.0 + step, "phase": "running", "because": "generation 1 is up", "generation": 1, "world_size": ranks, "step": step,
        "steps_total": 1000, "steps_per_s": 5.0, "loss": 2.3104, "goodput": 0.93, "wall_s": 82.0, "nodes": nodes,
        "ranks": tuple(reading(rank, step=step) for rank in range(ranks)), "incidents": incidents,
    }  # fmt: skip
    return View(**{**fields, **more})


def incident(phase: str, *, id: int = 1, cause: str = "killed", rung: str = "respawn") -> IncidentView:
    return IncidentView(id=id, at=1000.0, phase=phase, cause=cause, because="rank 2 was ended by SIGKILL", rung=rung, seconds=0.42)


def plain(lines: list[str]) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(lines))


def test_the_panel_stands_below_the_output_and_says_how_the_job_is_doing() -> None:
    with terminal() as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        live.output(b"hello from rank 0\n")
        live.view(seen())
        text = Screen(24, 80).feed(term.read()).text()
    assert text[0] == "hello from rank 0"
    panel = "\n".join(text[10:])
    for words in ("holdfast · demo", "running, generation 1", "step 420 of 1,000", "42 %", "ends in 1m 56s", "5 steps/s", "loss 2.31", "goodput 93.0 %"):
        assert words in panel
    assert "nodes  node0 · spare node1" in panel
    assert "ranks  0-3 step, at 420" in panel


def test_a_progress_bar_drawn_through_the_panel_stays_one_line() -> None:
    with terminal(20, 60) as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        live.output(b"training\n")
        for step in range(0, 101, 5):
            live.view(seen(step))
            live.output(f"\r{step:3d}%|{'#' * (step // 5):<20}| {step}/100 [00:01<00:02]".encode())
        live.view(seen(100))
        live.output(b"\nnext epoch\n")
        text = Screen(20, 60).feed(term.read()).text()
    assert text[:3] == ["training", "100%|####################| 100/100 [00:01<00:02]", "next epoch"]
    assert not any("%|" in line for line in text[2:])


def test_nested_progress_bars_stay_where_they_are() -> None:
    with terminal(20, 60) as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        live.view(seen())
        live.output(b"\n" * 30)
        for epoch in range(3):
            for batch in range(10):
                # What tqdm writes for a bar at position 1: down a line, the bar, and up again.
                live.output(f"\repoch {epoch}\n\rbatch {batch}\x1b[A".encode())
                live.view(seen(epoch * 10 + batch))
        text = [line for line in Screen(20, 60).feed(term.read()).text() if line]
    assert text[:2] == ["epoch 2", "batch 9"]
    assert sum("epoch" in line or "batch" in line for line in text) == 2


def test_output_scrolls_above_the_panel_and_none_of_it_is_lost() -> None:
    with terminal(16, 50) as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        for number in range(100):
            live.output(f"line {number}\n".encode())
            live.view(seen(number))
        screen = Screen(16, 50).feed(term.read())
    kept = [line for line in screen.gone + screen.text() if line.startswith("line ")]
    assert kept == [f"line {number}" for number in range(100)]


def test_every_byte_of_the_output_reaches_the_terminal_unchanged() -> None:
    data = b"caf\xc3\xa9 \xff\xfe \x1b[31mred\x1b[0m \x1b]0;title\x07 \r half"
    with terminal() as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        live.output(data)
        assert term.read() == data


@pytest.mark.parametrize("whole", [b"\xe2\x94\x81", b"\x1b[38;5;196m", b"\x1b]8;;http://example\x1b\\", "\N{GRINNING FACE}".encode()])
def test_nothing_is_drawn_in_the_middle_of_a_sequence_or_a_character(whole: bytes) -> None:
    with terminal() as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        for cut in range(1, len(whole)):
            live.output(b"x" + whole[:cut])
            live.view(seen())
            assert term.read() == b"x" + whole[:cut]
            live.output(whole[cut:])
            assert term.read().startswith(whole[cut:] + b"\x1b")


def test_a_sequence_that_never_ends_does_not_keep_the_panel_away_for_ever() -> None:
    with terminal() as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        live.output(b"\x1b[")
        for _ in range(5):
            live.view(seen())
        assert b"holdfast" in term.read()


pieces = st.one_of(
    st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=70).map(str.encode),
    st.sampled_from([b"\r", b"\n", b"\x08", b"\x1b[A", b"\x1b[K", b"\x1b[31m", b"\x1b[0m", b"\r\x1b[K"]),
)


@settings(max_examples=60)
@given(data=st.lists(st.tuples(pieces, st.booleans()), max_size=60))
def test_the_rows_above_the_panel_are_what_a_smaller_terminal_would_show(data: list[tuple[bytes, bool]]) -> None:
    with terminal(18, 40) as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        live.view(seen())
        before = term.read()
        for piece, redraw in data:
            live.output(piece)
            if redraw:
                live.view(seen())
        screen = Screen(18, 40).feed(before + term.read())
    height = 18 - (screen.bottom + 1)
    alone = Screen(18 - height, 40).feed(b"".join(piece for piece, _ in data))
    assert screen.text()[: 18 - height] == alone.text()
    assert (screen.row, screen.column, screen.wrap) == (alone.row, alone.column, alone.wrap)


@pytest.mark.parametrize(("rows", "columns"), [(30, 100), (14, 80), (24, 40), (10, 30)])
def test_a_resized_terminal_gets_one_whole_panel_again(rows: int, columns: int) -> None:
    with terminal() as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        for number in range(40):
            live.output(f"line {number}\n".encode())
        live.view(seen())
        screen = Screen(24, 80).feed(term.read())
        screen.resize(rows, columns)
        term.size(rows, columns)
        live.view(seen())
        live.output(b"after\n")
        screen.feed(term.read())
    text = screen.text()
    assert sum("holdfast" in line for line in text) == 1
    assert sum("after" in line for line in text) == 1
    assert text.index("after") < next(index for index, line in enumerate(text) if "holdfast" in line)


def test_a_panel_that_grows_pushes_the_output_up_and_not_away() -> None:
    with terminal() as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        for number in range(30):
            live.output(f"line {number}\n".encode())
        live.view(seen())
        live.view(seen(incidents=(incident("resolved"), incident("stopping", id=2))))
        live.view(seen())
        screen = Screen(24, 80).feed(term.read())
    kept = [line for line in screen.gone + screen.text() if line.startswith("line ")]
    assert kept == [f"line {number}" for number in range(30)]


def test_closing_leaves_the_output_and_a_terminal_as_it_was() -> None:
    with terminal() as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        live.output(b"one\ntwo")
        live.view(seen())
        live.close()
        live.close()
        screen = Screen(24, 80).feed(term.read())
    assert [line for line in screen.text() if line] == ["one", "two"]
    assert (screen.top, screen.bottom) == (0, 23)
    assert (screen.row, screen.column) == (2, 0)


@pytest.mark.parametrize(("term_name", "rows"), [("dumb", 24), ("xterm", 4)])
def test_a_terminal_that_cannot_hold_a_panel_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, term_name: str, rows: int) -> None:
    monkeypatch.setenv("TERM", term_name)
    with terminal(rows) as term:
        live = Live(term.stdout, term.stderr, mode="terminal")
        live.view(seen())
        assert term.read() == b"holdfast: 1m 22s running: generation 1 is up\n"


def test_no_color_means_no_colour() -> None:
    def colours() -> set[str]:
        codes = re.findall(r"\x1b\[([0-9;]*)m", "".join(panel_lines(seen(incidents=(incident("resolved"),)), columns=80, rows=12)))
        return {one for code in codes for one in code.split(";") if len(one) > 1}

    assert colours()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_COLOR", "1")
        assert not colours()


def test_a_thousand_ranks_fit_and_the_silent_one_comes_first() -> None:
    ranks = tuple(reading(rank, silent_s=42.0 if rank == 517 else 0.1) for rank in range(1000))
    lines = plain(panel_lines(structs.replace(seen(), ranks=ranks), columns=79, rows=12)).split("\n")
    assert len(lines) <= 12
    told = [line for line in lines if line.startswith(("ranks", "       "))]
    assert "517 step, at 420, silent for 42 s" in told[0]
    assert "(999)" in told[1] or "0-516, 518-999" in told[1]


@pytest.mark.parametrize("columns", [20, 33, 79, 200])
def test_no_line_of_the_panel_is_wider_than_the_terminal(columns: int) -> None:
    many = tuple(NodeView(name=f"very-long-node-name-{index}", state="lost" if index % 2 else "ready", role="gang", connected=True) for index in range(50))
    for view in (seen(nodes=many), seen(phase="stopping", because="rank 3 raised " + "x" * 400), seen(job="名前" * 30), seen(steps_total=0, loss=None)):
        lines = panel_lines(view, columns=columns, rows=8)
        assert len(lines) <= 8
        assert all(len(line) + sum(ord(one) > 0x2E80 for one in line) <= columns for line in plain(lines).split("\n"))


def test_what_a_job_says_cannot_reach_into_the_terminal() -> None:
    evil = seen(job="a\x1b[2Jb\x07\nc", phase="stopping", because="\x1b]0;owned\x07 gone\r\n\x9b2J")
    text = "".join(panel_lines(evil, columns=79, rows=8))
    assert re.sub(r"\x1b\[[0-9;]*m", "", text).isprintable()
    assert "owned" not in text


def test_plain_lines_tell_changes_once_and_leave_the_output_alone() -> None:
    stdout, stderr = io.BytesIO(), io.StringIO()
    live = Live(stdout, stderr, mode="plain")
    live.output(b"\rraw \xff bytes")
    for view in (
        seen(1), seen(2), seen(3, phase="stopping", because="rank 2 was ended by SIGKILL", incidents=(incident("stopping", cause="", rung=""),)),
        seen(3, phase="waiting", because="killed may pass", incidents=(incident("acting"),)), seen(4, generation=2, incidents=(incident("resolved"),)),
        seen(5, generation=2, incidents=(incident("resolved"),)),
    ):  # fmt: skip
        live.view(view)
    assert stdout.getvalue() == b"\rraw \xff bytes"
    assert stderr.getvalue().splitlines() == [
        "holdfast: 1m 22s running: generation 1 is up",
        "holdfast: incident 1 noticed: rank 2 was ended by SIGKILL",
        "holdfast: 1m 22s stopping: rank 2 was ended by SIGKILL",
        "holdfast: incident 1 diagnosed: killed: rank 2 was ended by SIGKILL; remedy: respawn",
        "holdfast: 1m 22s waiting: killed may pass",
        "holdfast: incident 1 resolved after 0.42 s",
        "holdfast: 1m 22s running: generation 1 is up",
    ]


def test_how_often_is_saved_is_a_line_of_the_panel_and_told_when_it_changes() -> None:
    because = "a save costs 0.04 s, a failure is expected every 11 h"
    saving = SavingView(every=458, interval_s=55.0, from_step=500, automatic=True, because=because, overhead=0.0015)
    line = "saving every 458 steps (55 s); why: `holdfast show`"
    assert line in plain(panel_lines(seen(saving=saving), columns=100, rows=12)).splitlines()
    stderr = io.StringIO()
    live = Live(io.BytesIO(), stderr, mode="plain")
    reworded = structs.replace(saving, because="a save costs 0.05 s")
    for view in (seen(1), seen(2, saving=saving), seen(3, saving=reworded), seen(4, saving=structs.replace(saving, every=40, interval_s=4.8))):
        live.view(view)
    assert [said for said in stderr.getvalue().splitlines() if "saving" in said] == [
        f"holdfast: {line}", "holdfast: saving every 40 steps (4.8 s); why: `holdfast show`",
    ]  # fmt: skip


def test_a_line_of_status_has_a_hundred_characters_at_most_and_ends_between_words() -> None:
    because = "rank 0 is not where the other ranks wait; rank 1 made no progress for 23.1 s in phase 'step' at step 251; its limit is 20.0 s"
    views = [
        seen(1, saving=SavingView(every=10_116, interval_s=266.0, from_step=500, automatic=True, because=because, overhead=0.0015)),
        seen(2, phase="stopping", because=because, incidents=(structs.replace(incident("acting"), because=because),)),
        seen(3, phase="ended", outcome="failed", because=because, incidents=(structs.replace(incident("resolved"), because=because),)),
    ]
    stderr = io.StringIO()
    live = Live(io.BytesIO(), stderr, mode="plain")
    for view in views:
        live.view(view)
    lines = stderr.getvalue().splitlines()
    assert len(lines) >= 6
    assert max(map(len, lines)) <= 100
    (diagnosed,) = [line for line in lines if "diagnosed" in line]
    assert diagnosed.endswith(" …; remedy: respawn"), "what was done is never left out"
    assert all(word in because.split() for line in lines if line.endswith("…") for word in line.split()[-2:-1])


def test_a_small_loss_is_no_zero() -> None:
    for loss, shown in ((2.3104, "loss 2.3104"), (1.732e-06, "loss 1.73e-06"), (0.0, "loss 0.0000"), (-0.0004, "loss -0.0004")):
        assert shown in plain(panel_lines(seen(loss=loss), columns=100, rows=12))


def test_two_threads_that_show_something_do_not_meet_in_the_middle_of_it() -> None:
    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            time.sleep(0.001)
            return super().write(data)

    stdout = Slow()
    live = Live(stdout, io.StringIO(), mode="json")
    threads = [threading.Thread(target=lambda: [live.note(f"{number} {'x' * 50}") for number in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([json.loads(line) for line in stdout.getvalue().splitlines()]) == 80


def test_the_remote_store_is_a_figure_of_the_panel_and_what_control_notes_is_told_once() -> None:
    def figures(uploading: Uploading) -> str:
        return plain(panel_lines(seen(uploading=uploading), columns=100, rows=12))

    assert "remote at 400" in figures(Uploading(step=400))
    assert "nothing remote yet" in figures(Uploading(missing=10))
    assert "remote store failing" in figures(Uploading(step=400, error="it is full."))
    notes = ("checkpoints do not reach the remote store: it is full.", "step 900 is in the remote store")
    views = [seen(1), seen(2, notes=notes[:1]), seen(3, notes=notes[:1]), seen(4, notes=notes)]
    stderr, stdout = io.StringIO(), io.BytesIO()
    lines, records = Live(io.BytesIO(), stderr, mode="plain"), Live(stdout, io.StringIO(), mode="json")
    for view in views:
        lines.view(view)
        records.view(view)
    assert [line for line in stderr.getvalue().splitlines() if "remote" in line] == [f"holdfast: {note}" for note in notes]
    found = [json.loads(line) for line in stdout.getvalue().splitlines()]
    assert [one["text"] for one in found if one["kind"] == "note"] == list(notes)


def test_json_lines_hold_views_incidents_and_a_summary_and_no_output() -> None:
    stdout, stderr = io.BytesIO(), io.StringIO()
    live = Live(stdout, stderr, mode="json")
    live.output(b"not this\n")
    live.view(seen(1, at=10.0))
    live.view(seen(2, at=10.2))
    live.view(seen(9, at=11.5, loss=float("nan")))
    live.view(seen(9, at=11.6, phase="stopping", incidents=(incident("stopping"),)))
    live.summary(histories.failed().state)
    records = [json.loads(line) for line in stdout.getvalue().splitlines()]
    assert [record["kind"] for record in records] == ["view", "view", "incident", "view", "summary"]
    assert [record.get("step") for record in records] == [1, 9, None, 9, 42]
    assert records[1]["loss"] is None
    assert records[0]["ranks"][0]["rank"] == 0
    assert "type" not in records[0]["ranks"][0]
    assert records[-1]["outcome"] == "permanent"
    assert stderr.getvalue() == ""


def test_what_is_not_known_is_null() -> None:
    stdout = io.BytesIO()
    Live(stdout, io.StringIO(), mode="json").view(seen(-1, at=10.0, steps_total=0))
    record = json.loads(stdout.getvalue())
    assert [record[name] for name in ("step", "saved_step", "held_step", "steps_total")] == [None] * 4


@pytest.mark.parametrize("mode", ["terminal", "plain"])
def test_the_first_cause_is_the_last_thing_printed(mode: str) -> None:
    with terminal(40, 80) as term:
        live = Live(term.stdout, term.stderr, mode=mode)  # type: ignore[arg-type]
        live.view(seen())
        live.summary(histories.failed().state)
        text = [line for line in Screen(200, 80).feed(term.read()).text() if line]
    assert text[-1] == "ValueError: batch <3> has 0 rows & cannot be used"
    assert "Traceback (most recent call last):" in text
    assert any("failed for good" in line for line in text)


def test_a_job_that_finished_ends_with_its_bill() -> None:
    stderr = io.StringIO()
    Live(io.BytesIO(), stderr, mode="plain").summary(histories.stormy().state)
    text = stderr.getvalue()
    assert text.startswith("holdfast: storm <&> gpt finished after")
    assert "incident 3: node lost (node1); remedy: replace; resolved" in text
    assert "Traceback" not in text
    assert all(line.startswith("holdfast: ") for line in text.splitlines())


def test_a_terminal_that_is_gone_is_no_reason_to_fail() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb", buffering=0) as stdout:
        live = Live(stdout, io.StringIO(), mode="plain")
        live.output(b"nobody reads this")
        live.output(b"nor this")
        live.close()
    assert live.lost


def test_a_terminal_that_is_full_for_a_moment_is_not_taken_for_gone() -> None:
    data = bytes(range(256)) * 4096
    with terminal() as term:
        os.set_blocking(term.stdout.fileno(), False)
        live = Live(term.stdout, term.stderr, mode="terminal")
        live.output(data)
        os.set_blocking(term.stdout.fileno(), True)
        assert not live.lost
        assert term.read() == data


def test_the_mode_follows_the_place_the_output_goes_to() -> None:
    with terminal() as term:
        assert mode_for(term.stdout, as_json=False) == "terminal"
        assert mode_for(term.stdout, as_json=True) == "json"
    assert mode_for(io.BytesIO(), as_json=False) == "plain"


def test_a_flood_of_output_is_passed_on_quickly() -> None:
    line = b"\r 42%|####      | 420/1000 [00:42<00:58,  9.98it/s, loss=2.31]"
    stdout = io.BytesIO()
    live = Live(stdout, io.StringIO(), mode="plain")
    began = time.perf_counter()
    for _ in range(20_000):
        live.output(line)
    assert time.perf_counter() - began < 5.0
    assert len(stdout.getvalue()) == 20_000 * len(line)
