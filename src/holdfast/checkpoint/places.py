"""Places: where in this script, as it runs now, a saved tensor belongs.

A checkpoint is restored by as many ranks as there are and on whatever mesh they have made. What is saved as it lies here is taken as it is. What lies otherwise
now (another world size, another mesh, sharded before and whole now or the other way round) gets an empty tensor of the right kind, and is
filled in one go by torch.distributed.checkpoint's planner, which knows how to put boxes together out of other boxes (`dcp.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.checkpoint.errors import CheckpointMismatch
from holdfast.checkpoint.plain import is_dtensor, mesh_key, placements_of, tensors_in, whole_dtensor


class Places:
    """The live tensors of the pieces, by path. `waiting` are the tensors that have to be filled."""

    def __init__(self, pieces: Mapping[str, Any], states: Mapping[str, Any]) -> None:
        self._live = {path: tensor for name, state in states.items() for path, tensor in tensors_in(state, name)}
        self._parameters = {name: parameters for name, piece in pieces.items() if (parameters := _parameters_of(piece))}
        self._meshes = {mesh_key(tensor.device_mesh): tensor.device_mesh for tensor in self._all_dtensors()}
        self.waiting: dict[str, Any] = {}

    def resolve(self, path: str, saved: Any) -> Any:
        """What stands at `path` now: `saved` itself, or a tensor that waits to be filled."""
        sharded = isinstance(saved, dict)
        shape = tuple(saved["shape"]) if sharded else tuple(saved.shape)
        live = self._find(path, shape)
        if not sharded and not is_dtensor(live):
            return saved
        if live is not None and tuple(live.shape) != shape:
            raise CheckpointMismatch(f"{path} was saved with shape {list(shape)} and has {list(live.shape)} in this script: undo the change, or start anew.")
        if sharded and self._lies_alike(saved, live):
            return whole_dtensor(saved, self._meshes[saved["mesh"]])
        self.waiting[path] = target = self._empty(saved, saved["dtype"] if sharded else saved.dtype, live, shape)
        return target

    def _lies_alike(self, saved: Mapping[str, Any], live: Any) -> bool:
        if saved["local"] is None or saved["mesh"] not in self._meshes:
            return False
        return live is None or (is_dtensor(live) and mesh_key(live.device_mesh) == saved["mesh"] and list(live.placements) == placements_of(saved))

    def _empty(self, saved: Any, dtype: Any, live: Any, shape: tuple[int, ...]) -> Any:
        import torch

        if is_dtensor(live):
            return torch.distributed.tensor.empty(shape, dtype=dtype, device_mesh=live.device_mesh, placements=live.placements)
        mesh = next((mesh for key, mesh in self._meshes.items() if (len(key[0]), key[2]) == (len(saved["mesh"][0]), saved["mesh"][2])), None)
        if live is None and mesh is not None:  # Nothing here says how it lies, so it lies as it did.
            return torch.distributed.tensor.empty(shape, dtype=dtype, device_mesh=mesh, placements=placements_of(saved))
        return torch.empty(shape, dtype=dtype)

    def _find(self, path: str, shape: tuple[int, ...]) -> Any:
        """The live tensor, or the parameter whose optimizer state this is: an optimizer that has not stepped yet has none of its own."""
        if path in self._live:
            return self._live[path]
        piece, *rest = path.split(".")
        if piece in self._parameters and len(rest) == 3 and rest[0] == "state" and rest[1].isdecimal() and int(rest[1]) < len(self._parameters[piece]):
            parameter = self._parameters[piece][int(rest[1])]
            return parameter if tuple(parameter.shape) == shape else None
        return None

    def _all_dtensors(self) -> list[Any]:
        return [tensor for tensor in (*self._live.values(), *(one for some in self._parameters.values() for one in some)) if is_dtensor(tensor)]


def _parameters_of(piece: Any) -> list[Any]:
    import torch

    return [parameter for group in piece.param_groups for parameter in group["params"]] if isinstance(piece, torch.optim.Optimizer) else []
