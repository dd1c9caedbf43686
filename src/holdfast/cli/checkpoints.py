"""`holdfast checkpoint`: what lies in a directory of checkpoints, whether it is sound, what may go, and how it gets there and away.

    list      one line a checkpoint, newest first, and what is left of others
    show      what one is made of: pieces, tensors, plain values
    verify    read every byte
    prune     remove what no rule wants
    diff      what differs between two
    export    to torch, safetensors or DCP
    import    from those

All but export, import and the values of diff need no torch: what a checkpoint holds is in its notes, which are JSON.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, ParamSpec

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint.chunks import read_chunk, several_at_a_time, verify_chunk
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.document import is_sharded, is_tensor
from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch
from holdfast.checkpoint.exchange import Format, Told, export_checkpoint, import_checkpoint, need_torch
from holdfast.checkpoint.found import CheckpointFound, list_complete, list_directories, look_at
from holdfast.checkpoint.layout import CHUNKS, MANIFEST, RETIRED, Chunk, parse_directory_name
from holdfast.checkpoint.plain import KIND
from holdfast.checkpoint.read import note_of
from holdfast.checkpoint.remove import Retention, kept, prune
from holdfast.checkpoint.state import Note, get_tensors
from holdfast.cli import AsJson, State
from holdfast.cli.job import hold, is_held, known_job
from holdfast.cli.words import count, duration, one_line
from holdfast.errors import HoldfastError, UserError
from holdfast.launch.layout import JobDirectory
from holdfast.settings import state_root

_ROWS: Final = 20  # Of a table that may be long; --all shows the rest.
_READERS: Final = 8
_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")

Parameters = ParamSpec("Parameters")
Where = Annotated[str, typer.Argument(metavar="WHERE", help="A job's name, or a directory of checkpoints.")]
Which = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's name such as step-00000120.g3, a step, or `newest`.")]

app = typer.Typer()


def _command(name: str) -> Callable[[Callable[Parameters, None]], Callable[Parameters, None]]:
    """A command in which the disk may fail: that is said in a sentence. A pipe that nobody reads any more is not the disk."""

    def register(body: Callable[Parameters, None]) -> Callable[Parameters, None]:
        @functools.wraps(body)
        def told(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
            try:
                body(*args, **kwargs)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise HoldfastError(f"{error.filename or 'a file'} cannot be read or written: {error.strerror or error}.") from error

        return app.command(name)(told)

    return register


# Which checkpoints, and which one of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory of checkpoints, and the job it belongs to if it does."""

    said: str
    path: Path
    job: JobDirectory | None = None

    def not_running(self, verb: str) -> None:
        if self.job is not None and is_held(self.job):
            raise UserError(f"job {self.job.job!r} runs, and nobody may {verb} its checkpoints meanwhile: `holdfast stop {self.job.job}` first.")

    def held(self) -> contextlib.AbstractContextManager[Any]:
        """Nobody can start the job until this is left."""
        return hold(self.job) if self.job is not None else contextlib.nullcontext()


def _place(said: str, state: Path | None, *, new: bool = False) -> Place:
    root, path = state_root(state), Path(said)
    job = JobDirectory(root / "jobs" / said)
    if os.sep not in said and job.journal.exists():
        return Place(said=said, path=job.checkpoints, job=job)
    if parse_directory_name(path.name) is not None:
        raise UserError(f"{said} is the name of one checkpoint: expected the directory that it is in. Give {path.parent} and then {path.name}.")
    inside, above = JobDirectory(path), JobDirectory(path.absolute().parent)
    if inside.journal.exists():
        return Place(said=said, path=inside.checkpoints, job=inside)
    if path.is_dir() or (new and os.sep in said and not path.exists()):
        return Place(said=said, path=path, job=above if above.journal.exists() and path.name == above.checkpoints.name else None)
    if path.exists():
        raise UserError(f"{said} is a file: expected a job's name or a directory of checkpoints.")
    if os.sep in said:
        raise UserError(f"there is no directory {said}: expected one with checkpoints in it, or a job's name.")
    try:
        known_job(root, said)
    except UserError as error:
        raise UserError(f"{error}; {'for a new directory give a path' if new else 'and there is no directory of that name'}: ./{said}") from None
    raise AssertionError(f"job {said} is known and was not found")


