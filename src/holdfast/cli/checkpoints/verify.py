"""`holdfast checkpoint verify`: read every byte, and say what is damaged and what to use instead."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import typer

from holdfast.checkpoint.chunks import several_at_a_time
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.found import CheckpointFound, list_complete
from holdfast.checkpoint.layout import Chunk, parse_directory_name
from holdfast.checkpoint.told import Told
from holdfast.cli.checkpoints.drawing import Bar, print_json, size_text
from holdfast.cli.checkpoints.held import holdings
from holdfast.cli.checkpoints.listing import Row, row_of, rows_in
from holdfast.cli.checkpoints.place import InStore, Place, WhereOrNewest, Which, choose, place_of
from holdfast.cli.common import AsJson, State
from holdfast.cli.words import duration, one_line

_READERS: Final = 8


def verify(
    where: WhereOrNewest = "",
    which: Which = "newest",
    everything: Annotated[bool, typer.Option("--all", help="Every complete checkpoint; what several of them share is read once.")] = False,
    in_store: InStore = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte, and say what is damaged. The exit code is 1 when something is."""
    place = place_of(where, state, in_store=in_store, newest=True)
    rows = rows_in(place.path) if everything else [_row_meant(place, which)]
    checkpoints = [row.found for row in rows if row.found is not None]
    if everything and not checkpoints:
        choose(place, "newest")
    began = time.monotonic()
    with Bar(quiet=as_json) as told:
        damaged = _read_all(place, checkpoints, told)
    seconds = max(time.monotonic() - began, 1e-9)
    size = sum(chunk.size_bytes for chunk in {chunk.path: chunk for one in checkpoints for chunk in one.manifest.chunks}.values())
    unsound = {one.name: _damages(place, one, damaged) for one in checkpoints if any(chunk.path in damaged for chunk in one.manifest.chunks)}
    # Among all there may be torn ones and retired ones, which is as it should be; one that was asked for should be a checkpoint.
    useless = [row for row in rows if row.found is None and (row.status == "unreadable" or not everything)]
    unsound |= {row.path.name: [{"chunk": None, "because": row.because, "holds": []}] for row in useless}
    instead = _use_instead(place, unsound, damaged, read={one.name for one in checkpoints})
    if as_json:
        names = [row.path.name for row in rows if row.found is not None or row.path.name in unsound]
        said = [{"name": name, "sound": name not in unsound, "damaged": unsound.get(name, [])} for name in names]
        print_json({"sound": not unsound, "bytes": size, "seconds": seconds, "checkpoints": said, "instead": instead and instead.name})
    else:
        _say_verified(checkpoints, unsound, instead)
        print(f"read {size_text(size)} in {duration(seconds)}, {size / seconds / 1e9:.2f} GB/s")
    raise typer.Exit(1 if unsound else 0)


def _row_meant(place: Place, which: str) -> Row:
    """What is meant, also if it is no checkpoint: that it cannot be used is an answer here."""
    path = place.path / which
    if parse_directory_name(which) is not None and path.is_dir():
        return row_of(path)
    found = choose(place, which)
    return Row(path=found.path, found=found)


def _read_all(place: Place, checkpoints: Iterable[CheckpointFound], told: Told) -> dict[str, str]:
    """What is wrong with each chunk that is not as it was written, by its path below the place. Each is read once."""
    chunks = {chunk.path: (chunk, one.manifest.algorithm) for one in checkpoints for chunk in one.manifest.chunks}
    total = sum(chunk.size_bytes for chunk, _ in chunks.values())

    def check(item: tuple[Chunk, str]) -> tuple[Chunk, str]:
        try:
            place.check(*item)
        except CheckpointCorrupt as corrupt:
            return item[0], str(corrupt)
        return item[0], ""

    damaged = {}
    for chunk, because in several_at_a_time(check, chunks.values(), workers=_READERS):
        told("reading", chunk.size_bytes, total)
        if because:
            damaged[chunk.path] = because
    return damaged


def _damages(place: Place, found: CheckpointFound, damaged: Mapping[str, str]) -> list[dict[str, Any]]:
    bad = {chunk.digest: chunk.path for chunk in found.manifest.chunks if chunk.path in damaged}
    holds: dict[str, list[str]] = {digest: [f"the state of rank {rank}" for rank, one in enumerate(found.manifest.states) if one == digest] for digest in bad}
    with contextlib.suppress(CheckpointCorrupt):  # Then a note is among what is damaged, which is said already.
        place.bring_notes(found)
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
