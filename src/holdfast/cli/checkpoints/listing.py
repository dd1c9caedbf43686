"""`holdfast checkpoint list`: one line a checkpoint, newest first, and what is left of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch
from holdfast.checkpoint.found import CheckpointFound, list_directories, look_at
from holdfast.checkpoint.layout import MANIFEST, RETIRED, parse_directory_name
from holdfast.cli.checkpoints.drawing import new_grid, new_table, numbers_text, print_json, size_text, when_text
from holdfast.cli.checkpoints.place import InStore, Place, WhereOrNewest, place_of
from holdfast.cli.common import AsJson, State
from holdfast.cli.screen import Screen
from holdfast.cli.words import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A directory with a checkpoint's name: a complete checkpoint, or why it is none."""

    path: Path
    found: CheckpointFound | None = None
    status: str = "complete"
    because: str = ""

    def as_json(self, place: Place) -> dict[str, Any]:
        (step, generation), name = parse_directory_name(self.path.name) or (0, 0), self.path.name
        row: dict[str, Any] = {"name": name, "status": self.status, "step": step, "generation": generation, "bytes_there": place.bytes_there(name)}
        return row | ({"because": self.because} if self.found is None else about_json(place, self.found))


def about_json(place: Place, found: CheckpointFound) -> dict[str, Any]:
    manifest = found.manifest
    return {
        "name": found.name, "path": place.address(found.name), "step": manifest.step, "generation": manifest.generation,
        "ranks": manifest.world_size, "at": manifest.at, "size_bytes": manifest.size_bytes, "own_bytes": manifest.own_bytes,
        "chunks": len(manifest.chunks), "algorithm": manifest.algorithm, "numbers": manifest.numbers or {},
    }  # fmt: skip


def rows_in(checkpoints: Path) -> list[Row]:
    newest_first = sorted(list_directories(checkpoints), key=lambda path: (parse_directory_name(path.name) or (0, 0))[::-1], reverse=True)
    return [row_of(path) for path in newest_first]


def row_of(path: Path) -> Row:
    try:
        return Row(path=path, found=look_at(path))
    except (CheckpointCorrupt, CheckpointMismatch) as error:
        because = str(error.__cause__ or error)  # What to restore instead is not the question here.
    except OSError as error:
        because = f"its manifest cannot be read: {error.strerror}"
    if (path / MANIFEST).exists():
        return Row(path=path, status="unreadable", because=because)
    if (path / RETIRED).exists():
        return Row(path=path, status="retired", because="removed; these chunks are needed by others")
    return Row(path=path, status="torn", because=because)


def list_(where: WhereOrNewest = "", in_store: InStore = False, state: State = None, as_json: AsJson = False) -> None:
    """List checkpoints, newest first."""
    place = place_of(where, state, in_store=in_store, newest=True)
    rows = rows_in(place.path)
    if as_json:
        print_json([row.as_json(place) for row in rows])
    elif not rows:
        print(f"No checkpoints in {place.said} yet.")
    else:
        Screen().print(_list_table(place, rows))


def _list_table(place: Place, rows: Sequence[Row]) -> RenderableType:
    table = new_table("checkpoint", ("step", "right"), ("gen", "right"), ("ranks", "right"), "when", ("size", "right"), ("written", "right"), "numbers")
    others = new_grid()
    for row in rows:
        if row.found is None:
            status = "kept for others" if row.status == "retired" else row.status
            others.add_row(row.path.name, status, size_text(place.bytes_there(row.path.name)), Text(one_line(row.because)))
            continue
        manifest = row.found.manifest
        table.add_row(
            row.path.name, f"{manifest.step:,}", str(manifest.generation), str(manifest.world_size), when_text(manifest.at), size_text(manifest.size_bytes),
            size_text(manifest.own_bytes), Text(numbers_text(manifest.numbers or {}, "\n")),
        )  # fmt: skip
    parts: list[RenderableType] = [table] if table.row_count else []
    if others.row_count:
        parts += [Text("\nThese are no checkpoints: they were never completed, or are removed", style="bold"), others]
    return Group(*parts)
