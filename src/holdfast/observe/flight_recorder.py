"""torch's flight recorder: the last collectives of a process, as it dumps them. `collectives` says where a rank is in each process group.

Two forms of the same, of version 2: JSON from `torch._C._distributed_c10d._dump_fr_trace_json` (gloo and NCCL), which a worker with our trainer writes when it
is asked, and the pickle that torch's NCCL watchdog leaves at TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE. Of a pickle only plain values are
taken: one that names a class or a function is refused before anything of it is made.

Is wrong    about groups whose names differ between ranks: they are not compared with each other. Point-to-point operations are left out.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from typing import Any

from holdfast.domain.collective import Collective

_UNNAMED = ("", "undefined")


def read_json(text: bytes) -> tuple[Collective, ...]:
    """Raises ValueError for what is no dump."""
    return collectives(json.loads(text))


def read_pickle(data: bytes) -> tuple[Collective, ...]:
    """Raises ValueError for what is no dump."""
    try:
        return collectives(_PlainValues(io.BytesIO(data)).load())
    except (pickle.UnpicklingError, EOFError, IndexError, MemoryError) as error:
        raise ValueError(f"no dump of a flight recorder: {error}") from error


def collectives(dump: object) -> tuple[Collective, ...]:
    """The newest collective in each group. Raises ValueError when `dump` is not of a form we know."""
    if not isinstance(dump, Mapping) or not isinstance(dump.get("entries", []), list):
        raise ValueError("no dump of a flight recorder: it has no list of entries")
    newest: dict[str, Mapping[str, Any]] = {}
    for entry in dump.get("entries", []):
        if isinstance(entry, Mapping) and not entry.get("is_p2p") and isinstance(entry.get("collective_seq_id"), int):
            group = _group(entry)
            if group not in newest or entry["collective_seq_id"] >= newest[group]["collective_seq_id"]:
                newest[group] = entry
    configs = dump.get("pg_config")
    return tuple(_collective(group, entry, configs if isinstance(configs, Mapping) else {}) for group, entry in sorted(newest.items()))


def pending(dump: object) -> frozenset[tuple[str, int]]:
    """The collectives that were given to a GPU and have not ended: of each group of NCCL's the newest, where earlier ones were seen to end. Gloo does not say
    when one has ended. Raises ValueError when `dump` is not of a form we know."""
    if not isinstance(dump, Mapping) or not isinstance(dump.get("entries", []), list):
        raise ValueError("no dump of a flight recorder: it has no list of entries")
    entries = [entry for entry in dump.get("entries", []) if isinstance(entry, Mapping) and str(entry.get("profiling_name", "")).startswith("nccl:")]
    end_here = {_group(entry) for entry in entries if _is_done(entry)}
    newest = {one.group: one for one in collectives({"entries": entries})}
    return frozenset((group, one.sequence) for group, one in newest.items() if not one.done and group in end_here)


def _collective(group: str, entry: Mapping[str, Any], configs: Mapping[str, Any]) -> Collective:
    operation = str(entry.get("profiling_name", ""))
    return Collective(group=group, sequence=entry["collective_seq_id"], operation=operation, done=_is_done(entry), members=_members(_names(entry)[0], configs))


def _is_done(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def _names(entry: Mapping[str, Any]) -> tuple[str, str]:
    """The group's name, the same on all its ranks, and what it is for."""
    named = entry.get("process_group")
    both = [str(one) for one in named] if isinstance(named, (list, tuple)) else [str(named or entry.get("pg_id", ""))]
    return both[0], both[1] if len(both) > 1 else ""


def _group(entry: Mapping[str, Any]) -> str:
    name, purpose = _names(entry)
    return name if purpose in _UNNAMED else f"{purpose} ({name})"


def _members(name: str, configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Written as a list in a string; of a single group, under whatever name it is."""
    config = configs.get(name, next(iter(configs.values())) if len(configs) == 1 else None)
    ranks = config.get("ranks") if isinstance(config, Mapping) else None
    try:
        listed = json.loads(ranks) if isinstance(ranks, str) else ranks
        return tuple(int(rank) for rank in listed) if isinstance(listed, list) else ()
    except ValueError:
        return ()


class _PlainValues(pickle.Unpickler):
    """Numbers, text, lists and dictionaries need no class: whatever asks for one is refused, and so can run nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a dump of a flight recorder names nothing")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it points to something outside of itself")
