"""The taxonomy: every class of causes, once, as data. Signatures, the answer to a person and docs/causes.md are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from holdfast.diagnose.taxonomy import hardware, machine, memory, messages, program, storage, surroundings
from holdfast.diagnose.taxonomy.cause_class import CauseClass, Permanence, Role, Scope
from holdfast.domain.diagnosis import Cause

__all__ = ["CLASSES", "HEALTHY", "UNKNOWN", "CauseClass", "Permanence", "Role", "Scope", "class_of", "classes_seen_as"]

HEALTHY = "healthy"
UNKNOWN = "unknown"
_GROUPS = (memory, hardware, messages, storage, program, machine, surroundings)
CLASSES: Mapping[str, CauseClass] = MappingProxyType({one.name: one for group in _GROUPS for one in group.CLASSES})


def classes_seen_as(cause: Cause) -> tuple[str, ...]:
    """What may stand behind the name that the core gives to a failure."""
    return tuple(one.name for one in CLASSES.values() if cause in one.seen_as)


def class_of(name: str) -> CauseClass:
    """The class of this name; what nobody has heard of is `unknown`."""
    return CLASSES.get(name, CLASSES[UNKNOWN])
