"""Pieces: the named things of a script that must survive, and how each gives up its state and takes it back.

A piece is anything with `state_dict` and `load_state_dict` (module, optimizer, scheduler, scaler, sampler), a torch.Generator, a dictionary, or a
dataclass instance. A model inside DistributedDataParallel, and an optimizer over its parameters, is the same on every rank: it is shared, and
rank 0 alone writes it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any

from holdfast.checkpoint.errors import CheckpointMismatch
from holdfast.checkpoint.places import Places
from holdfast.checkpoint.plain import from_plain, to_plain
from holdfast.errors import HoldfastError, UserError

Pieces = Mapping[str, Any]


def check(pieces: Pieces) -> None:
    """Raise UserError for a piece whose state could not be saved, while there is still time to say so."""
    for name, piece in pieces.items():
        if type(unwrapped(piece)).__name__ == "FullyShardedDataParallel":
            raise UserError(f"{name} is wrapped in FullyShardedDataParallel, whose state cannot be taken without a collective: use fully_shard (FSDP2).")
        try:
            to_plain(state_of(name, piece), name)
        except HoldfastError:
            raise
        except Exception as error:
            raise UserError(f"the state of {name} cannot be taken: {type(piece).__qualname__}.state_dict() raised {error!r}.") from error


def capture(pieces: Pieces) -> dict[str, Any]:
    """The state of every piece as plain values. Tensors are the live ones, not copies: they must be written before training goes on."""
    return {name: to_plain(state_of(name, piece), name) for name, piece in pieces.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Changed:
    """The names that a script allows to differ from those in the checkpoint."""

    new: tuple[str, ...] = ()  # Not in the checkpoint: they stay as the script made them.
    dropped: tuple[str, ...] = ()  # In the checkpoint alone: that state is forgotten.


UNCHANGED = Changed()


def apply(pieces: Pieces, states: Mapping[str, Any], fill: Callable[[dict[str, Any]], None], changed: Changed = UNCHANGED) -> None:
    """Put saved states back into their pieces; raises CheckpointMismatch when they do not fit. `fill` reads the tensors that lie otherwise now."""
    _same_names(pieces, states, changed)
    pieces = {name: piece for name, piece in pieces.items() if name in states}
    places = Places(pieces, {name: state_of(name, piece) for name, piece in pieces.items()})
    values = {name: from_plain(states[name], places.resolve, name) for name in pieces}
    if places.waiting:
        fill(places.waiting)
    for name, piece in pieces.items():
        try:
            _load(piece, values[name])
        except HoldfastError:
            raise
        except Exception as error:
            raise CheckpointMismatch(
                f"the saved state of {name} does not fit this script's {type(piece).__qualname__}: {error}\nUndo the change to {name}, or begin a new run."
            ) from error


def shared_names(pieces: Pieces) -> frozenset[str]:
    """The pieces that every rank holds alike because DistributedDataParallel keeps them so."""
    return with_optimizers(pieces, [name for name, piece in pieces.items() if _keeps_ranks_alike(unwrapped(piece))])


def with_optimizers(pieces: Pieces, models: Collection[str]) -> frozenset[str]:
    """These models, and the pieces that optimize nothing but their parameters."""
    parameters = {id(parameter) for name in models for parameter in unwrapped(pieces[name]).parameters()}
    return frozenset((*models, *(name for name, piece in pieces.items() if _optimizes(piece, parameters))))


def gpu_of(pieces: Pieces) -> Any:
    """The GPU on which the script has what it trains; None when it has none."""
    import torch

    for piece in map(unwrapped, pieces.values()):
        if isinstance(piece, torch.nn.Module):
            tensors = list(piece.parameters())
        elif isinstance(piece, torch.optim.Optimizer):
            tensors = [parameter for group in piece.param_groups for parameter in group["params"]]
        else:
            tensors = []
        for tensor in tensors:
            if tensor.is_cuda:
                return tensor.device
    return None


def unwrapped(piece: Any) -> Any:
    """The module inside torch.compile's wrapper."""
    return getattr(piece, "_orig_mod", piece)


def state_of(name: str, piece: Any) -> Any:
    import torch

    if hasattr(piece, "state_dict") and hasattr(piece, "load_state_dict"):
        return piece.state_dict()
    if isinstance(piece, torch.Generator):
        return piece.get_state()
    if isinstance(piece, MutableMapping):
        return piece
    if dataclasses.is_dataclass(piece) and not isinstance(piece, type):
        return {field.name: getattr(piece, field.name) for field in dataclasses.fields(piece)}
    raise UserError(
        f"{name} is {with_article(type(piece).__qualname__)}, which cannot be saved, because it has no state_dict and load_state_dict. Give it these two "
        "methods, or put its state into a dictionary or a dataclass and give guard() that. A torch.Generator can be given as it is."
    )


def with_article(kind: str) -> str:
    """`a Linear`, `an Adam`; of letters that are spelled out by how the first one is spoken: `an SGD`."""
    spelled = kind[:2].isupper() and kind[0] in "AEFHILMNORSX"
    return f"{'an' if spelled or (kind[0] in 'AEIOaeio' and not kind[:2].isupper()) else 'a'} {kind}"


def _load(piece: Any, state: Any) -> None:
    import torch

    if hasattr(piece, "load_state_dict"):
        piece.load_state_dict(state)
    elif isinstance(piece, torch.Generator):
        piece.set_state(state)
    elif isinstance(piece, MutableMapping):
        piece.clear()
        piece.update(state)
    else:
        for name, value in state.items():
            object.__setattr__(piece, name, value)


def _keeps_ranks_alike(module: Any) -> bool:
    parallel = sys.modules.get("torch.nn.parallel")
    if parallel is None or not isinstance(module, parallel.DistributedDataParallel):
        return False
    if module.process_group.size() < _world_size():
        return False  # Within a group alone: a stage of a pipeline, or a part of a tensor.
    # Without broadcast, buffers such as running averages are each rank's own.
    return bool(module.broadcast_buffers) or not any(True for _ in module.buffers())


def _world_size() -> int:
    import torch.distributed as distributed

    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _optimizes(piece: Any, parameters: set[int]) -> bool:
    import torch

    if not parameters or not isinstance(piece, torch.optim.Optimizer):
        return False
    return all(id(parameter) in parameters for group in piece.param_groups for parameter in group["params"])


def _same_names(pieces: Pieces, states: Mapping[str, Any], changed: Changed) -> None:
    added, missing = set(pieces) - set(states) - set(changed.new), set(states) - set(pieces) - set(changed.dropped)
    if added or missing:
        helps = [f"{word}=({''.join(f'{name!r}, ' for name in sorted(names)).rstrip()})" for word, names in (("new", added), ("dropped", missing)) if names]
        differs = [f"{_listed(names)} {where}" for names, where in ((added, "not in the checkpoint"), (missing, "not given to guard()")) if names]
        raise CheckpointMismatch(
            f"the checkpoint holds {_listed(states)}, and guard() was given {_listed(pieces)}: {'; '.join(differs)}. Give it the same names, or say that "
            f"you mean it: guard(…, {', '.join(helps)}). A new run has another --name, or without `holdfast run` another checkpoints=."
        )


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
