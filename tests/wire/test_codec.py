"""Events and effects survive the trip through bytes, all of them, whatever is in them."""

from __future__ import annotations

import dataclasses
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.effect import EFFECTS
from holdfast.domain.event import EVENTS
from holdfast.wire.codec import UnknownKind, decode_effect, decode_event, encode


def values(kind: object) -> st.SearchStrategy[typing.Any]:
    """Any value of a type that can stand in an event or effect."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{field.name: values(hints[field.name]) for field in dataclasses.fields(kind)})
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return st.lists(values(inner[0]), max_size=3).map(tuple) if inner[-1] is ... else st.tuples(*map(values, inner))
    if origin is dict:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=3)
    if inner:
        return st.one_of(*(values(one) for one in inner))
    if kind is int:
        return st.integers(-(2**63), 2**63 - 1)
    if kind is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    return st.from_type(typing.cast(type, kind))


@pytest.mark.parametrize("kind", EVENTS)
@settings(max_examples=15)
@given(data=st.data())
def test_every_event_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    event = data.draw(values(kind))
    assert decode_event(*encode(event)) == event


@pytest.mark.parametrize("kind", EFFECTS)
@settings(max_examples=15)
@given(data=st.data())
def test_every_effect_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    effect = data.draw(values(kind))
    assert decode_effect(*encode(effect)) == effect


def test_a_kind_of_a_newer_version_says_what_to_do() -> None:
    with pytest.raises(UnknownKind, match="upgrade"):
        decode_event("GangTeleported", b"{}")
    with pytest.raises(UnknownKind, match="upgrade"):
        decode_effect("Ticked", b"{}")
