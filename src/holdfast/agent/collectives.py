"""What can be known of the collectives of a node's ranks: torch's flight recorder, NCCL's RAS and its inspector, where they are present.

A worker with our trainer inside waits, in a thread, at a pipe: a byte there, and it writes its flight recorder's dump beside it. So a rank that hangs in a
collective answers too, since it has let go of the GIL there; one that holds it does not, and is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent import tree
from holdfast.domain.collective import Collective
from holdfast.observe import flight_recorder, nccl_inspector, nccl_ras

_GPUS = Path("/dev/nvidiactl")
_ANSWER_WITHIN_S = 2.0  # Less than a capture of stacks may take, which waits for this too.
_BUFFERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def flight_path(directory: Path, generation: int, rank: int, environment: Mapping[str, str]) -> Path | None:
    """The pipe of a worker whose flight recorder is on, made before the worker starts; None where it is not. With GPUs torch has it on unless it is told not
    to."""
    sizes = [environment[name].strip() for name in _BUFFERS if environment.get(name, "").strip().isdigit()]
    if not any(map(int, sizes)) and (sizes or not _GPUS.exists()):
        return None
    path = directory / f"flight-{generation}-{rank}"
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    return path


async def gather(pids: Mapping[int, int], directory: Path, generation: int, environment: Mapping[str, str], *, hung: bool) -> dict[str, Any]:
    """What goes into the answer of an effect, about a gang that is hung or one that runs. Never fails, and takes no longer than a few seconds."""
    processes = set(pids.values())
    address = environment.get("NCCL_RAS_ADDR", "")
    recorded, ras = await asyncio.gather(
        _recorded(pids if hung else {}, directory, generation, environment), nccl_ras.ask(address or nccl_ras.DEFAULT_ADDRESS, within_s=_ANSWER_WITHIN_S)
    )
    said = list(nccl_ras.words(ras, processes=processes, ours=bool(address), hung=hung))
    if environment.get("NCCL_INSPECTOR_DUMP_DIR"):
        said += nccl_inspector.words(await asyncio.to_thread(nccl_inspector.read, Path(environment["NCCL_INSPECTOR_DUMP_DIR"]), processes))
    return {"collectives": {str(rank): msgspec.to_builtins(ones) for rank, ones in recorded.items()}, "communication": said}


async def _recorded(pids: Mapping[int, int], directory: Path, generation: int, environment: Mapping[str, str]) -> dict[int, tuple[Collective, ...]]:
    """By our own pipe where the worker answers there, else what torch's watchdog left."""
    asked = {rank: directory / f"flight-{generation}-{rank}" for rank in pids}
    waiting = {rank: path.with_suffix(".json") for rank, path in asked.items() if ask(path)}
    found: dict[int, tuple[Collective, ...]] = {}
    deadline = time.monotonic() + _ANSWER_WITHIN_S
    while waiting and time.monotonic() < deadline:
        for rank, path in list(waiting.items()):
            with contextlib.suppress(FileNotFoundError):
                text = path.read_bytes()
                del waiting[rank]
                with contextlib.suppress(ValueError):
                    found[rank] = flight_recorder.read_json(text)
        await asyncio.sleep(0.02)
    prefix = next((environment[name] for name in _DUMPS if environment.get(name)), "")
    for rank, pid in pids.items() if prefix else ():
        if not found.get(rank):
            with contextlib.suppress(OSError, ValueError):
                path = Path(f"{prefix}{rank}")
                if path.stat().st_mtime >= tree.started_at(pid):  # Not what an earlier process of this rank left.
                    found[rank] = flight_recorder.read_pickle(path.read_bytes())
    return {rank: ones for rank, ones in found.items() if ones}


def pending(path: Path) -> frozenset[tuple[str, int]]:
    """Returns which collectives of a rank had not ended on its GPU when it was asked last, if it answered; and asks again."""
    try:
        found = flight_recorder.pending(json.loads(path.with_suffix(".json").read_bytes()))
    except (OSError, ValueError):
        found = frozenset()
    ask(path)
    return found


def ask(path: Path) -> bool:
    """False when no worker waits at the pipe."""
    try:
        path.with_suffix(".json").unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, b"1")
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
