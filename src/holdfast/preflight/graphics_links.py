"""Links between GPUs: each copies a known pattern to each other one, which must arrive as it was, and as fast as between others that are joined the same way.

Is wrong    about speed where GPUs are joined in several ways at once (NVLink within a pair, PCIe between pairs): only links with direct access, or only those
            without, are compared with each other, and one that is far slower is a warning.
Costs       64 MiB of memory on each of two GPUs at a time. Of more than eight GPUs each is tried with the next four alone.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.preflight.check import Check, Place, bad, looking, ok, warn

_COPY_BYTES, _TURNS = 64 << 20, 3
_ALL_MAX, _NEXT = 8, 4
_SLOW = 0.5  # Of the median of the links that are joined the same way.


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    direct: bool = False  # One GPU can read the other's memory; else what is copied goes through the machine's.
    bytes_per_s: float = 0.0
    problem: str = ""


def look(place: Place) -> list[Check]:
    devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if devices < 2:
        return [ok("graphics_links", f"not examined: a link takes two GPUs, and there {'is 1' if devices else 'are none'} here")]
    if importlib.util.find_spec("torch") is None:
        return [warn("graphics_links", f"{devices} GPUs, not examined: torch is not installed here", "install torch: pip install 'holdfast[torch]'")]
    import torch

    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number < 2:
        return [ok("graphics_links", f"not examined: a link takes two GPUs, and torch sees {number} of {devices}")]
    return judge({pair: _copy(torch, *pair) for pair in pairs(number)})


def pairs(number: int) -> list[tuple[int, int]]:
    """Both ways."""
    reach = number - 1 if number <= _ALL_MAX else _NEXT
    return [(source, (source + step) % number) for source in range(number) for step in range(1, reach + 1)]


def _copy(torch: Any, source: int, target: int) -> Copied:
    looking(f"GPU {source} to GPU {target}")
    direct = bool(torch.cuda.can_device_access_peer(source, target))
    try:
        pattern = torch.arange(_COPY_BYTES // 8, dtype=torch.int64, device=torch.device("cuda", source)) * 2654435761 + source
        there, best_s = torch.zeros(_COPY_BYTES // 8, dtype=torch.int64, device=torch.device("cuda", target)), float("inf")
        for _ in range(_TURNS):
            torch.cuda.synchronize(source)
            torch.cuda.synchronize(target)
            began = time.perf_counter()
            there.copy_(pattern)
            torch.cuda.synchronize(source)
            torch.cuda.synchronize(target)
            best_s = min(best_s, time.perf_counter() - began)
        same = torch.equal(there.cpu(), pattern.cpu())  # Compared on the machine: a wrong link must not judge itself.
        return Copied(direct=direct, bytes_per_s=_COPY_BYTES / best_s, problem="" if same else "other bytes arrived than were sent")
    except RuntimeError as error:
        return Copied(direct=direct, problem=str(error).splitlines()[0])


def judge(seen: Mapping[tuple[int, int], Copied]) -> list[Check]:
    wrong = {pair: one.problem for pair, one in seen.items() if one.problem}
    if wrong:
        said = "; ".join(f"GPU {source} to GPU {target}: {problem}" for (source, target), problem in list(wrong.items())[:4])
        do = "take it out of service; `nvidia-smi nvlink -e` and `nvidia-smi -q` have its errors, and the kernel log (`dmesg | grep NVRM`)"
        return [bad("graphics_links", said, do, culprit=_culprit(list(wrong), list(seen)))]
    return [_compared(seen, direct=direct) for direct in (True, False) if any(one.direct == direct for one in seen.values())]


def _compared(seen: Mapping[tuple[int, int], Copied], *, direct: bool) -> Check:
    alike = {pair: one.bytes_per_s for pair, one in seen.items() if one.direct == direct}
    median = statistics.median(alike.values())
    how = "directly" if direct else "through the machine's memory"
    told = f"{len(alike)} links between GPUs copy {how}, {median / 1e9:.3g} GB/s each"
    slow = [pair for pair, rate in alike.items() if rate < _SLOW * median]
    if slow:
        do = "see how they are joined (`nvidia-smi topo -m`) and whether a link is down or repeats itself (`nvidia-smi nvlink -s`, `-e`)"
        lowest = min(alike.values()) / 1e9
        return warn("graphics_links", f"{told}, but {lowest:.3g} on {_pairs(slow)}", do, culprit=_culprit(slow, list(alike)), bytes_per_s=median)
    if not direct and any(one.direct for one in seen.values()):
        do = "see `nvidia-smi topo -m`: some GPUs here have direct links, and these should"
        return warn("graphics_links", told, do, culprit=_culprit(list(alike), list(seen)), bytes_per_s=median)
    return ok("graphics_links", told, bytes_per_s=median)


def _culprit(failed: list[tuple[int, int]], tried: list[tuple[int, int]]) -> str:
    """The GPU that has failed in all its links, where that explains every failure; else the links themselves."""
    failures, tries = (Counter(gpu for pair in some for gpu in pair) for some in (failed, tried))
    alone = [gpu for gpu, count in failures.items() if count == tries[gpu]]
    explained = alone and all(set(pair) & set(alone) for pair in failed) and len(alone) < len(tries)
    return ", ".join(f"GPU {gpu}" for gpu in sorted(alone)) if explained else _pairs(failed)


def _pairs(some: list[tuple[int, int]]) -> str:
    return ", ".join(f"GPU {source} to GPU {target}" for source, target in some[:4]) + (f" and {len(some) - 4} more" if len(some) > 4 else "")
