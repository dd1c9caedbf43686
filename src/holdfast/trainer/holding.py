"""Holding: what of the state this rank has, as a number, and how the script lays its ranks out. Told to the agent in the gauge table; from the numbers of all
ranks control knows who holds the same (`domain/mesh.py`), whatever makes it so: DDP, FSDP2, HSDP, tensors or stages split over ranks.

Sees        parameters: their names, shapes and places; of a DTensor which part of the whole it is, on which mesh; of a model in DistributedDataParallel which
            ranks keep it alike.
Says        nothing where a model of several ranks is neither: plain tensors may be a copy or a part, and nobody could tell.
Is wrong    where ranks that agree in all of this hold different values, such as an optimizer that shares its state out by itself; `guard` takes none that does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.checkpoint.pieces import unwrapped
from holdfast.checkpoint.plain import is_dtensor, mesh_key, offset_of
from holdfast.domain.gauges import HOLDS, MESH, NAME_MAX, RESIZES, GaugeTable
from holdfast.domain.mesh import NAMES

_BITS: Final = 48  # A gauge is a float, which holds a whole number of 53 bits.


def tell(gauges: GaugeTable, pieces: Mapping[str, Any], world_size: int) -> None:
    number = number_of(pieces, world_size)
    if number is None:
        return
    for place, (name, size, resizes) in enumerate(dimensions_of(pieces, world_size)):
        gauges.set(f"{MESH}{place}_{name}"[:NAME_MAX], size, RESIZES if resizes else "")
    gauges.set(HOLDS, number)  # The last: who finds it finds the others.


def number_of(pieces: Mapping[str, Any], world_size: int) -> int | None:
    """The same on all ranks that hold the same; None where that cannot be told."""
    import torch

    digest = hashlib.blake2b(digest_size=_BITS // 8)
    found = False
    for name, module in ((name, unwrapped(pieces[name])) for name in sorted(pieces)):
        for line in _lines(name, module, world_size) if isinstance(module, torch.nn.Module) else ():
            if line is None:
                return None
            found = True
            digest.update(f"{line}\n".encode())
    return int.from_bytes(digest.digest(), "big") if found else None


def dimensions_of(pieces: Mapping[str, Any], world_size: int) -> list[tuple[str, int, bool]]:
    """Of the mesh that the parameters are on, or which it is a part of: name, size, whether that may be another. Nothing where it lacks ranks, or order."""
    for parameter in (parameter for model in _models(pieces) for parameter in model.parameters()):
        if not is_dtensor(parameter):
            continue
        mesh = _root(parameter.device_mesh)
        if mesh.mesh.flatten().tolist() == list(range(world_size)):
            names = mesh.mesh_dim_names or tuple(f"dim{place}" for place in range(mesh.mesh.ndim))
            data = _data_dimensions(pieces, names)
            return [(name, size, name in data) for name, size in zip(names, mesh.mesh.shape, strict=True)]
    return []


def _lines(piece: str, module: Any, world_size: int) -> Iterator[str | None]:
    """A line for each parameter that is the same on ranks that hold the same of it. None: it may be a copy and may be a part."""
    alike = _kept_alike(module)
    for name, parameter in module.named_parameters():
        if is_dtensor(parameter):
            on = "" if alike else f" of {mesh_key(parameter.device_mesh)}"
            yield f"{piece} {name} {tuple(parameter.shape)} {tuple(parameter.to_local().shape)} from {offset_of(parameter)}{alike}{on}"
        elif alike or world_size == 1:
            yield f"{piece} {name} {tuple(parameter.shape)}{alike}"
        else:
            yield None


def _kept_alike(module: Any) -> str:
    """Which ranks DistributedDataParallel keeps alike; empty without it."""
    import torch

    if not isinstance(module, torch.nn.parallel.DistributedDataParallel):
        return ""
    return f" alike on {torch.distributed.get_process_group_ranks(module.process_group)}"


def _root(mesh: Any) -> Any:
    """The mesh that this one was cut out of."""
    find = getattr(mesh, "_get_root_mesh", None)
    return find() if find is not None else mesh


def _data_dimensions(pieces: Mapping[str, Any], names: tuple[str, ...]) -> set[str]:
    """Those by which the data is shared out: FSDP's own, and those with a name that says so. Another number of them computes the same."""
    found = {name for name in names if NAMES.get(name, (False, False))[1]}
    for module in (part for piece in _models(pieces) for part in piece.modules() if hasattr(part, "_get_fsdp_state")):
        state = module._get_fsdp_state()
        for group in getattr(state, "_fsdp_param_groups", None) or filter(None, (state._fsdp_param_group,)):
            info = group.mesh_info
            own = info.mesh.mesh_dim_names or (names if info.mesh.ndim == len(names) else ())
            places = (getattr(info, "shard_mesh_dim", None), getattr(info, "replicate_mesh_dim", None))
            found.update(own[place] for place in places if own and place is not None)
    return found


def _models(pieces: Mapping[str, Any]) -> Iterator[Any]:
    import torch

    yield from (piece for piece in map(unwrapped, pieces.values()) if isinstance(piece, torch.nn.Module))
