"""What a checkpoint looks like on the disk: names, receipts, the manifest.

    <checkpoints>/
      step-00000120.g3/          one try at saving step 120, by generation 3; no other generation writes here
        shared.pt                what all ranks hold alike, written by rank 0
        rank-00000.pt …          what one rank alone holds
        rank-00000.json …        receipts: the files a rank wrote, with size and checksum
        rank-00001.failed        this rank could not write, so this directory will never be complete
        manifest.json            the union of all receipts, written last: with it the checkpoint exists

Standard library only: control reads these without torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
SHARED_FILE: Final = "shared.pt"
_DIRECTORY: Final = re.compile(r"step-(\d{8,18})\.g(\d{1,18})")
_RECEIPT: Final = re.compile(r"rank-(\d{5,})\.json")
_FILE: Final = re.compile(r"shared\.pt|rank-\d{5,}\.pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One file of a checkpoint, as it must be found again."""

    name: str
    size_bytes: int
    algorithm: str
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One rank's word that its files are durable."""

    step: int
    generation: int
    world_size: int
    rank: int
    files: tuple[WrittenFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All files of a complete checkpoint."""

    step: int
    generation: int
    world_size: int
    files: tuple[WrittenFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def directory_name(step: int, generation: int) -> str:
    return f"step-{step:08d}.g{generation}"


def parse_directory_name(name: str) -> tuple[int, int] | None:
    """Step and generation of a checkpoint's directory; None for a name that is none of ours."""
    match = _DIRECTORY.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def receipt_file(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def failed_file(rank: int) -> str:
    return f"rank-{rank:05d}.failed"


def is_receipt(name: str) -> bool:
    return _RECEIPT.fullmatch(name) is not None


def encode(record: Receipt | Manifest) -> bytes:
    """The same record gives the same bytes on every rank, so that two ranks that both see the last receipt write the same manifest."""
    return json.dumps({"format": FORMAT, **asdict(record)}, sort_keys=True, indent=1).encode()


def decode_receipt(text: bytes) -> Receipt | None:
    """The receipt in `text`; None when it is none."""
    try:
        fields = _fields(text)
        return Receipt(**_counts(fields, "step", "generation", "world_size", "rank"), files=_files(fields))
    except (ValueError, KeyError, TypeError):
        return None


def decode_manifest(text: bytes) -> Manifest | None:
    """The manifest in `text`; None when it is none."""
    try:
        fields = _fields(text)
        return Manifest(**_counts(fields, "step", "generation", "world_size"), files=_files(fields))
    except (ValueError, KeyError, TypeError):
        return None


def unite(receipts: Iterable[Receipt]) -> Manifest | None:
    """The manifest that follows from these receipts; None as long as a rank is missing."""
    by_rank = {receipt.rank: receipt for receipt in receipts}
    first = next(iter(by_rank.values()), None)
    if first is None or sorted(by_rank) != list(range(first.world_size)):
        return None
    files = sorted((file for receipt in by_rank.values() for file in receipt.files), key=lambda file: file.name)
    return Manifest(step=first.step, generation=first.generation, world_size=first.world_size, files=tuple(files))


def _fields(text: bytes) -> dict[str, Any]:
    fields = json.loads(text)
    if not isinstance(fields, dict) or fields["format"] != FORMAT:
        raise ValueError(f"expected a record of format {FORMAT}")
    return fields


def _counts(fields: dict[str, Any], *names: str) -> dict[str, int]:
    counts = {name: fields[name] for name in names}
    if any(type(count) is not int or count < 0 for count in counts.values()):
        raise ValueError("expected whole numbers that are not negative")
    return counts


def _files(fields: dict[str, Any]) -> tuple[WrittenFile, ...]:
    files = tuple(WrittenFile(**file) for file in fields["files"])
    # A name is used to open a file, so nothing but the names we give may stand here.
    if any(not _FILE.fullmatch(file.name) or type(file.size_bytes) is not int for file in files):
        raise ValueError("expected names and sizes of a checkpoint's files")
    return files