def _choose(place: Place, which: str) -> CheckpointFound:
    """The checkpoint that is meant; raises UserError with what there is instead."""
    complete = list_complete(place.path)
    path = place.path / which
    if parse_directory_name(which) is not None and path.is_dir():
        if (path / RETIRED).exists() and not (path / MANIFEST).exists():
            raise UserError(f"checkpoint {which} was removed, and only chunks that others need are left of it. {_instead(complete, which)}")
        return look_at(path)
    if not complete:
        more = "; what is there cannot be used, and `holdfast checkpoint list` says why" if list_directories(place.path) else ""
        raise UserError(f"there is no complete checkpoint in {place.said}{more}.")
    if which == "newest":
        return complete[0]
    chosen = next((one for one in complete if which.isdecimal() and one.step == int(which)), None)
    if chosen is None:
        raise UserError(f"there is no checkpoint {which!r} in {place.said}. {_instead(complete, which)}")
    return chosen


def _instead(complete: Sequence[CheckpointFound], which: str) -> str:
    if not complete:
        return "There is no other."
    step = int(which) if which.isdecimal() else (parse_directory_name(which) or (None,))[0]
    if step is not None:
        near = min(complete, key=lambda one: abs(one.step - step)).name
    else:
        near = next(iter(get_close_matches(which, [one.name for one in complete], n=1)), complete[0].name)
    newest = complete[0].name
    return f"The newest is {newest}" + (f", the nearest {near}." if near != newest else ".")


# list.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A directory with a checkpoint's name: a complete checkpoint, or why it is none."""

    path: Path
    found: CheckpointFound | None = None
    status: str = "complete"
    because: str = ""

    @property
    def bytes_there(self) -> int:
        with contextlib.suppress(OSError):
            return sum(file.stat().st_size for file in (self.path / CHUNKS).iterdir())
        return 0

    def as_json(self) -> dict[str, Any]:
        step, generation = parse_directory_name(self.path.name) or (0, 0)
        row: dict[str, Any] = {"name": self.path.name, "status": self.status, "step": step, "generation": generation, "bytes_there": self.bytes_there}
        return row | ({"because": self.because} if self.found is None else _about(self.found))


def _about(found: CheckpointFound) -> dict[str, Any]:
    manifest = found.manifest
    return {
        "name": found.name, "path": str(found.path), "step": manifest.step, "generation": manifest.generation,
        "ranks": manifest.world_size, "at": manifest.at, "size_bytes": manifest.size_bytes, "own_bytes": manifest.own_bytes,
        "chunks": len(manifest.chunks), "algorithm": manifest.algorithm, "numbers": manifest.numbers or {},
    }  # fmt: skip


def _rows(checkpoints: Path) -> list[_Row]:
    newest_first = sorted(list_directories(checkpoints), key=lambda path: (parse_directory_name(path.name) or (0, 0))[::-1], reverse=True)
    return [_row(path) for path in newest_first]


def _row(path: Path) -> _Row:
    try:
        return _Row(path=path, found=look_at(path))
    except (CheckpointCorrupt, CheckpointMismatch) as error:
        because = str(error.__cause__ or error)  # What to restore instead is not the question here.
    except OSError as error:
        because = f"its manifest cannot be read: {error.strerror}"
    if (path / MANIFEST).exists():
        return _Row(path=path, status="unreadable", because=because)
    if (path / RETIRED).exists():
        return _Row(path=path, status="retired", because="removed; these chunks are needed by others")
    return _Row(path=path, status="torn", because=because)


