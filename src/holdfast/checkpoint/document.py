"""State as a document: JSON for its shape and its small values, and beside it the tensors, in order.

`to_document` takes plain state (see `plain.py`) and `from_document` gives it back, the same to the last bit and to the kind of every container. Reading
one runs nobody's code. What JSON has no word for is an object with the key `$`:

    {"$": "tensor", "n": 3}                     the tensor number 3
    {"$": "tuple", "of": [1, 2]}                also list-like: set, size
    {"$": "dict", "of": [[1, "a"], [2, "b"]]}   keys that are not text; also ordered (a module's state, with its versions) and counter
    {"$": "float", "is": "nan"}                 also inf and -inf; complex, bytes, dtype, device
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from holdfast.checkpoint.plain import DTENSOR, KIND

_MARK: Final = "$"
_LEAVES: Final = ("tensor", "float", "complex", "bytes", "dtype", "device")


def to_document(value: Any, tensors: list[Any]) -> Any:
    """The document for `value`; its tensors are appended to `tensors`."""
    import torch

    def pairs(items: Any) -> list[Any]:
        return [[to_document(key, tensors), to_document(item, tensors)] for key, item in items]

    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {_MARK: "float", "is": repr(float(value))}
        case torch.Tensor():
            # The bytes of one that is seen conjugated or negated are those of other numbers.
            tensors.append(value.resolve_conj().resolve_neg() if value.is_conj() or value.is_neg() else value)
            return {_MARK: "tensor", "n": len(tensors) - 1}
        case torch.Size():
            return {_MARK: "size", "of": list(value)}
        case list():
            return [to_document(item, tensors) for item in value]
        case tuple() | set():
            return {_MARK: type(value).__name__, "of": [to_document(item, tensors) for item in value]}
        case OrderedDict():
            return {_MARK: "ordered", "of": pairs(value.items()), "versions": to_document(getattr(value, "_metadata", None), tensors)}
        case Counter():
            return {_MARK: "counter", "of": pairs(value.items())}
        case dict() if _MARK not in value and all(type(key) is str for key in value):
            return {key: to_document(item, tensors) for key, item in value.items()}
        case dict():
            return {_MARK: "dict", "of": pairs(value.items())}
        case complex():
            return {_MARK: "complex", "is": [repr(value.real), repr(value.imag)]}
        case bytes():
            return {_MARK: "bytes", "is": base64.b64encode(value).decode()}
        case torch.dtype():
            return {_MARK: "dtype", "is": str(value).removeprefix("torch.")}
        case torch.device():
            return {_MARK: "device", "is": str(value)}
    raise AssertionError(f"to_plain lets no {type(value).__qualname__} through")


def from_document(document: Any, tensors: list[Any]) -> Any:
    """What `to_document` was given; raises KeyError, IndexError or ValueError for something it never made."""
    import torch

    def read(item: Any) -> Any:
        return from_document(item, tensors)

    if isinstance(document, list):
        return [read(item) for item in document]
    if not isinstance(document, dict):
        return document
    match document.get(_MARK):
        case None:
            return {key: read(item) for key, item in document.items()}
        case "tensor":
            return tensors[document["n"]]
        case "size":
            return torch.Size(document["of"])
        case "tuple":
            return tuple(map(read, document["of"]))
        case "set":
            return set(map(read, document["of"]))
        case "ordered":
            ordered = OrderedDict((read(key), read(item)) for key, item in document["of"])
            if document["versions"] is not None:
                ordered._metadata = read(document["versions"])  # type: ignore[attr-defined]
            return ordered
        case "counter":
            return Counter({read(key): read(item) for key, item in document["of"]})
        case "dict":
            return {read(key): read(item) for key, item in document["of"]}
        case "float":
            return float(document["is"])
        case "complex":
            return complex(*map(float, document["is"]))
        case "bytes":
            return base64.b64decode(document["is"])
        case "dtype":
            return dtype_named(document["is"])
        case "device":
            return torch.device(document["is"])
        case kind:
            raise ValueError(f"a document has no {kind!r}")


def leaves(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What a document holds that is no container, with its path: the keys down to it, joined by dots."""
    if isinstance(document, list):
        inside: Any = enumerate(document)
    elif not isinstance(document, dict) or is_sharded(document) or document.get(_MARK) in _LEAVES:
        yield path, document
        return
    else:
        match document.get(_MARK):
            case None:
                inside = document.items()
            case "tuple" | "set" | "size":
                inside = enumerate(document["of"])
            case _:
                inside = ((from_document(key, []), item) for key, item in document["of"])
    for key, item in inside:
        yield from leaves(item, f"{path}.{key}" if path else str(key))


def is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, dict) and leaf.get(_MARK) == "tensor"


def is_sharded(leaf: Any) -> bool:
    """Whether it is the note of a DTensor, which counts as one thing."""
    return isinstance(leaf, dict) and leaf.get(KIND) == DTENSOR


def sharded_parts(document: Any) -> frozenset[int]:
    """The numbers of the tensors that are parts of DTensors."""
    return frozenset(leaf["local"]["n"] for _, leaf in leaves(document) if is_sharded(leaf))


def dtype_named(name: str) -> Any:
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"this torch has no dtype {name!r}")
    return found
