"""What tables are made of and printed with: over a pipe nothing has a width, and on a terminal ids and figures are never cut.

A column that does not wrap, and every column of figures, is as wide as what is in it. The others give way. Where even that is too wide for the terminal,
the terminal wraps the line, and every character is there.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final, TextIO

import rich.table
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

_NO_WIDTH: Final = 10_000  # Wider than any line we write; rich wants a number.


class Screen(Console):
    def __init__(self, out: TextIO | None = None, **options: Any) -> None:
        out = out or sys.stdout
        self._has_width = out.isatty() or os.environ.get("COLUMNS", "").isdecimal()  # A person who sets COLUMNS wants it so.
        super().__init__(file=out, width=None if self._has_width else _NO_WIDTH, **options)

    def print(self, *objects: Any, **how: Any) -> None:
        if self._has_width:
            super().print(*objects, **{"crop": False, **how})
            return
        with self.capture() as drawn:
            super().print(*objects, **{"crop": False, **how})
        self.file.write("\n".join(line.rstrip(" ") for line in drawn.get().split("\n")))  # What is indented is filled up to the width.


class Table(rich.table.Table):
    @classmethod
    def grid(cls, *headers: Any, **options: Any) -> Table:
        """Without lines and headings."""
        made = super().grid(*headers, **options)
        assert isinstance(made, Table)
        return made

    def add_column(self, *args: Any, **options: Any) -> None:
        """Figures stand to the right, and do not wrap. A word that is too long for a column that wraps goes on in the next line."""
        figures = {"no_wrap": True} if options.get("justify") == "right" else {}
        super().add_column(*args, **{"overflow": "fold", **figures, **options})

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*cells, **options)
        for column, cell in zip(self.columns, cells, strict=False):
            column.overflow = "fold"
            if column.no_wrap:
                column.min_width = max(column.min_width or 0, _cells_of(column.header), _cells_of(cell))


def _cells_of(cell: RenderableType | None) -> int:
    text = cell.plain if isinstance(cell, Text) else cell if isinstance(cell, str) else ""
    return max(map(cell_len, text.split("\n")))