@_command("list")
def list_(where: Where, state: State = None, as_json: AsJson = False) -> None:
    """List checkpoints, newest first."""
    place = _place(where, state)
    rows = _rows(place.path)
    if as_json:
        _print_json([row.as_json() for row in rows])
    elif not rows:
        print(f"No checkpoints in {place.said} yet.")
    else:
        Console().print(_list_table(rows))


def _list_table(rows: Sequence[_Row]) -> RenderableType:
    table = _table("checkpoint", ("step", "right"), ("gen", "right"), ("ranks", "right"), "when", ("size", "right"), ("written", "right"), "numbers")
    others = _grid()
    for row in rows:
        if row.found is None:
            others.add_row(row.path.name, "kept for others" if row.status == "retired" else row.status, _size(row.bytes_there), Text(one_line(row.because)))
            continue
        manifest = row.found.manifest
        table.add_row(
            row.path.name, f"{manifest.step:,}", str(manifest.generation), str(manifest.world_size), _when(manifest.at), _size(manifest.size_bytes),
            _size(manifest.own_bytes), Text(_numbers(manifest.numbers or {}, "\n")),
        )  # fmt: skip
    parts: list[RenderableType] = [table] if table.row_count else []
    if others.row_count:
        parts += [Text("\nNo checkpoints, or none any more", style="bold"), others]
    return Group(*parts)


# show. What a checkpoint holds is read from its notes (`state.py`, `document.py`) without making anything of it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One thing that a rank saved: a tensor, or a plain value as its document has it."""

    rank: int
    part: str  # pieces, progress or randomness.
    name: str
    shared: bool = False
    dtype: str = ""  # Of a tensor; a plain value has none.
    shape: tuple[int, ...] = ()  # Of the whole, if it is sharded.
    kind: Note = field(default_factory=dict)  # How the part that this rank holds lies on the disk.
    sharded: Mapping[str, Any] = field(default_factory=dict)
    value: Any = None

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.rank, self.part, self.name)

    @property
    def size_bytes(self) -> int:
        return sum(size for _, _, size in self.kind.get("at", ()))

    def as_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"rank": self.rank, "part": self.part, "name": self.name, "shared": self.shared}
        if not self.dtype:
            return row | {"value": self.value}
        row |= {"dtype": self.dtype, "shape": list(self.shape), "bytes": self.size_bytes}
        return row | ({"sharded": {name: item for name, item in self.sharded.items() if name != "local"}} if self.sharded else {})


def holdings(found: CheckpointFound) -> list[Held]:
    """All that a checkpoint holds, rank by rank; raises CheckpointCorrupt."""
    held: list[Held] = []
    for rank in range(found.world_size):
        try:
            notes = note_of(found, rank)
            document, tensors = notes["own"]["document"], notes["own"]["tensors"]
            for part in ("pieces", "progress", "randomness"):
                held += (_held(rank, part, name, leaf, tensors) for name, leaf in _leaves(document[part], "" if part == "pieces" else part))
            if "shared" in notes:
                shared = notes["shared"]
                held += (_held(rank, "pieces", name, leaf, shared["tensors"], shared=True) for name, leaf in _leaves(shared["document"], ""))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointCorrupt(f"checkpoint {found.name} cannot be read: the note of rank {rank} makes no sense: {error!r}.") from error
    return held


