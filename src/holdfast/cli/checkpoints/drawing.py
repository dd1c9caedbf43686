"""How these commands draw: tables, a bar for what takes long, and numbers of bytes in few letters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod, RenderableType
from rich.text import Text

from holdfast.cli.screen import Table
from holdfast.cli.words import one_line

ROWS: Final = 20  # Of a table that may be long; --all shows the rest.


class Bar:
    """A progress bar on a terminal, and elsewhere nothing. Called with what goes on, how many bytes more are done, and of how many."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self._tasks: dict[str, Any] = {}
        self._progress: Any = None
        if console.is_terminal and not quiet:
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            self._progress = Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console, transient=True)

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            if what not in self._tasks:
                self._tasks[what] = self._progress.add_task(what, total=total)
            self._progress.advance(self._tasks[what], done)


def size_text(size_bytes: float) -> str:
    """412 B, 8.1 kB, 42 MB, 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 999.5:
            return f"{size_bytes:.1f} {unit}" if size_bytes < 9.95 and unit != "B" else f"{size_bytes:.0f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def when_text(at: float) -> str:
    """In few columns: this year's without the year."""
    if not at:
        return "–"
    then = datetime.fromtimestamp(at)
    return then.strftime("%b %d %H:%M" if then.year == datetime.now().year else "%Y-%m-%d")


def numbers_text(numbers: Mapping[str, float], between: str, *, ours: bool = False) -> str:
    """What the script reported; with `ours` also what Holdfast measured, whose names begin with an underscore."""
    return between.join(f"{one_line(name)} {value:.4g}" for name, value in numbers.items() if ours or not name.startswith("_"))


_TEXT = ("name", "numbers", "cause", "done", "outcome", "remedy", "mostly", "holds when")  # Columns that give way on a narrow terminal.


def new_table(*columns: str | tuple[str, JustifyMethod]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, show_edge=False, pad_edge=False, header_style="dim")
    for column in columns:
        name = column if isinstance(column, str) else column[0]
        table.add_column(name, justify="left" if isinstance(column, str) else column[1], no_wrap=name not in _TEXT)
    return table


def new_grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    return table


def and_more(number: int) -> list[RenderableType]:
    return [Text(f"… and {number} more: --all shows them", style="dim")] if number > 0 else []


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
