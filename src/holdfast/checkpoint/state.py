"""One rank's state as chunks: `put_value` cuts a plain value up and stores it, `get_value` puts it together again.

What is stored beside the chunks is a note of JSON: the value's document (`document.py`), and for each tensor its kind and where its bytes are. Tensors are
written as they lie in memory, on a GPU by way of a copy of one tensor at a time.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoint.chunks import Extent, Store, fetch, put_cut
from holdfast.checkpoint.document import dtype_named, from_document, to_document
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.layout import Chunk

Note = dict[str, Any]


def put_value(store: Store, value: Any) -> Note:
    """Store every tensor in `value`, which is plain; the note from which `get_value` finds it again."""
    tensors: list[Any] = []
    document = to_document(value, tensors)
    places = put_cut(store, [tensor.nbytes for tensor in tensors], lambda extents: _bytes_of(tensors, extents))
    return {"document": document, "tensors": [{**kind_of(tensor), "at": at} for tensor, at in zip(tensors, places, strict=True)]}


def get_value(checkpoints: Path, chunks: Mapping[str, Chunk], algorithm: str, note: Note, *, without: frozenset[int] = frozenset()) -> Any:
    """The value a note stands for, with its tensors on the CPU, and None for those it is wanted `without`; raises CheckpointCorrupt."""
    wanted = [number for number in range(len(note["tensors"])) if number not in without]
    tensors: list[Any] = [None] * len(note["tensors"])
    for number, tensor in zip(wanted, get_tensors(checkpoints, chunks, algorithm, [note["tensors"][number] for number in wanted]), strict=True):
        tensors[number] = tensor
    try:
        return from_document(note["document"], tensors)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointCorrupt(f"the note of a rank's state makes no sense: {error!r}.") from error


def get_tensors(checkpoints: Path, chunks: Mapping[str, Chunk], algorithm: str, kinds: Sequence[Note]) -> list[Any]:
    """The tensors that a note describes, on the CPU; raises CheckpointCorrupt."""
    try:
        tensors = [_empty(kind) for kind in kinds]
        memory = [_memory(tensor) for tensor in tensors]
        wanted = _wanted(kinds, chunks)

        def into(chunk: Chunk) -> memoryview | None:
            """Straight to where it belongs, if it belongs to one place."""
            (tensor, start, offset, size), *more = wanted[chunk.digest]
            return None if more or offset or size != chunk.size_bytes else memory[tensor][start : start + size]

        for chunk, data in fetch(checkpoints, [chunks[digest] for digest in wanted], algorithm, into):
            for tensor, start, offset, size in wanted[chunk.digest]:
                if into(chunk) is None:
                    memory[tensor][start : start + size] = data[offset : offset + size]
        return tensors
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointCorrupt(f"the note of a rank's state makes no sense: {error!r}.") from error


def _wanted(kinds: Sequence[Note], chunks: Mapping[str, Chunk]) -> dict[str, list[tuple[int, int, int, int]]]:
    """For each chunk who wants what of it: tensor, where in the tensor, where in the chunk, how many bytes."""
    wanted = defaultdict(list)
    for tensor, kind in enumerate(kinds):
        start = 0
        for digest, offset, size in kind["at"]:
            if offset < 0 or size < 0 or offset + size > chunks[digest].size_bytes:
                raise ValueError(f"it wants bytes {offset} to {offset + size} of a chunk of {chunks[digest].size_bytes}")
            wanted[digest].append((tensor, start, offset, size))
            start += size
    return dict(wanted)


# Tensors as bytes.


def _bytes_of(tensors: Sequence[Any], extents: Sequence[tuple[Extent, ...]]) -> Iterator[memoryview]:
    """The bytes of each chunk. A large tensor has several: it is fetched from the GPU once."""
    number, host = -1, memoryview(b"")
    for inside in extents:
        if len(inside) == 1:
            (extent,) = inside
            if extent.tensor != number:
                number, host = extent.tensor, _on_host(tensors[extent.tensor])
            yield host[extent.start : extent.start + extent.size]
        else:
            yield memoryview(b"".join(_on_host(tensors[extent.tensor]) for extent in inside))


def kind_of(tensor: Any) -> Note:
    kind = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    return kind if tensor.is_contiguous() or not _is_dense(tensor) else {**kind, "stride": list(tensor.stride())}


def _empty(kind: Note) -> Any:
    import torch

    dtype, shape = dtype_named(kind["dtype"]), kind["shape"]
    if "stride" in kind:
        return torch.empty_strided(shape, kind["stride"], dtype=dtype)
    return torch.empty(shape, dtype=dtype)


def tensor_in(data: memoryview, described: Note) -> Any:
    """The tensor that lies in a snapshot, as one of its own: on the GPU if it was on one and there is one, else on the CPU."""
    import torch

    kind, dtype = described["kind"], dtype_named(described["kind"]["dtype"])
    if not described["size"]:
        return _empty(kind)
    flat = torch.frombuffer(data, dtype=dtype, count=described["size"] // dtype.itemsize, offset=described["offset"])
    tensor = flat.as_strided(kind["shape"], kind["stride"]) if "stride" in kind else flat.view(kind["shape"])
    return tensor.to("cuda", non_blocking=True) if described["cuda"] and torch.cuda.is_initialized() else tensor.clone()


def in_order(tensor: Any) -> Any:
    """With its elements in the order in which `kind_of` says they are: as they lie in memory if nothing lies between them."""
    return tensor.permute(_order(tensor)) if _is_dense(tensor) else tensor


def _on_host(tensor: Any) -> memoryview:
    return _memory(in_order(tensor).cpu().contiguous())


def _order(tensor: Any) -> list[int]:
    """The dimensions, outermost first."""
    return sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), -tensor.shape[dim]))


def _is_dense(tensor: Any) -> bool:
    return bool(tensor.permute(_order(tensor)).is_contiguous())


def _memory(tensor: Any) -> memoryview:
    """The bytes of a tensor without gaps, in memory order. The view keeps the tensor alive."""
    area = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    area._tensor = tensor
    return memoryview(area).cast("B")
