"""Where this process stands: what the environment says about the job, the gang and the agent. No other module of the trainer reads the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.domain.scaling import Scaling
from holdfast.domain.treatment import Window, windows_of
from holdfast.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A worker's place. Without an agent `beats` is None: the process is unplugged, and simply trains."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    job: str = ""
    generation: int | None = None
    beats: Path | None = None
    checkpoints: Path | None = None
    snapshots: Path | None = None  # Where an agent looks for state to make durable.
    interval: Path | None = None  # Where an agent says how often to save.
    profile: Path | None = None  # Where it asks for a profile,
    profiles: Path | None = None  # and where that is to lie.
    flight: Path | None = None  # The pipe at which it asks for torch's flight recorder, where that is on.
    save_every: int | None = None  # What control has chosen for this generation, in steps; None: nothing yet.
    save_asked: bool = False  # Whatever the script says.
    loader_workers: int | None = None  # The most that a data loader is to have, where more did not fit into the host's memory.
    micro_batch: int | None = None  # The most samples a rank is to be given at once, where more did not fit into memory.
    left_out: tuple[Window, ...] = ()  # Data that is passed over, because training went wrong with it.
    tune: str = ""  # What is to be otherwise than the script says: see `tuning.py`.
    scaling: Scaling = field(default_factory=Scaling)  # Of batch and learning rate, in a gang that is smaller than asked for.
    until: int | None = None  # The step after which the run is to end, for a bisection,
    curve: Path | None = None  # and where rank 0 writes down its losses.
    restore: str | None = None  # Empty: start fresh. None: nobody chose, take the newest complete one.
    rejoin: bool = False  # The state comes from ranks that lived on.

    @property
    def plugged(self) -> bool:
        return self.beats is not None


def place_here(environment: Mapping[str, str] | None = None) -> Place:
    """This process's place. A process group that is already there knows rank and world size better than the environment does."""
    found = _from_environment(os.environ if environment is None else environment)
    group = process_group()
    return replace(found, rank=group.get_rank(), world_size=group.get_world_size()) if group else found


def process_group() -> Any:
    """The module torch.distributed when the script has made a process group with it, else None."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed is not None and distributed.is_available() and distributed.is_initialized() else None


def group_timeout_s() -> float | None:
    """Returns after how long torch ends a collective of the script's process group that does not end; None where there is no group, or it does not say."""
    distributed = process_group()
    if distributed is None:
        return None
    try:
        group = distributed.distributed_c10d._get_default_group()
        backends = (group._get_backend(device) for device in group._device_types)
        return max(float(backend.options._timeout.total_seconds()) for backend in backends)
    except Exception:  # Parts of it are torch's own business and may change: then it is not known.
        return None


def _from_environment(environment: Mapping[str, str]) -> Place:
    beats, checkpoints, snapshots, interval = (environment.get(f"HOLDFAST_{name}") for name in ("BEATS", "CHECKPOINTS", "SNAPSHOTS", "INTERVAL"))
    profile, profiles, flight = (environment.get(f"HOLDFAST_{name}") for name in ("PROFILE", "PROFILES", "FLIGHT"))
    return Place(
        rank=_whole(environment, "RANK", 0),
        world_size=_whole(environment, "WORLD_SIZE", 1),
        local_rank=_whole(environment, "LOCAL_RANK", 0),
        local_world_size=_whole(environment, "LOCAL_WORLD_SIZE", 1),
        job=environment.get("HOLDFAST_JOB", ""),
        generation=_whole(environment, "HOLDFAST_GENERATION", 0) if "HOLDFAST_GENERATION" in environment else None,
        beats=Path(beats) if beats else None,
        checkpoints=Path(checkpoints) if checkpoints else None,
        snapshots=Path(snapshots) if snapshots else None,
        interval=Path(interval) if interval else None,
        profile=Path(profile) if profile else None,
        profiles=Path(profiles) if profiles else None,
        flight=Path(flight) if flight else None,
        save_every=_whole(environment, "HOLDFAST_SAVE_EVERY", 0) if environment.get("HOLDFAST_SAVE_EVERY") else None,
        save_asked=environment.get("HOLDFAST_SAVE_ASKED") == "1",
        micro_batch=_whole(environment, "HOLDFAST_MICRO_BATCH", 0) if environment.get("HOLDFAST_MICRO_BATCH") else None,
        loader_workers=_whole(environment, "HOLDFAST_LOADER_WORKERS", 0) if environment.get("HOLDFAST_LOADER_WORKERS") else None,
        left_out=_windows(environment),
        tune=environment.get("HOLDFAST_TUNE", ""),
        scaling=Scaling(batch=_times(environment, "HOLDFAST_BATCH_TIMES"), rate=_times(environment, "HOLDFAST_RATE_TIMES")),
        until=_whole(environment, "HOLDFAST_UNTIL", 0) if environment.get("HOLDFAST_UNTIL") else None,
        curve=Path(environment["HOLDFAST_CURVE"]) if environment.get("HOLDFAST_CURVE") else None,
        restore=environment.get("HOLDFAST_RESTORE"),
        rejoin=environment.get("HOLDFAST_REJOIN") == "1",
    )


def _windows(environment: Mapping[str, str]) -> tuple[Window, ...]:
    text = environment.get("HOLDFAST_LEAVE_OUT", "")
    try:
        return windows_of(text)
    except ValueError:
        raise UserError(f"the environment variable HOLDFAST_LEAVE_OUT is {text!r}: expected numbers such as 12,40-43. Unset it.") from None


def _times(environment: Mapping[str, str], name: str) -> float:
    text = environment.get(name) or "1.0"
    try:
        return float(text)
    except ValueError:
        raise UserError(f"the environment variable {name} is {text!r}: expected a number such as 0.5. Unset it.") from None


def _whole(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name)
    try:
        return default if text is None else int(text)
    except ValueError:
        raise UserError(f"the environment variable {name} is {text!r}: expected a whole number. Unset it, or start the script with holdfast run.") from None
