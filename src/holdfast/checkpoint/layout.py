"""What a checkpoint looks like on the disk: names, receipts, the manifest.

    <checkpoints>/
      step-00000120.g3/          one try at saving step 120, by generation 3; no other generation writes here
        chunks/<digest>          bytes, named by their checksum; only those that no older checkpoint of the line holds already
        rank-00000.json …        receipts: what a rank's state is made of
        rank-00001.failed        this rank could not write, so this directory will never be complete
        manifest.json            the union of all receipts, written last: with it the checkpoint exists
        retired                  once a manifest: this checkpoint is gone, and what is left are chunks that others need

A chunk has a home: the directory it was written into. Later checkpoints that hold the same bytes refer to it there, and it stays for as long as any
manifest does, also when the checkpoint it was written for is gone.

Standard library only: control reads these without torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, Final, TypeVar

from holdfast.checkpoint.digest import ALGORITHMS, can_digest, digest_of
from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch

FORMAT: Final = 2
MANIFEST: Final = "manifest.json"
RETIRED: Final = "retired"
CHUNKS: Final = "chunks"
_DIRECTORY: Final = re.compile(r"step-(\d{8,18})\.g(\d{1,18})")
_RECEIPT: Final = re.compile(r"rank-(\d{5,})\.json")
_FAILED: Final = re.compile(r"rank-(\d{5,})\.failed")
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """Bytes of a checkpoint, as they must be found again."""

    digest: str
    size_bytes: int
    home: str  # The directory of the checkpoint that wrote them.

    @property
    def path(self) -> str:
        """Below the directory of all checkpoints."""
        return f"{self.home}/{CHUNKS}/{self.digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One rank's word that its state is durable."""

    step: int
    generation: int
    world_size: int
    rank: int
    algorithm: str
    state: str  # The digest of the chunk that says what this rank's state is made of.
    chunks: tuple[Chunk, ...]
    job: str = ""  # Under holdfast run: which one.
    at: float = 0.0  # When it was written, by the clock on the wall.
    numbers: dict[str, float] | None = None  # What the loop had reported by then: how good this checkpoint is.


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete checkpoint: all that it is made of."""

    step: int
    generation: int
    world_size: int
    algorithm: str
    states: tuple[str, ...]  # By rank.
    chunks: tuple[Chunk, ...]
    job: str = ""
    at: float = 0.0
    numbers: dict[str, float] | None = None

    @property
    def name(self) -> str:
        return directory_name(self.step, self.generation)

    @property
    def size_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in self.chunks)

    @property
    def own_bytes(self) -> int:
        """What was written for it and not found in an older one."""
        return sum(chunk.size_bytes for chunk in self.chunks if chunk.home == self.name)

    def by_digest(self) -> dict[str, Chunk]:
        return {chunk.digest: chunk for chunk in self.chunks}


Record = TypeVar("Record", Receipt, Manifest)


def directory_name(step: int, generation: int) -> str:
    return f"step-{step:08d}.g{generation}"


def parse_directory_name(name: str) -> tuple[int, int] | None:
    """Step and generation of a checkpoint's directory; None for a name that is none of ours."""
    match = _DIRECTORY.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def receipt_file(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def failed_file(rank: int) -> str:
    return f"rank-{rank:05d}.failed"


def answered_by(names: Iterable[str]) -> tuple[set[int], set[int]]:
    """Of the names in a checkpoint's directory: the ranks that left a receipt, and those that could not write."""
    names = list(names)
    receipts = {int(found[1]) for name in names if (found := _RECEIPT.fullmatch(name))}
    return receipts, {int(found[1]) for name in names if (found := _FAILED.fullmatch(name))}


def is_receipt(name: str) -> bool:
    return _RECEIPT.fullmatch(name) is not None


def unite(receipts: Iterable[Receipt]) -> Manifest | None:
    """The manifest that follows from these receipts; None as long as a rank is missing."""
    by_rank = {receipt.rank: receipt for receipt in receipts}
    first = by_rank.get(0)
    if first is None or sorted(by_rank) != list(range(first.world_size)):
        return None
    home = directory_name(first.step, first.generation)
    every = [chunk for rank in range(first.world_size) for chunk in by_rank[rank].chunks]
    chunks = {chunk.digest: chunk for chunk in sorted(every, key=lambda chunk: chunk.home == home)}  # What somebody wrote here is taken from here.
    return Manifest(
        step=first.step, generation=first.generation, world_size=first.world_size, algorithm=first.algorithm,
        states=tuple(by_rank[rank].state for rank in range(first.world_size)), chunks=tuple(sorted(chunks.values())),
        job=first.job, at=max(receipt.at for receipt in by_rank.values()), numbers=first.numbers,
    )  # fmt: skip


# As bytes. A record is written in exactly one way, so that two ranks that both see the last receipt write the same manifest, and so that a
# checksum over the whole can be asked for: a byte that changed anywhere is seen, also where it would mean nothing.


def encode(record: Receipt | Manifest) -> bytes:
    fields = {"format": FORMAT, **{one.name: getattr(record, one.name) for one in dataclass_fields(record)}}
    fields["chunks"] = [[chunk.digest, chunk.size_bytes, chunk.home] for chunk in record.chunks]
    if not fields["job"]:
        del fields["job"]  # As those were written that came before there was one.
    body = json.dumps(fields, sort_keys=True, indent=1).encode()
    return _BEFORE + digest_of(body, record.algorithm).encode() + _BETWEEN + body + _AFTER


_BEFORE, _BETWEEN, _AFTER = b'{"checksum": "', b'",\n"record": ', b"}\n"


def decode_receipt(text: bytes) -> Receipt:
    """The receipt in `text`; raises CheckpointCorrupt, or CheckpointMismatch for one of another version."""
    fields = _fields(text)
    return _decode(text, Receipt, fields, counts=("step", "generation", "world_size", "rank"), states=(fields.get("state"),))


def decode_manifest(text: bytes) -> Manifest:
    """The manifest in `text`; raises CheckpointCorrupt, or CheckpointMismatch for one of another version."""
    fields = _fields(text)
    states = fields.get("states")
    if not isinstance(states, list) or len(states) != fields.get("world_size"):
        raise CheckpointCorrupt("it does not name one state for each rank")
    fields["states"] = tuple(states)
    return _decode(text, Manifest, fields, counts=("step", "generation", "world_size"), states=states)


def _fields(text: bytes) -> dict[str, Any]:
    """What a sound record says; whether it is sound is seen first, since a damaged one may say anything, also that it is of another version."""
    checksum, between, body = text.removeprefix(_BEFORE).removesuffix(_AFTER).partition(_BETWEEN)
    known = [algorithm for algorithm in ALGORITHMS if can_digest(algorithm)]
    if not between or checksum.decode(errors="replace") not in [digest_of(body, algorithm) for algorithm in known]:
        missing = "" if len(known) == len(ALGORITHMS) else f", or made with one of {', '.join(set(ALGORITHMS) - set(known))}, which is not installed here"
        raise CheckpointCorrupt(f"it is damaged: its checksum is not that of what it says{missing}")
    try:
        fields: dict[str, Any] = json.loads(body)
        version = fields.pop("format")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(f"it is no record of a checkpoint ({error!r})") from error
    if version != FORMAT:
        raise CheckpointMismatch(f"it is of format {version!r} and this Holdfast reads format {FORMAT}: use the version that wrote it")
    return fields


def _decode(text: bytes, kind: type[Record], fields: dict[str, Any], *, counts: Iterable[str], states: Iterable[Any]) -> Record:
    """Names are used to open files, so nothing but the names we give may stand in a record, whatever its checksum says."""
    try:
        fields["chunks"] = tuple(Chunk(*chunk) for chunk in fields["chunks"])
        sound = all(type(fields[name]) is int and fields[name] >= 0 for name in counts) and all(map(_is_sound, fields["chunks"]))
        record = kind(**fields)
        if not sound or not set(states) <= {chunk.digest for chunk in record.chunks}:
            raise CheckpointCorrupt("it holds names or sizes that no checkpoint has")
    except (KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"it is no record of a checkpoint ({error!r})") from error
    if encode(record) != text:
        raise CheckpointCorrupt("it is not written as we write it")
    return record


def _is_sound(chunk: Chunk) -> bool:
    sound = type(chunk.digest) is str and _DIGEST.fullmatch(chunk.digest) and type(chunk.size_bytes) is int and chunk.size_bytes >= 0
    return bool(sound) and type(chunk.home) is str and parse_directory_name(chunk.home) is not None
