"""Having ranks profile themselves: ask each through its record in shared memory, and wait for what it leaves on the disk.

A worker that is hung, has no trainer inside or died meanwhile answers nothing; it is waited for no longer than the effect says, and missing with a reason.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.watch import Watch
from holdfast.domain.effect import CaptureProfile
from holdfast.domain.profile import RankProfile, Request, answer_file

_LOOK_EVERY_S = 0.2
_SHARE_TO_TAKE = 0.5  # Of the time there is; the rest is for writing it down.


async def capture(watch: Watch, effect: CaptureProfile, directory: Path, *, node: str) -> dict[str, Any]:
    """The answer to the effect. Asked again after our own death, it goes on waiting for the same files."""
    request = Request(generation=effect.generation, steps=effect.steps, limit_s=_SHARE_TO_TAKE * effect.within_s, name=effect.name)
    found: dict[int, RankProfile] = {}
    missing: dict[int, str] = {}
    for rank in effect.ranks:
        because = _cannot(watch, rank, effect.generation)
        if because:
            missing[rank] = because
        else:
            watch.ask_for_profile(rank, request)
    deadline = time.monotonic() + effect.within_s
    while len(found) + len(missing) < len(effect.ranks):
        for rank in effect.ranks:
            if rank not in found and rank not in missing:
                _look(watch, directory / effect.name / answer_file(rank), rank, effect, node, found, missing)
        if time.monotonic() > deadline:
            late = f"it did not finish {effect.steps} steps and write them down within {effect.within_s:.0f} s"
            missing |= {rank: late for rank in effect.ranks if rank not in found and rank not in missing}
        await asyncio.sleep(_LOOK_EVERY_S)
    return {"profiles": [msgspec.to_builtins(one) for one in found.values()], "missing": {str(rank): because for rank, because in missing.items()}}


def _look(
    watch: Watch, path: Path, rank: int, effect: CaptureProfile, node: str, found: dict[int, RankProfile], missing: dict[int, str]
) -> None:  # fmt: skip
    try:
        answer = msgspec.json.decode(path.read_bytes())
        if "because" in answer:
            missing[rank] = str(answer["because"])
        else:
            found[rank] = msgspec.convert({**answer, "node": node}, type=RankProfile)
    except FileNotFoundError:
        if rank not in watch.ranks(effect.generation):
            missing[rank] = "it ended before its profile was there"
    except (OSError, msgspec.MsgspecError) as error:
        missing[rank] = f"what it left in {path} cannot be read: {error}"


def _cannot(watch: Watch, rank: int, generation: int) -> str:
    if rank not in watch.ranks(generation):
        return "it does not run here any more"
    return "" if watch.is_guarded(rank) else "its script does not go through holdfast.guard and run.steps"
