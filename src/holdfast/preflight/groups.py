"""Control groups: which version, which controllers can be used here, and what this machine's share of itself is: a container may have less than it seems."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.observe.cgroup import find
from holdfast.preflight.check import Check, Place, ok, warn

_CONTROLLERS = ("memory", "cpu", "pids")


def look(place: Place) -> list[Check]:
    places = find("self", Path("/proc"), _CONTROLLERS)
    usable = [name for name in _CONTROLLERS if name in places and os.access(places[name].directory, os.W_OK)]
    missing = [name for name in _CONTROLLERS if name not in usable]
    versions = sorted({one.version for one in places.values()})
    told = f"version {' and '.join(map(str, versions)) or 'none'}; can be used: {', '.join(usable) or 'none'}"
    if missing:
        do = "run as root, or in a group of its own with Delegate=yes; without it --memory, --cpus and --max-processes are not held to"
        return [warn("groups", f"{told}; not: {', '.join(missing)}", do)]
    return [ok("groups", told)]
