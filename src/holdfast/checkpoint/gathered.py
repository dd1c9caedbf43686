"""A checkpoint as one process would have it: `gather` puts tensors that are sharded over the ranks together, and of all else takes rank 0's.

Is wrong when ranks hold different stages of a pipeline: those are not put together, and each rank is taken by itself. Holds the whole state in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from holdfast.checkpoint.document import from_document
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.found import CheckpointFound, advice
from holdfast.checkpoint.plain import DTENSOR, KIND
from holdfast.checkpoint.portable import Portable, bytes_of, leaves
from holdfast.checkpoint.read import note_of
from holdfast.checkpoint.state import Note, get_tensors
from holdfast.checkpoint.told import Told
from holdfast.errors import UserError

_BATCH_BYTES: Final = 64 << 20  # Read at a time, so that progress can be told.
_STAGES: Final = "So it is with the stages of a pipeline, and they cannot be put together: export each rank by itself with --rank."


def gather(found: CheckpointFound, rank: int | None, told: Told) -> Portable:
    """What the checkpoint holds, or what this rank of it does; raises UserError or CheckpointCorrupt."""
    try:
        own = _load(found, rank or 0, "own", told)
        pieces = own["pieces"]
        sharded = [name for name, piece in pieces.items() if any(_marked(piece, DTENSOR))]
        if sharded and rank is None:
            _put_together(found, pieces, told)
        shared = _load(found, 0, "shared", told) if own["shared"] else {}
    except CheckpointCorrupt as corrupt:
        raise CheckpointCorrupt(f"checkpoint {found.name} cannot be exported: {corrupt} {advice(found.path)}") from corrupt
    remarks = []
    alone = sorted(pieces.keys() - sharded)
    if rank is None and found.world_size > 1 and alone:
        remarks.append(f"of {', '.join(alone)} each of the {found.world_size} ranks has its own, and this is rank 0's; --rank gives another's")
    if rank is not None and sharded:
        remarks.append(f"tensors of {', '.join(sharded)} are rank {rank}'s own parts of larger ones; without --rank they are put together")
    pieces = {**pieces, **shared}
    arrays = sum(1 for _ in _marked(pieces, "array"))
    if arrays:
        remarks.append(f"NumPy arrays, of which there are {arrays}, are written as tensors")
    return Portable(pieces=_opened(pieces), step=found.step, progress=own["progress"], randomness=own["randomness"], remarks=remarks)


def _load(found: CheckpointFound, rank: int, part: str, told: Told) -> dict[str, Any]:
    """A part of a rank's state, as `plain.py` leaves it."""
    note = note_of(found, rank)[part]
    total = sum(map(_bytes_in, note["tensors"]))
    tensors: list[Any] = []
    for batch in _batches(note["tensors"]):
        tensors += get_tensors(found.path.parent, found.manifest.by_digest(), found.manifest.algorithm, batch)
        told(f"reading rank {rank}" if found.world_size > 1 else "reading", sum(map(_bytes_in, batch)), total)
    value = from_document(note["document"], tensors)
    assert isinstance(value, dict), f"the {part} state is a {type(value)}, which we never write"
    return value


def _batches(kinds: Sequence[Note]) -> Iterator[list[Note]]:
    batch: list[Note] = []
    size = 0
    for kind in kinds:
        batch.append(kind)
        size += _bytes_in(kind)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def _bytes_in(kind: Note) -> int:
    return sum(size for _, _, size in kind["at"])


def _put_together(found: CheckpointFound, pieces: dict[str, Any], told: Told) -> None:
    """Give every note of a sharded tensor in `pieces`, which are rank 0's, the whole of it. One more rank's parts are in memory at a time."""
    notes: dict[str, dict[str, Any]] = {}
    boxes: defaultdict[str, dict[tuple[int, ...], int]] = defaultdict(dict)
    for rank in range(found.world_size):
        theirs = pieces if rank == 0 else _load(found, rank, "own", told)["pieces"]
        for name, note in _marked(theirs, DTENSOR):
            first = notes.setdefault(name, note)
            if "whole" not in first:
                first["whole"] = torch.empty(note["shape"], dtype=note["dtype"])
            if not _place(first, note, boxes[name]):
                raise UserError(f"rank {rank} holds another tensor as {name} than the ranks before it. {_STAGES}")
        for name in theirs.keys() - pieces.keys():  # As DCP distributes what all ranks hold alike.
            pieces[name] = theirs[name]
    strangers = notes.keys() - dict(_marked(pieces, DTENSOR)).keys()
    if strangers:
        raise UserError(f"rank 0 knows nothing of {min(strangers)}, which another rank holds. {_STAGES}")
    for name, note in notes.items():
        if sum(boxes[name].values()) != note["whole"].numel():
            raise CheckpointCorrupt(f"{name} has {note['whole'].numel()} elements, and the parts that the ranks saved have {sum(boxes[name].values())}.")


def _place(first: dict[str, Any], note: dict[str, Any], boxes: dict[tuple[int, ...], int]) -> bool:
    """Put a part where it belongs in the whole; False if it cannot be a part of it. On a mesh of its own may lie a copy: what is there already, again."""
    local, box = note["local"], tuple(note["offset"])
    if (first["shape"], first["dtype"]) != (note["shape"], note["dtype"]):
        return False
    if not local.numel():
        return True
    target = first["whole"][tuple(slice(start, start + size) for start, size in zip(box, local.shape, strict=True))]
    if box in boxes:
        return first["mesh"] == note["mesh"] or bytes_of(target.contiguous()) == bytes_of(local.contiguous())
    boxes[box] = local.numel()
    target.copy_(local)
    return True


def _marked(value: Any, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, leaf) for name, leaf in leaves(value) if isinstance(leaf, dict) and leaf.get(KIND) == kind)


def _opened(value: Any) -> Any:
    """`value` with a tensor for every mark of `plain.py`. It is changed in place, since a module's state carries more than its items."""
    if isinstance(value, dict):
        if value.get(KIND) == DTENSOR:
            return value.get("whole", value["local"])
        if value.get(KIND) == "array":
            return _array(value)
        for key, item in value.items():
            value[key] = _opened(item)
    elif isinstance(value, list):
        value[:] = map(_opened, value)
    elif type(value) is tuple:
        return tuple(map(_opened, value))
    return value


def _array(note: Mapping[str, Any]) -> Any:
    array = note["tensor"].numpy().view(note["dtype"]).reshape(note["shape"])
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
