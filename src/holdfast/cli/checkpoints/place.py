"""Which checkpoints, and which one of them: what a person gives as WHERE and CHECKPOINT.

A remote store is seen through a temporary directory that has its manifests and whatever was fetched of its chunks: what is said about it is said by the
same code, and only what is read, removed or written goes to the store.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.checkpoint.chunks import several_at_a_time, verify_chunk
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import CheckpointFound, list_complete, list_directories, look_at
from holdfast.checkpoint.layout import CHUNKS, MANIFEST, RETIRED, Chunk, parse_directory_name
from holdfast.checkpoint.remove import Retention, prune
from holdfast.checkpoint.told import Told, silent
from holdfast.cli.job import hold, is_held, known_job, spec_of
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory
from holdfast.settings import state_root

if TYPE_CHECKING:
    from holdfast.checkpoint.remote import Remote

Where = Annotated[str, typer.Argument(metavar="WHERE", help="A job's name, a directory of checkpoints, or the address of a remote store.")]
WhereOrNewest = Annotated[
    str, typer.Argument(metavar="[WHERE]", help="A job's name, a directory of checkpoints, or the address of a remote store.", show_default="the newest job")
]
_AT_A_TIME: Final = 4
InStore = Annotated[bool, typer.Option("--remote", help="What the job WHERE has in its remote store.")]
Which = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's name such as step-00000120.g3, a step, or `newest`.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory of checkpoints, and the job it belongs to if it does. Of a remote store, the temporary one through which it is seen."""

    said: str
    path: Path
    job: JobDirectory | None = None
    remote: Remote | None = None
    _bytes_there: Mapping[str, int] = field(default_factory=dict)

    def not_running(self, verb: str) -> None:
        if self.job is not None and is_held(self.job):
            raise UserError(f"job {self.job.job!r} runs, and nobody may {verb} its checkpoints meanwhile: `holdfast stop {self.job.job}` first.")

    def held(self) -> contextlib.AbstractContextManager[Any]:
        """Nobody can start the job until this is left."""
        return hold(self.job) if self.job is not None else contextlib.nullcontext()


    def address(self, name: str) -> str:
        return str(self.path / name) if self.remote is None else f"{self.remote.url}/{name}"

    def bytes_there(self, name: str) -> int:
        if self.remote is not None:
            return self._bytes_there.get(name, 0)
        with contextlib.suppress(OSError):
            return sum(file.stat().st_size for file in (self.path / name / CHUNKS).iterdir())
        return 0

    def check(self, chunk: Chunk, algorithm: str) -> None:
        """Read a chunk; raises CheckpointCorrupt when it is not what was written."""
        if self.remote is None:
            verify_chunk(self.path, chunk, algorithm)
        else:
            self.remote.fetch_chunk(chunk, algorithm)

    def bring_notes(self, found: CheckpointFound) -> None:
        """See that what a checkpoint says of itself can be read here; raises CheckpointCorrupt."""
        if self.remote is not None:
            self._bring(found, {found.manifest.by_digest()[digest] for digest in found.manifest.states}, silent)

    def bring(self, found: CheckpointFound, told: Told) -> None:
        """See that all of a checkpoint can be read here; raises CheckpointCorrupt."""
        if self.remote is not None:
            self._bring(found, set(found.manifest.chunks), told)

    def _bring(self, found: CheckpointFound, chunks: Iterable[Chunk], told: Told) -> None:
        assert self.remote is not None
        remote, missing = self.remote, [chunk for chunk in sorted(chunks) if not (self.path / chunk.path).exists()]
        total = sum(one.size_bytes for one in missing)

        def fetch(chunk: Chunk) -> Chunk:
            remote.repair(self.path, chunk, found.manifest.algorithm)
            return chunk

        for chunk in several_at_a_time(fetch, missing, workers=_AT_A_TIME):
            told("fetching", chunk.size_bytes, total)

    def prune(self, retention: Retention, *, generation: int, now: float) -> None:
        if self.remote is None:
            prune(Disk(), self.path, retention, generation=generation, now=now)
        else:
            self.remote.prune(retention, now=now)


_scratch: ContextVar[contextlib.ExitStack] = ContextVar("scratch")


@contextlib.contextmanager
def scratch() -> Iterator[None]:
    """What places need of temporary directories is there until this is left."""
    with contextlib.ExitStack() as stack:
        _scratch.set(stack)
        yield


def place_of(said: str, state: Path | None, *, new: bool = False, in_store: bool = False, newest: bool = False) -> Place:
    """`newest`: where nothing is said, the newest job is meant."""
    said = said or (known_job(state_root(state), "", newest=True).job if newest else "")
    if in_store:
        place = place_of(said, state)
        return replace(_seen_through(address_of(place)), job=place.job)
    if "://" in said:
        return _seen_through(said)
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
        job = known_job(root, said)
    except UserError as error:
        raise UserError(f"{error}; {'for a new directory give a path' if new else 'and there is no directory of that name'}: ./{said}") from None
    return Place(said=job.job, path=job.checkpoints, job=job)


def address_of(place: Place) -> str:
    if place.job is None:
        raise UserError(f"--remote is for a job, whose remote store is known; {place.said} is a directory. Give the store's address instead of it.")
    spec = spec_of(place.job)
    if not spec.remote:
        raise UserError(f"job {place.job.job!r} has no remote store: it was run without --remote and HOLDFAST_REMOTE.")
    return spec.remote


def opened(url: str) -> Remote:
    """A store for a person who waits: less patient than a job is."""
    from holdfast.checkpoint.remote_address import limits_from, open_remote

    limits = limits_from(os.environ)
    return open_remote(url, limits=replace(limits, deadline_s=min(limits.deadline_s, 20.0), tries=3))


def _seen_through(url: str) -> Place:
    if parse_directory_name(url.rstrip("/").rpartition("/")[2]) is not None:
        above, _, name = url.rstrip("/").rpartition("/")
        raise UserError(f"{url} is the name of one checkpoint: expected the address that it is below. Give {above} and then {name}.")
    remote = opened(url)
    path = Path(_scratch.get().enter_context(tempfile.TemporaryDirectory(prefix="holdfast-checkpoints-")))
    surveyed = remote.survey()
    for one in surveyed:
        (path / one.name).mkdir()
        if one.manifest is not None:
            (path / one.name / MANIFEST).write_bytes(one.manifest)
        if one.retired:
            (path / one.name / RETIRED).touch()
    return Place(said=remote.url, path=path, remote=remote, _bytes_there={one.name: one.bytes_there for one in surveyed})


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
