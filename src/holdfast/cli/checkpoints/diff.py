"""`holdfast checkpoint diff`: what differs between two checkpoints, by the checksums of their chunks; only by how much needs torch."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.checkpoint.chunks import read_chunk
from holdfast.checkpoint.exchange import need_torch
from holdfast.checkpoint.found import CheckpointFound
from holdfast.checkpoint.state import get_tensors
from holdfast.cli.checkpoints.drawing import ROWS, Bar, and_more, new_grid, print_json, shortened
from holdfast.cli.checkpoints.held import Held, holdings, plain_text
from holdfast.cli.checkpoints.place import InStore, Where, choose, place_of
from holdfast.cli.common import AsJson, State
from holdfast.cli.screen import Screen
from holdfast.cli.words import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What became of one thing from one checkpoint to another."""

    what: str  # added, removed, dtype, shape, layout or value.
    old: Held | None = None
    new: Held | None = None
    max_abs: float | None = None

    @property
    def one(self) -> Held:
        found = self.new or self.old
        assert found is not None, "a change of nothing"
        return found

    @property
    def is_of_tensor(self) -> bool:
        return any(one is not None and one.dtype for one in (self.old, self.new))

    def as_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"what": self.what, "rank": self.one.rank, "part": self.one.part, "name": self.one.name}
        for side, one in (("old", self.old), ("new", self.new)):
            row[side] = None if one is None else {"dtype": one.dtype, "shape": list(one.shape)} if one.dtype else {"value": one.value}
        if self.max_abs is not None:
            row["max_abs"] = self.max_abs if isfinite(self.max_abs) else repr(self.max_abs)
        return row

    def said(self) -> str:
        if self.old is None or self.new is None:
            one = self.one
            return f"{self.what}: {one.dtype} {list(one.shape)}" if one.dtype else f"{self.what}: {plain_text(one.value)}"
        if not self.is_of_tensor:
            return f"{plain_text(self.old.value)} → {plain_text(self.new.value)}"
        match self.what:
            case "dtype" | "shape":
                return f"{self.old.dtype} {list(self.old.shape)} → {self.new.dtype} {list(self.new.shape)}"
            case "layout":
                return "lies otherwise, in memory or over the ranks; not compared"
            case _:
                return "changed" + (f", by at most {self.max_abs:.3g}" if self.max_abs is not None else "")


def diff(
    where: Where,
    old: Annotated[str, typer.Argument(metavar="A", help="A checkpoint's name, a step, or `newest`.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The one to compare it with.")],
    values: Annotated[bool, typer.Option("--values", help="Also by how much tensors differ at most. Reads them, and needs torch.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Every difference.")] = False,
    in_store: InStore = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Say what differs between two checkpoints. The exit code is 0 when nothing does, and 1 when something does."""
    place = place_of(where, state, in_store=in_store)
    one, other = (choose(place, which) for which in (old, new))
    if values:
        need_torch()
    with Bar(quiet=as_json) as told:
        for both in (one, other):
            place.bring(both, told)
    changes, same = compare(one, other, values=values)
    if as_json:
        print_json({"a": one.name, "b": other.name, "same": same, "changes": [change.as_json() for change in changes]})
    else:
        Screen().print(_diff(one, other, changes, same, ROWS if not everything else sys.maxsize))
    raise typer.Exit(1 if changes else 0)


def compare(a: CheckpointFound, b: CheckpointFound, *, values: bool = False) -> tuple[list[Change], int]:
    """What differs, and how many things do not. Tensors are compared by the checksums of their chunks, and read only where they share one."""
    before, after = _Side(a), _Side(b)
    keys = [*before.held, *(key for key in after.held if key not in before.held)]
    changes = [change for key in keys if (change := _change(before, after, before.held.get(key), after.held.get(key), values=values)) is not None]
    return changes, len(keys) - len(changes)


class _Side:
    """One of two checkpoints that are compared."""

    def __init__(self, found: CheckpointFound) -> None:
        self.held = {one.key: one for one in holdings(found)}
        self.algorithm = found.manifest.algorithm
        self._directory, self._chunks = found.path.parent, found.manifest.by_digest()
        self._read = functools.lru_cache(maxsize=16)(self._read_chunk)  # Small tensors share chunks, and follow each other in them.

    def has_own_chunks(self, one: Held) -> bool:
        return all(offset == 0 and size == self._chunks[digest].size_bytes for digest, offset, size in one.kind["at"])

    def bytes_of(self, one: Held) -> bytes:
        return b"".join(self._read(digest)[offset : offset + size] for digest, offset, size in one.kind["at"])

    def tensor_of(self, one: Held) -> Any:
        import torch

        (tensor,) = get_tensors(self._directory, self._chunks, self.algorithm, [one.kind])
        return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)

    def _read_chunk(self, digest: str) -> bytes:
        data = bytearray(self._chunks[digest].size_bytes)
        read_chunk(self._directory, self._chunks[digest], self.algorithm, memoryview(data))
        return bytes(data)


def _change(a: _Side, b: _Side, old: Held | None, new: Held | None, *, values: bool) -> Change | None:
    if old is None or new is None:
        return Change(what="added" if old is None else "removed", old=old, new=new)
    what = _what_changed(a, b, old, new)
    if what == "value" and new.dtype and values:
        return Change(what=what, old=old, new=new, max_abs=float((a.tensor_of(old) - b.tensor_of(new)).abs().max()))
    return Change(what=what, old=old, new=new) if what else None


def _what_changed(a: _Side, b: _Side, old: Held, new: Held) -> str:
    if old.dtype != new.dtype:
        return "dtype"
    if not old.dtype:
        return "value" if json.dumps(old.value, sort_keys=True) != json.dumps(new.value, sort_keys=True) else ""
    if old.shape != new.shape:
        return "shape"
    if _layout(old) != _layout(new):
        return "layout"
    return "" if _same_bytes(a, b, old, new) else "value"


def _layout(one: Held) -> str:
    return json.dumps([one.kind["shape"], one.kind.get("stride"), {**one.sharded, "local": None}], sort_keys=True)


def _same_bytes(a: _Side, b: _Side, old: Held, new: Held) -> bool:
    if a.algorithm == b.algorithm:
        if old.kind["at"] == new.kind["at"]:
            return True
        if a.has_own_chunks(old) and b.has_own_chunks(new):
            return False
    return a.bytes_of(old) == b.bytes_of(new)


def _diff(a: CheckpointFound, b: CheckpointFound, changes: Sequence[Change], same: int, rows: int) -> RenderableType:
    head = f"{a.name} and {b.name} "
    if not changes:
        return Text(f"{head}hold the same, in {same} tensors and values", style="bold")
    parts: list[RenderableType] = [Text(f"{head}differ in {len(changes)} of {len(changes) + same} tensors and values", style="bold")]
    if a.world_size != b.world_size:
        parts.append(Text(f"They were written by {a.world_size} and {b.world_size} ranks, and are compared rank by rank."))
    ranks = max(a.world_size, b.world_size)
    for title, some in (("Tensors", [one for one in changes if one.is_of_tensor]), ("Values", [one for one in changes if not one.is_of_tensor])):
        if some:
            table = new_grid()
            for change in some[:rows]:
                name = change.one.name if ranks == 1 else f"{change.one.name} (rank {change.one.rank})"
                text = one_line(change.said())
                table.add_row(Text(one_line(name)), Text(shortened(text, 100 if rows == ROWS else sys.maxsize)))
            parts += [Text(f"\n{title}", style="bold"), table, *and_more(len(some) - rows)]
    return Group(*parts)
