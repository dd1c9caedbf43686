"""What a checkpoint holds, read from its notes (`checkpoint/state.py`, `checkpoint/document.py`) without making anything of it: no torch is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.document import is_sharded, is_tensor
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.found import CheckpointFound
from holdfast.checkpoint.plain import KIND
from holdfast.checkpoint.read import note_of
from holdfast.checkpoint.state import Note


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
    """What is in a document, each with its name. Unlike in `document.leaves` a list of plain values is one thing: nobody wants to read it item by item."""
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
        return [(plain_text(key), item) for key, item in document["of"]] or None
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


def plain_text(document: Any) -> str:
    """A plain value as a person writes it."""
    match document:
        case list():
            return f"[{', '.join(map(plain_text, document))}]"
        case {"$": "tuple", "of": [one]}:
            return f"({plain_text(one)},)"
        case {"$": "tuple" | "set" | "size" as kind, "of": [*items]}:
            inside = ", ".join(map(plain_text, items))
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
