"""State as plain values: what a file may hold so that reading it runs nobody's code.

`to_plain` turns a state dictionary into tensors, numbers, strings and containers of them, without copying a tensor; `from_plain` turns it back. NumPy
arrays become tensors, and a DTensor becomes this rank's own part of it with a note about the whole: shape, placements, mesh, and where the part lies in
it. Whoever reads back says what each tensor becomes, since only the script knows how it is sharded now.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from holdfast.errors import UserError

KIND: Final = "__holdfast__"  # Marks a dictionary that stands for something else.
DTENSOR: Final = "dtensor"
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))

Resolve = Callable[[str, Any], Any]  # Given the path of a tensor and the tensor, or the note of a DTensor: what stands there now.


def to_plain(value: Any, where: str) -> Any:
    """`value` with only plain values in it; `where` names it in the error when that cannot be."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            kind = "quantized" if value.is_quantized else "without data (meta)" if value.is_meta else f"of layout {value.layout}"
            raise UserError(f"{where} is a tensor {kind}, whose bytes are not its values: expected a dense one. Store its parts instead.")
        return _dtensor_to_plain(value, where) if is_dtensor(value) else value.detach()
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


def from_plain(value: Any, resolve: Resolve, path: str) -> Any:
    """What `to_plain` was given, with every tensor as `resolve` wants it."""
    import torch

    if isinstance(value, torch.Tensor):
        return resolve(path, value)
    if isinstance(value, dict):
        kind = value.get(KIND)
        if kind == DTENSOR:
            return resolve(path, value)
        if kind == "array":
            return value["tensor"].numpy().view(value["dtype"]).reshape(value["shape"])
        return _refill(value, {key: from_plain(item, resolve, f"{path}.{key}") for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(from_plain(item, resolve, f"{path}.{index}") for index, item in enumerate(value))
    return value


def tensors_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every tensor inside a live state, with its path as `from_plain` gives it."""
    import torch

    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{path}.{index}")


def is_dtensor(value: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def mesh_key(mesh: Any) -> tuple[Any, ...]:
    """What makes two meshes the same."""
    return (tuple(mesh.mesh.shape), tuple(mesh.mesh.flatten().tolist()), tuple(mesh.mesh_dim_names or ()))


def placements_of(note: Mapping[str, Any]) -> list[Any]:
    return [_plain_to_placement(placement) for placement in note["placements"]]


def part_of(tensor: Any, *, shape: list[int], offset: list[int]) -> dict[str, Any]:
    """The note of a tensor that is part of a larger one, laid out by nobody we know."""
    return {KIND: DTENSOR, "local": tensor, "shape": shape, "stride": [], "placements": [], "mesh": None, "dtype": tensor.dtype, "offset": offset}


def whole_dtensor(note: Mapping[str, Any], mesh: Any) -> Any:
    """The DTensor a note was made of, on a mesh that is the same."""
    import torch
    from torch.distributed.tensor import DTensor

    local = note["local"].to(mesh.device_type)
    return DTensor.from_local(local, mesh, placements_of(note), run_check=False, shape=torch.Size(note["shape"]), stride=tuple(note["stride"]))


def _array_to_plain(value: Any) -> dict[str, Any]:
    import numpy
    import torch

    octets = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
    return {KIND: "array", "tensor": torch.from_numpy(octets.copy()), "dtype": value.dtype.str, "shape": list(value.shape)}


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


def _dtensor_to_plain(value: Any, where: str) -> dict[str, Any]:
    return {
        KIND: DTENSOR,
        # A local part may be a view into something larger, all of which would be stored; a copy of it is what this rank holds and no more.
        "local": _compact(value.detach().to_local()),
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "placements": [_placement_to_plain(placement, where) for placement in value.placements],
        "mesh": mesh_key(value.device_mesh),
        "dtype": value.dtype,
        "offset": list(offset_of(value)),
    }


def offset_of(value: Any) -> tuple[int, ...]:
    """Where the part that this rank holds lies in the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    return tuple(offset)


def _compact(tensor: Any) -> Any:
    return tensor.clone() if tensor.untyped_storage().nbytes() != tensor.nbytes else tensor


def _placement_to_plain(placement: Any, where: str) -> tuple[Any, ...]:
    if placement.is_replicate():
        return ("replicate",)
    if (split_factor := getattr(placement, "split_factor", None)) is not None:  # Asked first: some versions of torch do not call it a shard.
        return ("strided_shard", placement.dim, split_factor)
    if placement.is_shard():
        return ("shard", placement.dim)
    raise UserError(f"{where} is a DTensor with placement {placement}: expected Shard or Replicate, since a partial sum is not state.")


def _plain_to_placement(placement: tuple[Any, ...]) -> Any:
    from torch.distributed.tensor import Replicate, Shard

    if placement[0] == "replicate":
        return Replicate()
    if placement[0] == "shard":
        return Shard(placement[1])
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(placement[1], split_factor=placement[2])
