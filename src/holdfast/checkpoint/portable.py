"""State on its way between formats: `Portable`, what one process would have, with nothing in it but tensors and plain values.

`sorted_out` finds the pieces in what somebody saved. Where a format has flat names, these are the keys down to a value, joined with dots; a value is gone
through as torch.distributed.checkpoint does it: dictionaries, and lists in which there is more than plain values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from holdfast.checkpoint.plain import KIND
from holdfast.errors import UserError

OURS: Final = "holdfast"  # Under this name other formats hold what only we know.
_ENVELOPE: Final = frozenset(("pieces", "step", "progress", "randomness"))


@dataclass(slots=True, kw_only=True)
class Portable:
    pieces: dict[str, Any]
    step: int = 0
    progress: dict[str, Any] = field(default_factory=dict)
    randomness: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)  # In sentences: what does not come along, or otherwise than one might think.

    def envelope(self) -> dict[str, Any]:
        return {"pieces": self.pieces, "step": self.step, "progress": self.progress, "randomness": self.randomness}


def sorted_out(value: Any, piece: str | None, source: Path) -> Portable:
    """Which pieces are in what somebody saved: our own export, a dictionary of states, or one bare state."""
    if not isinstance(value, Mapping):
        raise UserError(f"{source} holds a {type(value).__qualname__}: expected a dictionary of tensors, or of states such as model and optimizer.")
    if value.keys() == _ENVELOPE and isinstance(value["pieces"], Mapping):
        return from_envelope(value, piece, source)
    step = value.get("step")
    step = step if type(step) is int and step >= 0 else 0
    if piece is not None or is_state_dict(value):
        return Portable(pieces={piece or "model": value}, step=step)
    if {"state", "param_groups"} <= value.keys():
        return Portable(pieces={"optimizer": value}, step=step)
    pieces = {name: item for name, item in value.items() if isinstance(item, Mapping) or is_tensor(item)}
    left_out = sorted(f"{name} ({type(item).__qualname__})" for name, item in value.items() if name not in pieces and name != "step")
    remarks = [f"left out: {', '.join(left_out)}, because no piece of guard() is of such a kind; a dictionary would be"] if left_out else []
    return Portable(pieces=pieces, step=step, remarks=remarks)


def from_envelope(value: Mapping[str, Any], piece: str | None, source: Path) -> Portable:
    step, progress, randomness = value["step"], value["progress"], value["randomness"]
    sound = type(step) is int and step >= 0 and isinstance(progress, Mapping) and isinstance(randomness, Mapping)
    if not sound or (randomness and not {"python", "torch"} <= randomness.keys()):
        raise UserError(f"{source} has the keys of an export of Holdfast, but not its values: expected a step, the progress and the randomness of a run.")
    return Portable(pieces=only(value["pieces"], piece, str(source)), step=step, progress=dict(progress), randomness=dict(randomness))


def only(pieces: Mapping[str, Any], piece: str | None, where: str) -> dict[str, Any]:
    """The piece that is wanted, or all."""
    if piece is not None and piece not in pieces:
        raise UserError(f"{where} has no piece {piece!r}; it has {', '.join(sorted(map(str, pieces)))}.")
    return {name: value for name, value in pieces.items() if piece in (None, name)}


def is_state_dict(value: Any) -> bool:
    """Whether this is what a module gives: tensors by name, beside them at most a module's extra state."""
    if not isinstance(value, Mapping) or not any(map(is_tensor, value.values())):
        return False
    return not any(isinstance(item, Mapping) and not str(name).endswith("_extra_state") for name, item in value.items())


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def bytes_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous tensor, in its own memory."""
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())


# Names.


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What is in a value, with its name. A mark of `plain.py` counts as one thing."""
    if isinstance(value, Mapping) and KIND not in value:
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)) and any(isinstance(item, (Mapping, list, tuple)) or is_tensor(item) for item in value):
        for index, item in enumerate(value):
            yield from leaves(item, f"{name}.{index}")
    else:
        yield name, value


def by_name(value: Any) -> dict[str, Any]:
    """What is in a value; raises UserError where two things would have the same name."""
    found: dict[str, Any] = {}
    for name, leaf in leaves(value):
        if name in found:
            raise UserError(f"two values would both be called {name!r} once their names are joined with dots: use --format torch, which keeps them apart.")
        found[name] = leaf
    return found


def checked_name(name: Any) -> str:
    """A piece's or a tensor's name, as a script or a module might have given it."""
    if not isinstance(name, str) or not name or ".." in name or not name.isprintable():
        raise UserError(f"{name!r} cannot be the name of a piece or a tensor: expected words joined by single dots. Nothing was imported.")
    return name
