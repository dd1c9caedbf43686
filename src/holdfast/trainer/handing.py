"""Handing over: in a gang that has rejoined, those who hold the newest step whole give it to those who do not, over the new process group.

    each rank says in the store which step it holds, and of which part ─► the highest counts ─► every other rank gets it from one who has it

Where the state is split over ranks, each gets its part from one that holds the same (`holding.py`). If nobody lives who does, all are started again.

A rank that was in the middle of its optimizer's step when the gang broke has finished it or holds nothing, so that nobody mixes two steps. Nothing is pickled:
what is sent is what a checkpoint would hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from holdfast.checkpoint.document import from_document, to_document
from holdfast.checkpoint.pieces import apply, gpu_of
from holdfast.checkpoint.plain import from_plain, offset_of
from holdfast.checkpoint.read import Restored
from holdfast.checkpoint.state import as_bytes, empty, kind_of
from holdfast.trainer.holding import number_of
from holdfast.trainer.parting import Kept
from holdfast.trainer.place import Place, process_group
from holdfast.trainer.random_streams import found

NOBODY_CODE: Final = 77  # No rank holds a step whole, or what it kept does not fit: control starts all of them again from a checkpoint.
_PACK_BYTES: Final = 32 << 20  # Small tensors travel together.


def take_over(kept: Kept, pieces: Mapping[str, Any], place: Place) -> Restored:
    """Put the newest step that anybody holds into `pieces`. Raises SystemExit when nobody holds one."""
    group = process_group()
    assert group is not None and place.generation is not None, "a gang that rejoins has a process group"
    votes = _vote(group, kept.step, number_of(pieces, place.world_size), place)
    newest = max(step for step, _ in votes)
    giver = _givers(votes, newest)
    if newest < 0 or giver is None:  # All ranks see the same votes, so all of them leave.
        raise SystemExit(NOBODY_CODE)
    if place.rank in giver:
        # A rank that is a step behind had drawn all of that step's before the others could finish it; one that is new finds where the last one was.
        randomness = kept.drawn or (found(place.snapshots / f"randomness-{place.rank}", newest) if place.snapshots is not None else {})
        kept = replace(_receive(group, giver[place.rank], gpu_of(pieces)), randomness=randomness)
    else:
        for rank in [rank for rank in sorted(giver) if giver[rank] == place.rank]:
            _send(group, rank, kept)
    apply(pieces, kept.states, partial(_fill, kept.states))
    return Restored(
        name="", step=newest, generation=place.generation - 1, world_size=kept.world_size, progress=dict(kept.progress), randomness=dict(kept.randomness)
    )  # fmt: skip


def _vote(group: Any, step: int, part: int | None, place: Place) -> list[tuple[int, str]]:
    """By rank, the step it holds and the number of what it is to hold."""
    store = group.PrefixStore("holdfast/rejoin", group.distributed_c10d._get_default_store())
    store.set(f"step/{place.rank}", f"{step} {part}")
    votes = (store.get(f"step/{rank}").decode().partition(" ") for rank in range(place.world_size))
    return [(int(step), part) for step, _, part in votes]


def _givers(votes: Sequence[tuple[int, str]], newest: int) -> dict[int, int] | None:
    """Who gets it from whom; None when nobody holds what somebody lacks."""
    giver: dict[int, int] = {}
    for part in dict.fromkeys(part for _, part in votes):
        ranks = [rank for rank, (_, own) in enumerate(votes) if own == part]
        holders = [rank for rank in ranks if votes[rank][0] == newest]
        if not holders:
            return None
        giver |= {rank: holders[number % len(holders)] for number, rank in enumerate(rank for rank in ranks if rank not in holders)}
    return giver


def _send(group: Any, to: int, kept: Kept) -> None:
    import torch

    tensors: list[Any] = []
    document = to_document({"pieces": dict(kept.states), "progress": dict(kept.progress), "world_size": kept.world_size}, tensors)
    text = json.dumps({"document": document, "kinds": [kind_of(tensor) for tensor in tensors]}).encode()
    device = _travels_on(group)
    group.send(torch.tensor([len(text)], device=device), to)
    group.send(torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device), to)
    for pack in _packs([tensor.nbytes for tensor in tensors]):
        parts = [as_bytes(tensors[number]).to(device) for number in pack]
        group.send(parts[0] if len(parts) == 1 else torch.cat(parts), to)


def _receive(group: Any, giver: int, gpu: Any) -> Kept:
    import torch

    device = _travels_on(group)
    length = torch.zeros(1, dtype=torch.int64, device=device)
    group.recv(length, giver)
    text = torch.empty(int(length), dtype=torch.uint8, device=device)
    group.recv(text, giver)
    note = json.loads(bytes(text.cpu().numpy()))
    tensors = [empty(kind, gpu) for kind in note["kinds"]]
    for pack in _packs([tensor.nbytes for tensor in tensors]):
        targets = [as_bytes(tensors[number]) for number in pack]
        landed = torch.empty(sum(target.numel() for target in targets), dtype=torch.uint8, device=device)
        group.recv(landed, giver)
        for target, part in zip(targets, landed.split([target.numel() for target in targets]), strict=True):
            target.copy_(part)
    value = from_document(note["document"], tensors)
    return Kept(states=value["pieces"], progress=value["progress"], world_size=value["world_size"])


def _travels_on(group: Any) -> Any:
    """Where a tensor must be to be sent."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if group.get_backend() == "nccl" else torch.device("cpu")


def _packs(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of tensors with bytes in them, in order, as many at a time as make a pack."""
    pack: list[int] = []
    packed = 0
    for number, size in enumerate(sizes):
        if pack and size and packed + size > _PACK_BYTES:
            yield pack
            pack, packed = [], 0
        if size:
            pack.append(number)
            packed += size
    if pack:
        yield pack


def _fill(states: Mapping[str, Any], tensors: dict[str, Any]) -> None:
    """In a gang of another size the mesh is another, and what a rank holds is the same part of the same whole: that is put in as it is."""
    notes: dict[str, Any] = {}
    for name, state in states.items():
        from_plain(state, lambda path, saved: notes.setdefault(path, saved), name)
    for path, tensor in tensors.items():
        note = notes[path]
        if not isinstance(note, dict) or tuple(note["offset"]) != offset_of(tensor) or note["local"].shape != tensor.to_local().shape:
            raise SystemExit(NOBODY_CODE)  # It lies otherwise than on the rank that sent it.
        tensor.to_local().copy_(note["local"])
