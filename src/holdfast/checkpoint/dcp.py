"""Through torch.distributed.checkpoint: `Reader` gives our checkpoints to its planner, at any world size and sharding; `Writer` makes them from its save.

    import torch.distributed.checkpoint as dcp
    dcp.save({"model": model.state_dict()}, storage_writer=Writer("checkpoints/step-00000120.g0"))
    dcp.load({"model": model.state_dict()}, storage_reader=Reader("checkpoints/step-00000120.g3"))

Names are paths: the piece, then the keys down to the tensor, joined by dots. What the planner knows about a checkpoint is made from our manifest and notes;
nothing is pickled. What `Writer` wrote has only such flat names: `Reader` reads it, `holdfast.guard` does not know which pieces they make up.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from holdfast.checkpoint.commit import Shard, commit
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.document import dtype_named, from_document, is_sharded, is_tensor, leaves
from holdfast.checkpoint.errors import CheckpointMismatch
from holdfast.checkpoint.found import CheckpointFound, look_at
from holdfast.checkpoint.layout import MANIFEST, parse_directory_name
from holdfast.checkpoint.plain import part_of, to_plain
from holdfast.checkpoint.read import note_of
from holdfast.checkpoint.state import Note, get_tensors, put_value
from holdfast.errors import UserError


def fill(found: CheckpointFound, tensors: dict[str, Any]) -> None:
    """Read into `tensors`, by path, what the checkpoint holds for them. Each rank for itself: nobody waits for anybody."""
    reader, planner = Reader(found.path), DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(tensors, reader.read_metadata(), is_coordinator=True)
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner)


@dataclass(frozen=True, slots=True)
class _Box:
    """A part of a tensor that some rank saved: where it lies in the whole, and the note from which it is read."""

    offset: tuple[int, ...]
    note: Note


class Writer(StorageWriter):
    """Writes one checkpoint, by the same protocol as a run's own: it is complete when the last rank is done, and torn until then."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.reset(path)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._path = Path(checkpoint_id)
            name = parse_directory_name(self._path.name)
            if name is None:
                raise UserError(f"a checkpoint cannot be named {self._path.name!r}: expected step and generation, such as step-00000120.g0.")
            self._step, self._generation = name

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if is_coordinator and (self._path / MANIFEST).exists():
            raise UserError(f"checkpoint {self._path} is complete already: name another step or generation, or remove it.")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [replace(plan, storage_data=(rank, len(plans))) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        rank, world_size = plan.storage_data
        shard = Shard(step=self._step, generation=self._generation, world_size=world_size, rank=rank, at=time.time())
        value = {item.index.fqn: _plain_item(item, planner) for item in plan.items}
        if len(value) < len(plan.items):
            raise UserError("a rank holds several parts of one tensor: expected DTensors and whole tensors, of which a rank holds one part.")
        own = {"pieces": value, "shared": [], "randomness": {}, "progress": {}}
        commit(Disk(), self._path.parent, shard, lambda store: store.put(json.dumps({"own": put_value(store, own)}).encode()).digest)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(index=item.index, size_in_bytes=item.tensor_storage_size() or 0, storage_data=None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        look_at(self._path)  # All ranks are done, so the last of them has committed it; what DCP knows about it beyond that is in our notes.

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return parse_directory_name(Path(checkpoint_id).name) is not None


def _plain_item(item: WriteItem, planner: SavePlanner) -> Any:
    if item.type == WriteItemType.BYTE_IO:
        if not isinstance(planner, DefaultSavePlanner):
            raise UserError(f"{item.index.fqn} is no tensor, and {type(planner).__qualname__} gives it only pickled: use torch's DefaultSavePlanner.")
        return to_plain(planner.lookup_object(item.index), item.index.fqn)
    tensor, about = planner.resolve_data(item), item.tensor_data
    assert isinstance(tensor, torch.Tensor), "the planner gives tensors for tensors"
    assert about is not None, "the planner says where each lies"
    return part_of(tensor.detach(), shape=list(about.size), offset=list(about.chunk.offsets))


class Reader(StorageReader):
    """Reads one complete checkpoint."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.reset(path)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._found = look_at(Path(checkpoint_id))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._boxes: dict[MetadataIndex, _Box] = {}
        self._copies: dict[MetadataIndex, list[_Box]] = defaultdict(list)  # What other ranks hold there, in chunks of their own.
        self._plain: dict[str, Any] = {}
        known: dict[str, Any] = {}
        for path, shape, box in self._everything():
            index = MetadataIndex(path, torch.Size(box.offset))
            if index in self._boxes:
                if box.note != self._boxes[index].note:
                    self._copies[index].append(box)
                continue
            self._boxes[index] = box
            whole = known.setdefault(path, TensorStorageMetadata(TensorProperties(dtype=dtype_named(box.note["dtype"])), torch.Size(shape), []))
            whole.chunks.append(ChunkStorageMetadata(torch.Size(box.offset), torch.Size(box.note["shape"])))
        known |= dict.fromkeys(self._plain, BytesStorageMetadata())
        return Metadata(state_dict_metadata=known)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted = defaultdict(list)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self._give_plain(item, planner)
            else:
                wanted[item.storage_index].append(item)
        for index, items in wanted.items():  # One box at a time: a checkpoint may be larger than the memory.
            part = self._get(self._boxes[index])
            self._see_that_copies_agree(index, part)
            for item in items:
                source = part
                for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    source = source.narrow(dim, start, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(source)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _get(self, box: _Box) -> torch.Tensor:
        manifest = self._found.manifest
        (part,) = get_tensors(self._found.path.parent, manifest.by_digest(), manifest.algorithm, [box.note])
        assert isinstance(part, torch.Tensor), "a note of a tensor gives a tensor"
        return part

    def _see_that_copies_agree(self, index: MetadataIndex, part: torch.Tensor) -> None:
        """Ranks that hold different tensors under one name are stages of a pipeline, or keep something of their own: nobody knows whose is meant."""
        for other in self._copies[index]:
            if not torch.equal(self._get(other).reshape(-1).view(torch.uint8), part.reshape(-1).view(torch.uint8)):
                raise CheckpointMismatch(
                    f"{index.fqn} is not the same on all ranks that saved it: it can be restored only by as many ranks, laid out as they were."
                )

    def _give_plain(self, item: Any, planner: LoadPlanner) -> None:
        """The planner wants the bytes of torch.save. They are made here, of plain values, so what it unpickles is ours."""
        buffer = io.BytesIO()
        torch.save(self._plain[item.storage_index.fqn], buffer)
        buffer.seek(0)
        planner.load_bytes(item, buffer)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return Path(checkpoint_id).is_dir()

    def _everything(self) -> Iterator[tuple[str, list[int], _Box]]:
        """Every tensor part of every rank with its path and the shape of the whole. What is no tensor is taken from the first rank that has it."""
        for rank in range(self._found.world_size):
            notes = note_of(self._found, rank)
            for document, tensors in _pieces(notes):
                for path, leaf in leaves(document):
                    if is_sharded(leaf):
                        yield path, leaf["shape"], _Box(tuple(leaf["offset"]), tensors[leaf["local"]["n"]])
                    elif is_tensor(leaf):
                        note = tensors[leaf["n"]]
                        yield path, note["shape"], _Box((0,) * len(note["shape"]), note)
                    else:
                        self._plain.setdefault(path, from_document(leaf, []))


def _pieces(notes: dict[str, Note]) -> Iterator[tuple[Any, list[Note]]]:
    yield notes["own"]["document"]["pieces"], notes["own"]["tensors"]
    if "shared" in notes:
        yield notes["shared"]["document"], notes["shared"]["tensors"]
