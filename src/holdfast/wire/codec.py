"""Events and effects as bytes: the name of their type, and a body. The same on the wire and in the journal."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.domain.effect import EFFECTS, Effect
from holdfast.domain.event import EVENTS, Event
from holdfast.errors import HoldfastError

_EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in EVENTS}
_EFFECTS: dict[str, type[Any]] = {kind.__name__: kind for kind in EFFECTS}


class UnknownKind(HoldfastError):
    """Somebody newer wrote this."""


def encode(value: Event | Effect) -> tuple[str, bytes]:
    return type(value).__name__, msgspec.json.encode(value)


def decode_event(kind: str, body: bytes) -> Event:
    event: Event = msgspec.json.decode(body, type=_known(_EVENTS, kind))
    return event


def decode_effect(kind: str, body: bytes) -> Effect:
    effect: Effect = msgspec.json.decode(body, type=_known(_EFFECTS, kind))
    return effect


def _known(kinds: dict[str, type[Any]], kind: str) -> type[Any]:
    if kind not in kinds:
        raise UnknownKind(f"{kind!r} is not a kind this version knows ({', '.join(sorted(kinds))}); it was written by a newer Holdfast: upgrade this one")
    return kinds[kind]
