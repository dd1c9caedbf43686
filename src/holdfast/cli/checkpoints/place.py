"""Which checkpoints, and which one of them: what a person gives as WHERE and CHECKPOINT."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.checkpoint.found import CheckpointFound, list_complete, list_directories, look_at
from holdfast.checkpoint.layout import MANIFEST, RETIRED, parse_directory_name
from holdfast.cli.job import hold, is_held, known_job
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory
from holdfast.settings import state_root

Where = Annotated[str, typer.Argument(metavar="WHERE", help="A job's name, or a directory of checkpoints.")]
Which = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's name such as step-00000120.g3, a step, or `newest`.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory of checkpoints, and the job it belongs to if it does."""

    said: str
    path: Path
    job: JobDirectory | None = None

    def not_running(self, verb: str) -> None:
        if self.job is not None and is_held(self.job):
            raise UserError(f"job {self.job.job!r} runs, and nobody may {verb} its checkpoints meanwhile: `holdfast stop {self.job.job}` first.")

    def held(self) -> contextlib.AbstractContextManager[Any]:
        """Nobody can start the job until this is left."""
        return hold(self.job) if self.job is not None else contextlib.nullcontext()


def place_of(said: str, state: Path | None, *, new: bool = False) -> Place:
    root, path = state_root(state), Path(said)
    job = JobDirectory(root / "jobs" / said)
    if os.sep not in said and job.journal.exists():
        return Place(said=said, path=job.checkpoints, job=job)
    if parse_directory_name(path.name) is not None:
        raise UserError(f"{said} is the name of one checkpoint: expected the directory that it is in. Give {path.parent} and then {path.name}.")
    inside, above = JobDirectory(path), JobDirectory(path.absolute().parent)
    if inside.journal.exists():
        return Place(said=said, path=inside.checkpoints, job=inside)
    if path.is_dir() or (new and os.sep in said and not path.exists()):
        return Place(said=said, path=path, job=above if above.journal.exists() and path.name == above.checkpoints.name else None)
    if path.exists():
        raise UserError(f"{said} is a file: expected a job's name or a directory of checkpoints.")
    if os.sep in said:
        raise UserError(f"there is no directory {said}: expected one with checkpoints in it, or a job's name.")
    try:
        known_job(root, said)
    except UserError as error:
        raise UserError(f"{error}; {'for a new directory give a path' if new else 'and there is no directory of that name'}: ./{said}") from None
    raise AssertionError(f"job {said} is known and was not found")


def choose(place: Place, which: str) -> CheckpointFound:
    """The checkpoint that is meant; raises UserError with what there is instead."""
    complete = list_complete(place.path)
    path = place.path / which
    if parse_directory_name(which) is not None and path.is_dir():
        if (path / RETIRED).exists() and not (path / MANIFEST).exists():
            raise UserError(f"checkpoint {which} was removed, and only chunks that others need are left of it. {_instead(complete, which)}")
        return look_at(path)
    if not complete:
        more = "; what is there cannot be used, and `holdfast checkpoint list` says why" if list_directories(place.path) else ""
        raise UserError(f"there is no complete checkpoint in {place.said}{more}.")
    if which == "newest":
        return complete[0]
    chosen = next((one for one in complete if which.isdecimal() and one.step == int(which)), None)
    if chosen is None:
        raise UserError(f"there is no checkpoint {which!r} in {place.said}. {_instead(complete, which)}")
    return chosen


def _instead(complete: Sequence[CheckpointFound], which: str) -> str:
    if not complete:
        return "There is no other."
    step = int(which) if which.isdecimal() else (parse_directory_name(which) or (None,))[0]
    if step is not None:
        near = min(complete, key=lambda one: abs(one.step - step)).name
    else:
        near = next(iter(get_close_matches(which, [one.name for one in complete], n=1)), complete[0].name)
    newest = complete[0].name
    return f"The newest is {newest}" + (f", the nearest {near}." if near != newest else ".")
