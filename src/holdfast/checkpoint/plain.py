"""State as plain values: what a file may hold so that reading it runs nobody's code.

`to_plain` turns a state dictionary into tensors, numbers, strings and containers of them, without copying a tensor; `from_plain` turns it back. NumPy
arrays become tensors, and a DTensor becomes this rank's own part of it with a note about the whole: shape, placements, mesh. Reading back needs a
live mesh of the same shape, which is taken from the tensors that the script already holds (`meshes_in`).
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.checkpoint.errors import CheckpointMismatch
from holdfast.errors import UserError

_KIND: Final = "__holdfast__"  # Marks a dictionary that stands for something else.
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))

Meshes = Mapping[tuple[Any, ...], Any]


def to_plain(value: Any, where: str) -> Any:
    """`value` with only plain values in it; `where` names it in the error when that cannot be."""
    import torch

    if isinstance(value, torch.Tensor):
        return _dtensor_to_plain(value, where) if _is_dtensor(value) else value.detach()
    if isinstance(value, Mapping):
        return _mapping_to_plain(value, where)
    if type(value) in (list, tuple, set, torch.Size):
        return type(value)(to_plain(item, f"{where}[{index}]") for index, item in enumerate(value))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        return _array_to_plain(value)
    if isinstance(value, (*_PLAIN, torch.dtype, torch.device)):
        return value
    raise UserError(
        f"{where} holds a {type(value).__module__}.{type(value).__qualname__}, which cannot be stored without pickling it: expected tensors, "
        "numbers, strings, and lists or dictionaries of them. Leave it out of the state, or store a plain value from which it can be rebuilt."
    )


def from_plain(value: Any, meshes: Meshes) -> Any:
    """What `to_plain` was given, with DTensors on the live meshes."""
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        kind = value.get(_KIND)
        if kind == "dtensor":
            return _plain_to_dtensor(value, meshes)
        if kind == "array":
            return value["tensor"].numpy().view(value["dtype"]).reshape(value["shape"])
        return _refill(value, {key: from_plain(item, meshes) for key, item in value.items()})
    if type(value) in (list, tuple, set):
        return type(value)(from_plain(item, meshes) for item in value)
    return value


def meshes_in(value: Any) -> dict[tuple[Any, ...], Any]:
    """Every mesh on which a DTensor inside `value` lies, by what makes two meshes the same."""
    return {_mesh_key(tensor.device_mesh): tensor.device_mesh for tensor in _dtensors(value)}


def _array_to_plain(value: Any) -> dict[str, Any]:
    import numpy
    import torch

    octets = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
    return {_KIND: "array", "tensor": torch.from_numpy(octets.copy()), "dtype": value.dtype.str, "shape": list(value.shape)}


def _mapping_to_plain(value: Mapping[Any, Any], where: str) -> Any:
    for key in value:
        if not isinstance(key, (str, int, float, bool, tuple)):
            raise UserError(f"{where} has a key of type {type(key).__qualname__}: expected text or numbers as keys.")
    return _refill(value, {key: to_plain(item, f"{where}[{key!r}]") for key, item in value.items()})


def _refill(like: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """`items` in a container of the same kind. A module's state carries the versions of its parts in an attribute, which must not get lost."""
    if type(like) is Counter:
        return Counter(items)
    if not isinstance(like, OrderedDict):
        return items
    ordered = OrderedDict(items)
    if hasattr(like, "_metadata"):
        ordered._metadata = like._metadata  # type: ignore[attr-defined]
    return ordered


def _is_dtensor(value: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _dtensors(value: Any) -> Iterator[Any]:
    if _is_dtensor(value):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _dtensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _dtensors(item)


def _mesh_key(mesh: Any) -> tuple[Any, ...]:
    return (tuple(mesh.mesh.shape), tuple(mesh.mesh.flatten().tolist()), tuple(mesh.mesh_dim_names or ()))


def _dtensor_to_plain(value: Any, where: str) -> dict[str, Any]:
    return {
        _KIND: "dtensor",
        # A local part may be a view into something larger, all of which would be stored; a copy of it is what this rank holds and no more.
        "local": _compact(value.detach().to_local()),
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "placements": [_placement_to_plain(placement, where) for placement in value.placements],
        "mesh": _mesh_key(value.device_mesh),
    }


def _compact(tensor: Any) -> Any:
    return tensor.clone() if tensor.untyped_storage().nbytes() != tensor.nbytes else tensor


def _placement_to_plain(placement: Any, where: str) -> tuple[Any, ...]:
    if placement.is_replicate():
        return ("replicate",)
    if placement.is_shard():
        split_factor = getattr(placement, "split_factor", None)
        return ("shard", placement.dim) if split_factor is None else ("strided_shard", placement.dim, split_factor)
    raise UserError(f"{where} is a DTensor with placement {placement}: expected Shard or Replicate, since a partial sum is not state.")


def _plain_to_dtensor(note: dict[str, Any], meshes: Meshes) -> Any:
    import torch
    from torch.distributed.tensor import DTensor

    mesh = meshes.get(note["mesh"])
    if mesh is None:
        live = ", ".join(f"{key[0]} {key[2] or ''}".strip() for key in meshes) or "none"
        raise CheckpointMismatch(
            f"the checkpoint holds tensors sharded over a mesh of shape {note['mesh'][0]} {note['mesh'][2] or ''}; this script's meshes are: {live}. "
            "Start it with the same mesh; another one is not yet possible."
        )
    return DTensor.from_local(
        note["local"].to(mesh.device_type),
        mesh,
        [_plain_to_placement(placement) for placement in note["placements"]],
        run_check=False,
        shape=torch.Size(note["shape"]),
        stride=tuple(note["stride"]),
    )


def _plain_to_placement(placement: tuple[Any, ...]) -> Any:
    from torch.distributed.tensor import Replicate, Shard

    if placement[0] == "replicate":
        return Replicate()
    if placement[0] == "shard":
        return Shard(placement[1])
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(placement[1], split_factor=placement[2])
