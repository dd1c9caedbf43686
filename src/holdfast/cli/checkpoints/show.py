"""`holdfast checkpoint show`: what one checkpoint is made of: pieces, tensors, plain values."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.checkpoint.found import CheckpointFound
from holdfast.cli.checkpoints.drawing import ROWS, and_more, new_grid, new_table, numbers_text, print_json, shortened, size_text, when_text
from holdfast.cli.checkpoints.held import Held, holdings, plain_text
from holdfast.cli.checkpoints.listing import about_json
from holdfast.cli.checkpoints.place import InStore, WhereOrNewest, Which, choose, place_of
from holdfast.cli.common import AsJson, State
from holdfast.cli.screen import Screen
from holdfast.cli.words import count, one_line

_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")


def show(
    where: WhereOrNewest = "",
    which: Which = "newest",
    everything: Annotated[bool, typer.Option("--all", help="Every tensor and every value.")] = False,
    in_store: InStore = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show what a checkpoint holds."""
    place = place_of(where, state, in_store=in_store, newest=True)
    found = choose(place, which)
    place.bring_notes(found)
    held = holdings(found)
    if as_json:
        tensors, values = ([one.as_json() for one in held if bool(one.dtype) is is_a_tensor] for is_a_tensor in (True, False))
        shared_bytes = found.manifest.size_bytes - found.manifest.own_bytes
        holds = {"homes": _homes(found), "pieces": _pieces(held), "tensors": tensors, "values": values}
        print_json(about_json(place, found) | {"shared_bytes": shared_bytes} | holds)
    else:
        Screen().print(_show(found, held, ROWS if not everything else sys.maxsize))


def _homes(found: CheckpointFound) -> dict[str, int]:
    """How many bytes lie in the directories of which older checkpoints."""
    homes: dict[str, int] = {}
    for chunk in found.manifest.chunks:
        if chunk.home != found.name:
            homes[chunk.home] = homes.get(chunk.home, 0) + chunk.size_bytes
    return homes


def _pieces(held: Iterable[Held]) -> list[dict[str, Any]]:
    pieces: dict[str, dict[str, Any]] = {}
    for one in held:
        if one.part == "pieces":
            name = one.name.partition(".")[0]
            piece = pieces.setdefault(name, {"name": name, "shared": one.shared, "ranks": set(), "tensors": 0, "values": 0, "bytes": 0})
            piece["ranks"].add(one.rank)
            piece["tensors" if one.dtype else "values"] += 1
            piece["bytes"] += one.size_bytes
    return [piece | {"ranks": len(piece["ranks"])} for piece in sorted(pieces.values(), key=lambda piece: -piece["bytes"])]


def _show(found: CheckpointFound, held: Sequence[Held], rows: int) -> RenderableType:
    manifest, homes = found.manifest, _homes(found)
    facts = new_grid()
    facts.add_row("saved", f"{when_text(manifest.at)}, by {count(manifest.world_size, 'rank')} of generation {manifest.generation}")
    facts.add_row("size", f"{size_text(manifest.size_bytes)} in {count(len(manifest.chunks), 'chunk')}")
    shared = f", {size_text(sum(homes.values()))} shared with {', '.join(sorted(homes))}" if homes else ", nothing shared with older ones"
    facts.add_row("written", f"{size_text(manifest.own_bytes)}{shared}")
    numbers = numbers_text(manifest.numbers or {}, ", ", ours=rows > ROWS)
    if numbers:
        facts.add_row("numbers", numbers)
    drawn = sorted({one.name.split(".")[1] for one in held if one.part == "randomness" and "." in one.name})
    if drawn:
        facts.add_row("randomness", ", ".join(drawn))
    pieces = new_table("piece", ("tensors", "right"), ("values", "right"), ("bytes", "right"), "whose")
    for piece in _pieces(held):
        whose = "shared by all ranks" if piece["shared"] and manifest.world_size > 1 else f"of {count(piece['ranks'], 'rank')}"
        pieces.add_row(Text(one_line(piece["name"])), str(piece["tensors"]), str(piece["values"]), size_text(piece["bytes"]), whose)
    parts: list[RenderableType] = [Text(f"{found.name}: step {manifest.step:,}", style="bold"), facts, Text(""), pieces]
    tensors = [one for one in held if one.dtype and one.part == "pieces"]
    if tensors:
        parts += [Text("\nTensors, largest first", style="bold"), *_tensor_table(tensors, rows)]
    values = [one for one in held if not one.dtype and one.part != "randomness"]
    if values:
        parts += [Text("\nValues", style="bold"), *_value_table(values, rows, ranks=manifest.world_size)]
    return Group(*parts)


def _tensor_table(tensors: Iterable[Held], rows: int) -> list[RenderableType]:
    """Alike ones once, with a star for the numbers in which their names differ; the same one on several ranks once."""
    alike: dict[tuple[str, str, tuple[int, ...], bool], list[Held]] = {}
    for one in tensors:
        name = one.name if rows == sys.maxsize else _NUMBER.sub("*", one.name)
        alike.setdefault((name, one.dtype, one.shape, bool(one.sharded)), []).append(one)
    table = new_table("name", ("×", "right"), "dtype", "shape", ("bytes", "right"))
    largest_first = sorted(alike.items(), key=lambda item: -sum(one.size_bytes for one in item[1]))
    for (name, dtype, shape, sharded), some in largest_first[:rows]:
        names = {one.name for one in some}
        size = sum(one.size_bytes for one in some)
        said = f"{'×'.join(map(str, shape)) or 'one number'}{', sharded' if sharded else ''}"
        table.add_row(Text(one_line(name if len(names) > 1 else min(names))), str(len(names)), dtype, said, size_text(size))
    return [table, *and_more(len(largest_first) - rows)]


def _value_table(values: Sequence[Held], rows: int, *, ranks: int) -> list[RenderableType]:
    table = new_grid()
    for one in values[:rows]:
        text = one_line(plain_text(one.value))
        name = one.name if ranks == 1 or one.shared else f"{one.name} (rank {one.rank})"
        table.add_row(Text(one_line(name)), Text(shortened(text, 60 if rows == ROWS else sys.maxsize)))
    return [table, *and_more(len(values) - rows)]
