"""`holdfast checkpoint export` and `import`: to torch, safetensors or DCP, and from those."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.checkpoint.exchange import Format, export_checkpoint, import_checkpoint
from holdfast.checkpoint.found import look_at
from holdfast.checkpoint.told import Told
from holdfast.cli.checkpoints.drawing import Bar, print_json, size_text
from holdfast.cli.checkpoints.place import InStore, Where, Which, address_of, choose, opened, place_of
from holdfast.cli.common import AsJson, State
from holdfast.cli.words import count, one_line
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.checkpoint.remote import Remote, Uploaded


def export(
    where: Where,
    to: Annotated[Path, typer.Option("--to", help="The file to write; for dcp a directory.")],
    format: Annotated[Format, typer.Option("--format", help="How to write it.")],
    which: Which = "newest",
    rank: Annotated[int | None, typer.Option(min=0, help="Only what this rank holds.", show_default="sharded tensors put together, else rank 0")] = None,
    piece: Annotated[str | None, typer.Option(help="Only this piece; safetensors then has its names alone.", show_default="all")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    in_store: InStore = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint as others read it."""
    place = place_of(where, state, in_store=in_store)
    found = choose(place, which)
    with Bar(quiet=as_json) as told:
        place.bring(found, told)
        done = export_checkpoint(found, to, format, rank=rank, piece=piece, force=force, told=told)
    if as_json:
        about = {"checkpoint": found.name, "step": found.step, "format": str(format), "path": str(to)}
        print_json(about | {"tensors": done.tensors, "bytes": done.size_bytes, "remarks": list(done.remarks)})
    else:
        print(f"{found.name} is in {to}: {count(done.tensors, 'tensor')}, {size_text(done.size_bytes)}")
        _say_remarks(done.remarks)


def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE_OR_DIRECTORY", help="What torch.save, safetensors or torch.distributed.checkpoint wrote.")],
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="A job's name, a directory for checkpoints, or the address of a remote store.")],
    format: Annotated[Format | None, typer.Option("--format", help="What it is.", show_default="as it looks")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="The step to go on from.", show_default="what the file says, or 0")] = None,
    piece: Annotated[str | None, typer.Option(help="The piece that a bare state becomes; of several, the one to take.", show_default="model")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Read it even if that can run code in it: you know who wrote it.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint of what others wrote, from which a run goes on."""
    place = place_of(to, state, new=True)
    place.not_running("import into")
    with place.held(), Bar(quiet=as_json) as told:
        done = import_checkpoint(source, place.path, format=format, step=step, piece=piece, trust=trust, told=told)
        if place.remote is not None:
            send(place.remote, place.path, done.name, told)
    if as_json:
        about = {"checkpoint": done.name, "path": place.address(done.name), "step": done.step, "pieces": list(done.pieces)}
        print_json(about | {"tensors": done.tensors, "bytes": done.size_bytes, "remarks": list(done.remarks)})
    else:
        pieces = ", ".join(map(one_line, done.pieces))
        print(f"{source} is {done.name} in {place.said}: {pieces}; {count(done.tensors, 'tensor')}, {size_text(done.size_bytes)}")
        _say_remarks(done.remarks)
        print(f"a run with guard({', '.join(f'{one_line(name)}=…' for name in done.pieces)}) goes on from step {done.step}")


def upload(
    where: Where,
    which: Which = "newest",
    to: Annotated[str | None, typer.Option("--to", metavar="URL", help="The address it goes below.", show_default="the job's remote store")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Send a checkpoint to a remote store. What is there already is not sent again."""
    place = place_of(where, state)
    if place.remote is not None:
        raise UserError(f"{place.said} is a remote store already: expected a job's name or a directory of checkpoints.")
    found = choose(place, which)
    remote = opened(address_of(place) if to is None else to)
    with Bar(quiet=as_json) as told:
        sent = send(remote, place.path, found.name, told)
    if as_json:
        about = {"checkpoint": found.name, "step": found.step, "url": remote.url}
        print_json(about | {"sent_bytes": sent.sent_bytes, "sent_chunks": sent.sent_chunks, "bytes": found.manifest.size_bytes})
    else:
        print(f"{found.name} is in {remote.url}: {size_text(sent.sent_bytes)} of {size_text(found.manifest.size_bytes)} were sent")


def send(remote: Remote, checkpoints: Path, name: str, told: Told) -> Uploaded:
    total = look_at(checkpoints / name).manifest.size_bytes
    return remote.upload(checkpoints, name, progress=lambda chunk: told("sending", chunk.size_bytes, total))


def _say_remarks(remarks: Iterable[str]) -> None:
    for remark in remarks:
        print(f"  {one_line(remark)}")
