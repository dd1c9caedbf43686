"""One rank's state as chunks: `put_value` cuts a plain value up and stores it, `get_value` puts it together again.

What is stored beside the chunks is a note of JSON: the value's document (`document.py`), and for each tensor its kind and where its bytes are. Tensors are
written as they lie in memory, on a GPU by way of a copy of one tensor at a time.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoint.chunks import Extent, Store, fetch, put_cut
from holdfast.checkpoint.document import dtype_named, from_document, to_document
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.layout import Chunk
from holdfast.checkpoint.snapshot import within_stretches

Note = dict[str, Any]


def put_value(store: Store, value: Any) -> Note:
    """Store every tensor in `value`, which is plain; the note from which `get_value` finds it again."""
    tensors: list[Any] = []
    document = to_document(value, tensors)
    places = put_cut(store, [tensor.nbytes for tensor in tensors], lambda extents: _bytes_of(tensors, extents))
    return {"document": document, "tensors": [{**kind_of(tensor), "at": at} for tensor, at in zip(tensors, places, strict=True)]}


def get_value(
    checkpoints: Path, chunks: Mapping[str, Chunk], algorithm: str, note: Note, *, without: frozenset[int] = frozenset(), gpu: Any = None, alone: bool = False
) -> Any:  # fmt: skip
    """The value a note stands for, with None for the tensors it is wanted `without`; raises CheckpointCorrupt.

    Tensors are on the CPU, but those that were on a GPU are on `gpu` if there is one. `alone` as in `fetch`.
    """
    wanted = [number for number in range(len(note["tensors"])) if number not in without]
    tensors: list[Any] = [None] * len(note["tensors"])
    found = get_tensors(checkpoints, chunks, algorithm, [note["tensors"][number] for number in wanted], gpu=gpu, alone=alone)
    for number, tensor in zip(wanted, found, strict=True):
        tensors[number] = tensor
    try:
        return from_document(note["document"], tensors)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointCorrupt(f"the note of a rank's state makes no sense: {error!r}.") from error


def get_tensors(checkpoints: Path, chunks: Mapping[str, Chunk], algorithm: str, kinds: Sequence[Note], *, gpu: Any = None, alone: bool = False) -> list[Any]:
    """The tensors that a note describes, where `get_value` says; raises CheckpointCorrupt."""
    try:
        tensors = [empty(kind, gpu) for kind in kinds]
        wanted = _wanted(kinds, chunks)
        landing = _Landing(tensors, [gpu is not None and bool(kind.get("cuda")) for kind in kinds], wanted, gpu)
        fetch(checkpoints, [chunks[digest] for digest in wanted], algorithm, landing.into, landing.use, alone=alone)
        return tensors
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointCorrupt(f"the note of a rank's state makes no sense: {error!r}.") from error


class _Landing:
    """Where chunks are read to, and how they get from there to their tensors. Several threads use it at a time.

    What belongs to one place on the CPU is read right there. Everything else lands in memory of the thread's own: pinned if it goes on to a GPU, so that the
    copies run beside the reading.
    """

    def __init__(self, tensors: Sequence[Any], on_gpu: Sequence[bool], wanted: Mapping[str, Sequence[tuple[int, int, int, int]]], gpu: Any) -> None:
        self._wanted, self._on_gpu, self._gpu = wanted, on_gpu, gpu
        self._bytes: list[Any] = [as_bytes(tensor) if there else _memory(tensor) for tensor, there in zip(tensors, on_gpu, strict=True)]
        self._own = threading.local()

    def into(self, chunk: Chunk) -> memoryview:
        (tensor, start, offset, size), *more = self._wanted[chunk.digest]
        if not more and not offset and size == chunk.size_bytes and not self._on_gpu[tensor]:
            place: memoryview = self._bytes[tensor][start : start + size]
            return place
        if getattr(self._own, "size", -1) < chunk.size_bytes:
            import torch

            pinned = self._gpu is not None and self._gpu.type == "cuda"
            if pinned:
                torch.cuda.set_device(self._gpu)  # Each thread has one of its own, and pinning memory would wake the first GPU for it.
            self._own.size = chunk.size_bytes
            self._own.tensor = torch.empty(chunk.size_bytes, dtype=torch.uint8, pin_memory=pinned)
            self._own.memory = _memory(self._own.tensor)
        landed: memoryview = self._own.memory[: chunk.size_bytes]
        return landed

    def use(self, chunk: Chunk, data: memoryview) -> None:
        for tensor, start, offset, size in self._wanted[chunk.digest]:
            if self._on_gpu[tensor]:
                self._bytes[tensor][start : start + size].copy_(self._own.tensor[offset : offset + size])
            elif data.obj is not self._bytes[tensor].obj:
                self._bytes[tensor][start : start + size] = data[offset : offset + size]


def as_bytes(tensor: Any) -> Any:
    """The bytes of a tensor without gaps, in memory order, as a tensor."""
    import torch

    return in_order(tensor).reshape(-1).view(torch.uint8)


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
    kind = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), **({"cuda": True} if tensor.is_cuda else {})}
    return kind if tensor.is_contiguous() or not _is_dense(tensor) else {**kind, "stride": list(tensor.stride())}


def empty(kind: Note, gpu: Any) -> Any:
    import torch

    dtype, shape = dtype_named(kind["dtype"]), kind["shape"]
    device = gpu if gpu is not None and kind.get("cuda") else "cpu"
    if "stride" in kind:
        return torch.empty_strided(shape, kind["stride"], dtype=dtype, device=device)
    return torch.empty(shape, dtype=dtype, device=device)


def tensor_in(data: memoryview, described: Note, gpu: Any) -> Any:
    """The tensor that lies in a snapshot, as one of its own: on `gpu` if it was on one and there is one, else on the CPU."""
    import torch

    kind, dtype = described["kind"], dtype_named(described["kind"]["dtype"])
    if not described["size"]:
        return empty(kind, gpu)
    flat = torch.frombuffer(data, dtype=dtype, count=described["size"] // dtype.itemsize, offset=described["offset"])
    tensor, offset = empty(kind, gpu), described["offset"]
    target = in_order(tensor).view(-1)
    for begin, end in within_stretches(offset, described["size"]):
        part = slice((begin - offset) // dtype.itemsize, (end - offset) // dtype.itemsize)
        target[part].copy_(flat[part], non_blocking=True)
    return tensor


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
