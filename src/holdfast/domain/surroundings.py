"""Surroundings: what an attempt was started with, and what is different since another one.

Facts by name: "package torch" to "2.6.0", "environment NCCL_ALGO" to a digest of its value, "commit", "script", "arguments", "world size", "python", "driver",
"kernel". The first word of a name is its kind. A value of the environment may be a secret, so only whether it is another one is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    kind: str  # The first word of the fact's name.
    because: str  # In words.


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Difference, ...]:
    """What changed from one attempt to a later one; nothing where one of the two was not recorded."""
    if not before or not after:
        return ()
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return tuple(Difference(kind=name.partition(" ")[0], because=_said(name, before.get(name), after.get(name))) for name in names)


def _said(name: str, before: str | None, after: str | None) -> str:
    if before is None:
        return f"{name} is new{'' if name.startswith('environment ') else f': {after}'}"
    if after is None:
        return f"{name} is gone{'' if name.startswith('environment ') else f', it was {before}'}"
    if name.startswith(("environment ", "script")):
        return f"{name} is another one"
    return f"{name} was {before}, is {after}"