def _leaves(document: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What is in a document, each with its name. A list of plain values is one of them: nobody wants to read its items line by line."""
    inside = _inside(document)
    if inside is None:
        yield name, document
    else:
        for key, item in inside:
            yield from _leaves(item, f"{name}.{key}" if name else key)


def _inside(document: Any) -> list[tuple[str, Any]] | None:
    """The named parts of a container; None for what is a leaf."""
    if not isinstance(document, (dict, list)) or not document or (isinstance(document, dict) and KIND in document):
        return None
    if isinstance(document, dict) and "$" not in document:
        return list(document.items())
    if isinstance(document, dict) and document["$"] in ("dict", "ordered", "counter"):
        return [(_plain_text(key), item) for key, item in document["of"]] or None
    items = document if isinstance(document, list) else document.get("of", [])
    return [(str(index), item) for index, item in enumerate(items)] if any(is_tensor(item) or _inside(item) is not None for item in items) else None


def _held(rank: int, part: str, name: str, leaf: Any, tensors: Sequence[Note], *, shared: bool = False) -> Held:
    if is_tensor(leaf):
        kind = tensors[leaf["n"]]
        return Held(rank=rank, part=part, name=name, shared=shared, dtype=kind["dtype"], shape=tuple(kind["shape"]), kind=kind)
    if is_sharded(leaf):
        kind = tensors[leaf["local"]["n"]]
        return Held(rank=rank, part=part, name=name, shared=shared, dtype=kind["dtype"], shape=tuple(leaf["shape"]), kind=kind, sharded=leaf)
    if isinstance(leaf, dict) and KIND in leaf:
        kind = tensors[leaf["tensor"]["n"]]
        return Held(rank=rank, part=part, name=name, shared=shared, dtype=f"array {leaf['dtype']}", shape=tuple(leaf["shape"]), kind=kind)
    return Held(rank=rank, part=part, name=name, shared=shared, value=leaf)


def _plain_text(document: Any) -> str:
    """A plain value as a person writes it."""
    match document:
        case list():
            return f"[{', '.join(map(_plain_text, document))}]"
        case {"$": "tuple", "of": [one]}:
            return f"({_plain_text(one)},)"
        case {"$": "tuple" | "set" | "size" as kind, "of": [*items]}:
            inside = ", ".join(map(_plain_text, items))
            return f"{{{inside}}}" if kind == "set" else f"({inside})"
        case {"$": "bytes", "is": str(text)}:
            return f"{len(text) * 3 // 4} bytes"
        case {"$": "complex", "is": [real, imaginary]}:
            return f"{real}+{imaginary}j"
        case {"$": _, "is": item}:
            return str(item)
        case {"$": _, "of": []}:
            return "{}"
        case _:
            return str(document)


@_command("show")
def show(
    where: Where,
    which: Which = "newest",
    everything: Annotated[bool, typer.Option("--all", help="Every tensor and every value.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show what a checkpoint holds."""
    found = _choose(_place(where, state), which)
    held = holdings(found)
    if as_json:
        tensors, values = ([one.as_json() for one in held if bool(one.dtype) is is_a_tensor] for is_a_tensor in (True, False))
        shared_bytes = found.manifest.size_bytes - found.manifest.own_bytes
        _print_json(_about(found) | {"shared_bytes": shared_bytes, "homes": _homes(found), "pieces": _pieces(held), "tensors": tensors, "values": values})
    else:
        Console().print(_show(found, held, _ROWS if not everything else sys.maxsize))


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
    facts = _grid()
    facts.add_row("saved", f"{_when(manifest.at)}, by {count(manifest.world_size, 'rank')} of generation {manifest.generation}")
    facts.add_row("size", f"{_size(manifest.size_bytes)} in {count(len(manifest.chunks), 'chunk')}")
    shared = f", {_size(sum(homes.values()))} shared with {', '.join(sorted(homes))}" if homes else ", nothing shared with older ones"
    facts.add_row("written", f"{_size(manifest.own_bytes)}{shared}")
    if manifest.numbers:
        facts.add_row("numbers", _numbers(manifest.numbers, ", "))
    drawn = sorted({one.name.split(".")[1] for one in held if one.part == "randomness" and "." in one.name})
    if drawn:
        facts.add_row("randomness", ", ".join(drawn))
    pieces = _table("piece", ("tensors", "right"), ("values", "right"), ("bytes", "right"), "whose")
    for piece in _pieces(held):
        whose = "shared by all ranks" if piece["shared"] and manifest.world_size > 1 else f"of {count(piece['ranks'], 'rank')}"
        pieces.add_row(Text(one_line(piece["name"])), str(piece["tensors"]), str(piece["values"]), _size(piece["bytes"]), whose)
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
    table = _table("name", ("×", "right"), "dtype", "shape", ("bytes", "right"))
    largest_first = sorted(alike.items(), key=lambda item: -sum(one.size_bytes for one in item[1]))
    for (name, dtype, shape, sharded), some in largest_first[:rows]:
        names = {one.name for one in some}
        size = sum(one.size_bytes for one in some)
        said = f"{'×'.join(map(str, shape)) or 'one number'}{', sharded' if sharded else ''}"
        table.add_row(Text(one_line(name if len(names) > 1 else min(names))), str(len(names)), dtype, said, _size(size))
    return [table, *_more(len(largest_first) - rows)]


def _value_table(values: Sequence[Held], rows: int, *, ranks: int) -> list[RenderableType]:
    table = _grid()
    for one in values[:rows]:
        text = one_line(_plain_text(one.value))
        name = one.name if ranks == 1 or one.shared else f"{one.name} (rank {one.rank})"
        table.add_row(Text(one_line(name)), Text(text if len(text) <= 60 or rows == sys.maxsize else f"{text[:59]}…"))
    return [table, *_more(len(values) - rows)]


def _more(number: int) -> list[RenderableType]:
    return [Text(f"… and {number} more: --all shows them", style="dim")] if number > 0 else []


# verify.


@_command("verify")
def verify(
    where: Where,
    which: Which = "newest",
    everything: Annotated[bool, typer.Option("--all", help="Every complete checkpoint; what several of them share is read once.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte, and say what is damaged. The exit code is 1 when something is."""
    place = _place(where, state)
    rows = _rows(place.path) if everything else [_row_of(place, which)]
    checkpoints = [row.found for row in rows if row.found is not None]
    if everything and not checkpoints:
        _choose(place, "newest")
    began = time.monotonic()
    with Bar(quiet=as_json) as told:
        damaged = _read_all(place.path, checkpoints, told)
    seconds = max(time.monotonic() - began, 1e-9)
    size = sum(chunk.size_bytes for chunk in {chunk.path: chunk for one in checkpoints for chunk in one.manifest.chunks}.values())
    unsound = {one.name: _damages(one, damaged) for one in checkpoints if any(chunk.path in damaged for chunk in one.manifest.chunks)}
    # Among all there may be torn ones and retired ones, which is as it should be; one that was asked for should be a checkpoint.
    useless = [row for row in rows if row.found is None and (row.status == "unreadable" or not everything)]
    unsound |= {row.path.name: [{"chunk": None, "because": row.because, "holds": []}] for row in useless}
    instead = _use_instead(place, unsound, damaged, read={one.name for one in checkpoints})
    if as_json:
        names = [row.path.name for row in rows if row.found is not None or row.path.name in unsound]
        said = [{"name": name, "sound": name not in unsound, "damaged": unsound.get(name, [])} for name in names]
        _print_json({"sound": not unsound, "bytes": size, "seconds": seconds, "checkpoints": said, "instead": instead and instead.name})
    else:
        _say_verified(checkpoints, unsound, instead)
        print(f"read {_size(size)} in {duration(seconds)}, {size / seconds / 1e9:.2f} GB/s")
    raise typer.Exit(1 if unsound else 0)


def _row_of(place: Place, which: str) -> _Row:
    """What is meant, also if it is no checkpoint: that it cannot be used is an answer here."""
    path = place.path / which
    if parse_directory_name(which) is not None and path.is_dir():
        return _row(path)
    found = _choose(place, which)
    return _Row(path=found.path, found=found)


def _read_all(directory: Path, checkpoints: Iterable[CheckpointFound], told: Told) -> dict[str, str]:
    """What is wrong with each chunk that is not as it was written, by its path below the directory. Each is read once."""
    chunks = {chunk.path: (chunk, one.manifest.algorithm) for one in checkpoints for chunk in one.manifest.chunks}
    total = sum(chunk.size_bytes for chunk, _ in chunks.values())

    def check(item: tuple[Chunk, str]) -> tuple[Chunk, str]:
        try:
            verify_chunk(directory, *item)
        except CheckpointCorrupt as corrupt:
            return item[0], str(corrupt)
        return item[0], ""

    damaged = {}
    for chunk, because in several_at_a_time(check, chunks.values(), workers=_READERS):
        told("reading", chunk.size_bytes, total)
        if because:
            damaged[chunk.path] = because
    return damaged


def _damages(found: CheckpointFound, damaged: Mapping[str, str]) -> list[dict[str, Any]]:
    bad = {chunk.digest: chunk.path for chunk in found.manifest.chunks if chunk.path in damaged}
    holds: dict[str, list[str]] = {digest: [f"the state of rank {rank}" for rank, one in enumerate(found.manifest.states) if one == digest] for digest in bad}
    with contextlib.suppress(CheckpointCorrupt):  # Then a note is among what is damaged, which is said already.
        for one in holdings(found):
            for digest in {digest for digest, _, _ in one.kind.get("at", ())} & bad.keys():
                holds[digest].append(one.name)
    return [{"chunk": path, "because": damaged[path], "holds": holds[digest]} for digest, path in bad.items()]


def _use_instead(place: Place, unsound: Mapping[str, Any], damaged: Mapping[str, str], *, read: set[str]) -> CheckpointFound | None:
    """The newest that refers to nothing that is damaged; one that was read is preferred to one that was not."""
    if not unsound:
        return None
    fine = [one for one in list_complete(place.path) if one.name not in unsound and not any(chunk.path in damaged for chunk in one.manifest.chunks)]
    return next((one for one in fine if one.name in read), next(iter(fine), None))


def _say_verified(checkpoints: Iterable[CheckpointFound], unsound: Mapping[str, list[dict[str, Any]]], instead: CheckpointFound | None) -> None:
    sound = [one.name for one in checkpoints if one.name not in unsound]
    if sound:
        print(f"sound: {', '.join(sound)}")
    for name, damages in unsound.items():
        print(f"{'damaged' if any(one['chunk'] for one in damages) else 'unusable'}: {name}")
        for one in damages:
            held = ", ".join(one["holds"][:3]) + (f" and {len(one['holds']) - 3} more" if len(one["holds"]) > 3 else "")
            print(f"  {one_line(one['because'])}" + (f" It holds {one_line(held)}." if held else ""))
    if unsound:
        print(f"use {instead.name} instead" if instead is not None else "there is no other to use instead: a run would have to start from the beginning")


# prune.


@_command("prune")
def prune_(
    where: Where,
    last: Annotated[int, typer.Option(min=1, help="Keep the newest so many; two are kept in any case.")],
    every: Annotated[int, typer.Option(min=0, help="Keep those of steps divisible by this.", show_default="none")] = 0,
    best: Annotated[int, typer.Option(min=0, help="Keep so many with the lowest value of the metric.", show_default="none")] = 0,
    metric: Annotated[str, typer.Option(help="What is best is judged by this; a leading minus asks for the highest.")] = "loss",
    older_s: Annotated[float, typer.Option(min=0.0, help="Keep one that is older than so many seconds.", show_default="none")] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Remove the checkpoints that no rule wants."""
    place, now = _place(where, state), time.time()
    place.not_running("prune")
    newest = _choose(place, "newest")
    line = list_complete(place.path)
    if best and not any(metric.removeprefix("-") in (one.manifest.numbers or {}) for one in line):
        known = sorted({name for one in line for name in one.manifest.numbers or {}})
        raise UserError(f"no checkpoint in {place.said} carries the number {metric.removeprefix('-')!r}; they carry {', '.join(known) or 'none'}.")
    # All that is there counts as one line: whoever prunes by hand sees all of it in the list.
    retention = Retention(last=last, every=every, best=best, metric=metric, older_s=older_s, restored=newest.age_key)
    wanted = kept(line, retention, now=now)
    doomed = [one for one in line if one.name not in wanted]
    freed = _freed(line, wanted)
    if not as_json:
        _say_doomed(doomed, len(wanted), freed)
    removed = not dry_run and bool(doomed) and (yes or _confirmed(len(doomed)))
    if removed:
        with place.held():
            prune(Disk(), place.path, retention, generation=newest.generation, now=now)
    if as_json:
        names = {"doomed": [one.name for one in doomed], "kept": [one.name for one in line if one.name in wanted]}
        _print_json({**names, "freed_bytes": freed, "removed": removed})
    elif doomed:
        print(f"{'removed' if removed else 'nothing was removed:'} {count(len(doomed), 'checkpoint')}{'' if removed else ' would go'}")


def _freed(line: Iterable[CheckpointFound], wanted: set[str]) -> int:
    """Bytes that nobody refers to once only the wanted ones are left."""
    chunks = {chunk.path: chunk.size_bytes for one in line if one.name not in wanted for chunk in one.manifest.chunks}
    needed = {chunk.path for one in line if one.name in wanted for chunk in one.manifest.chunks}
    return sum(size for path, size in chunks.items() if path not in needed)


def _say_doomed(doomed: Sequence[CheckpointFound], stay: int, freed: int) -> None:
    if not doomed:
        print(f"nothing to remove: all {stay} are wanted by a rule")
        return
    for one in doomed:
        print(f"goes: {one.name}, {_size(one.manifest.size_bytes)}" + (f", {_numbers(one.manifest.numbers, ', ')}" if one.manifest.numbers else ""))
    print(f"{count(len(doomed), 'checkpoint')} of {len(doomed) + stay}; that frees {_size(freed)}")


def _confirmed(number: int) -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    return typer.confirm(f"Remove {count(number, 'checkpoint')}?", err=True)


# diff.


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
            return f"{self.what}: {one.dtype} {list(one.shape)}" if one.dtype else f"{self.what}: {_plain_text(one.value)}"
        if not self.is_of_tensor:
            return f"{_plain_text(self.old.value)} → {_plain_text(self.new.value)}"
        match self.what:
            case "dtype" | "shape":
                return f"{self.old.dtype} {list(self.old.shape)} → {self.new.dtype} {list(self.new.shape)}"
            case "layout":
                return "lies otherwise, in memory or over the ranks; not compared"
            case _:
                return "changed" + (f", by at most {self.max_abs:.3g}" if self.max_abs is not None else "")


@_command("diff")
def diff(
    where: Where,
    old: Annotated[str, typer.Argument(metavar="A", help="A checkpoint's name, a step, or `newest`.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The one to compare it with.")],
    values: Annotated[bool, typer.Option("--values", help="Also by how much tensors differ at most. Reads them, and needs torch.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Every difference.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Say what differs between two checkpoints. The exit code is 0 when nothing does, and 1 when something does."""
    place = _place(where, state)
    one, other = (_choose(place, which) for which in (old, new))
    if values:
        need_torch()
    changes, same = compare(one, other, values=values)
    if as_json:
        _print_json({"a": one.name, "b": other.name, "same": same, "changes": [change.as_json() for change in changes]})
    else:
        Console().print(_diff(one, other, changes, same, _ROWS if not everything else sys.maxsize))
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
            table = _grid()
            for change in some[:rows]:
                name = change.one.name if ranks == 1 else f"{change.one.name} (rank {change.one.rank})"
                text = one_line(change.said())
                table.add_row(Text(one_line(name)), Text(text if len(text) <= 100 or rows == sys.maxsize else f"{text[:99]}…"))
            parts += [Text(f"\n{title}", style="bold"), table, *_more(len(some) - rows)]
    return Group(*parts)


# export, import.


@_command("export")
def export(
    where: Where,
    to: Annotated[Path, typer.Option("--to", help="The file to write; for dcp a directory.")],
    format: Annotated[Format, typer.Option("--format", help="How to write it.")],
    which: Which = "newest",
    rank: Annotated[int | None, typer.Option(min=0, help="Only what this rank holds.", show_default="sharded tensors put together, else rank 0")] = None,
    piece: Annotated[str | None, typer.Option(help="Only this piece; safetensors then has its names alone.", show_default="all")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint as others read it."""
    found = _choose(_place(where, state), which)
    with Bar(quiet=as_json) as told:
        done = export_checkpoint(found, to, format, rank=rank, piece=piece, force=force, told=told)
    if as_json:
        about = {"checkpoint": found.name, "step": found.step, "format": str(format), "path": str(to)}
        _print_json(about | {"tensors": done.tensors, "bytes": done.size_bytes, "remarks": list(done.remarks)})
    else:
        print(f"{found.name} is in {to}: {count(done.tensors, 'tensor')}, {_size(done.size_bytes)}")
        _say_remarks(done.remarks)


@_command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE_OR_DIRECTORY", help="What torch.save, safetensors or torch.distributed.checkpoint wrote.")],
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="A job's name, or a directory for checkpoints.")],
    format: Annotated[Format | None, typer.Option("--format", help="What it is.", show_default="as it looks")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="The step to go on from.", show_default="what the file says, or 0")] = None,
    piece: Annotated[str | None, typer.Option(help="The piece that a bare state becomes; of several, the one to take.", show_default="model")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Read it even if that can run code in it: you know who wrote it.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint of what others wrote, from which a run goes on."""
    place = _place(to, state, new=True)
    place.not_running("import into")
    with place.held(), Bar(quiet=as_json) as told:
        done = import_checkpoint(source, place.path, format=format, step=step, piece=piece, trust=trust, told=told)
    if as_json:
        about = {"checkpoint": done.name, "path": str(place.path / done.name), "step": done.step, "pieces": list(done.pieces)}
        _print_json(about | {"tensors": done.tensors, "bytes": done.size_bytes, "remarks": list(done.remarks)})
    else:
        print(f"{source} is {done.name} in {place.said}: {', '.join(map(one_line, done.pieces))}; {count(done.tensors, 'tensor')}, {_size(done.size_bytes)}")
        _say_remarks(done.remarks)
        print(f"a run with guard({', '.join(f'{one_line(name)}=…' for name in done.pieces)}) goes on from step {done.step}")


def _say_remarks(remarks: Iterable[str]) -> None:
    for remark in remarks:
        print(f"  {one_line(remark)}")


# Small hands.


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


def _size(size_bytes: float) -> str:
    """412 B, 8.1 kB, 42 MB, 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 999.5:
            return f"{size_bytes:.1f} {unit}" if size_bytes < 9.95 and unit != "B" else f"{size_bytes:.0f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def _when(at: float) -> str:
    """In few columns: this year's without the year."""
    if not at:
        return "–"
    then = datetime.fromtimestamp(at)
    return then.strftime("%b %d %H:%M" if then.year == datetime.now().year else "%Y-%m-%d")


def _numbers(numbers: Mapping[str, float], between: str) -> str:
    return between.join(f"{one_line(name)} {value:.4g}" for name, value in numbers.items())


def _table(*columns: str | tuple[str, JustifyMethod]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, show_edge=False, pad_edge=False, header_style="dim")
    for column in columns:
        name = column if isinstance(column, str) else column[0]
        table.add_column(name, justify="left" if isinstance(column, str) else column[1], overflow="fold", no_wrap=name not in ("name", "numbers"))
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", overflow="fold")
    return table


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
