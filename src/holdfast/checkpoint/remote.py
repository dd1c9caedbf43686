"""Checkpoints in a remote store, as `remote_address.open_remote` opens it: upload, list, download, verify, repair, prune.

    <url>/step-00000120.g3/
        chunks/<digest>                  as on the disk (see layout.py), each under the home that its manifest names
        manifest.json                    last: with it the checkpoint exists
        retired                          no checkpoint any more, or never one here: kept for chunks that others need. A manifest beside it outranks it
        uploading.part-<time>-<random>   somebody is sending this checkpoint: the manifest to come, so that nobody takes away what it will need

An upload first says what it will need, then looks at what is there, sends the rest, looks again, and writes the manifest; and looks once more. A removal
takes the manifest first, then all that neither a manifest nor a fresh word of an upload needs. Whoever dies in between leaves something that the next
one goes on with or sweeps. Why two uploads cannot tear each other: docs/decisions/0005-remote-tier.md.

Is wrong    when two runs with the same steps and generations share one address: the second is refused. Give each its own.
Costs       an upload: a listing for each home, a request for each chunk that is new; at most `Limits.at_a_time` chunks in memory.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from holdfast.checkpoint.chunks import read_chunk, verify_chunk, verify_size
from holdfast.checkpoint.digest import digest_of
from holdfast.checkpoint.disk import Disk, put_file
from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch
from holdfast.checkpoint.found import CheckpointFound, look_at
from holdfast.checkpoint.layout import CHUNKS, MANIFEST, RETIRED, Chunk, Manifest, decode_manifest, encode, parse_directory_name
from holdfast.checkpoint.remote_files import (
    Files,
    Limits,
    RemoteRefused,
    RemoteUnavailable,
    Stop,
    Stopped,
    is_stale,
    temporary,
)
from holdfast.checkpoint.remove import Retention, kept
from holdfast.errors import HoldfastError, UserError

_UPLOADING: Final = "uploading"
_ANNOUNCED: Final = re.compile(rf"{_UPLOADING}\.part-\d+-[0-9a-f]+")  # In full: one that was not finished has a longer name.
_ROUNDS: Final = 3  # How often an upload looks for what somebody has taken away from under it.

Progress = Callable[[Chunk], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """What an upload came to."""

    manifest: Manifest
    sent_bytes: int
    sent_chunks: int
    swept: int  # Unfinished uploads of others, long dead.


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """One directory of the store, as somebody sees it who looks at them all."""

    name: str
    manifest: bytes | None  # As it is there, sound or not.
    retired: bool
    bytes_there: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One directory of the store."""

    name: str
    entries: Mapping[str, int | None]

    @property
    def is_complete(self) -> bool:
        return MANIFEST in self.entries

    def announced(self, stale_s: float) -> list[str]:
        return [name for name in self.entries if _ANNOUNCED.fullmatch(name) and not is_stale(name, stale_s)]

    def may_go(self, stale_s: float) -> bool:
        """One that carries none of our marks is somebody else's, perhaps being copied here by hand."""
        marked = RETIRED in self.entries or any(name.startswith(f"{_UPLOADING}.") for name in self.entries)
        return marked and not self.is_complete and not self.announced(stale_s)


class Remote:
    """The checkpoints in one store. Safe to use from several threads and processes."""

    def __init__(self, files: Files, url: str, limits: Limits) -> None:
        self.url, self._files, self._limits = url, files, limits

    def __repr__(self) -> str:
        return f"Remote({self.url!r})"

    # Up.

    def upload(self, checkpoints: Path, name: str, *, progress: Progress = lambda chunk: None, stop: Stop = lambda: False) -> Uploaded:
        """Send a complete local checkpoint; `progress` hears of each chunk that was sent. What is there is not sent again.

        Raises CheckpointCorrupt when it is damaged here: nothing damaged is sent. Raises RemoteRefused, RemoteUnavailable; Stopped once `stop` says so.
        """
        manifest = look_at(checkpoints / name).manifest
        files = self._files.on_behalf_of(stop)
        is_there = self._is_there(files, manifest)
        if not is_there and not self._place(files, name).announced(self._limits.stale_s / 2):
            files.put(f"{name}/{temporary(_UPLOADING)}", encode(manifest))
        homes = sorted({chunk.home for chunk in manifest.chunks} | {name})
        swept = self._sweep(files, homes)
        sent = [*self._send_missing(files, checkpoints, manifest, progress, stop)]
        if not is_there:
            self._commit(files, manifest)
        sent += self._send_missing(files, checkpoints, manifest, progress, stop)  # What a removal took that had not seen the manifest yet.
        for entry in self._place(files, name).entries:
            if entry.startswith(f"{_UPLOADING}."):  # Also another's, of the same checkpoint: from here on the manifest speaks for both.
                files.remove(f"{name}/{entry}")
        return Uploaded(manifest=manifest, sent_bytes=sum(chunk.size_bytes for chunk in sent), sent_chunks=len(sent), swept=swept)

    def _sweep(self, files: Files, homes: Sequence[str]) -> int:
        """A kindness: credentials that may write are not always allowed to look for what was left unfinished, and not every store can."""
        with contextlib.suppress(RemoteRefused, RemoteUnavailable):
            return sum(files.sweep(f"{home}/{CHUNKS}", self._limits.stale_s) for home in homes)
        return 0

    def _is_there(self, files: Files, manifest: Manifest) -> bool:
        """Whether this manifest is there already; one that is damaged is taken away, and one of another run is left alone and told of."""
        path = f"{manifest.name}/{MANIFEST}"
        there = files.get(path)
        if there is None or there == encode(manifest):
            return there is not None
        try:
            other = decode_manifest(there)
        except CheckpointCorrupt:
            if files.get(path) == there:  # Twice the same: it is damaged, and not some proxy's page in its place.
                files.remove(path)
            return False
        raise RemoteRefused(
            f"{self.url}/{manifest.name} is already the checkpoint of another run (written at {_when(other.at)}, this one at {_when(manifest.at)}). "
            "Give each run an address of its own."
        )

    def _send_missing(self, files: Files, checkpoints: Path, manifest: Manifest, progress: Progress, stop: Stop) -> Sequence[Chunk]:
        """Send until a look finds all of it there."""
        sent: list[Chunk] = []
        for _ in range(_ROUNDS):
            missing = self._missing(files, manifest)
            if not missing:
                return sent
            for home in sorted({chunk.home for chunk in missing} - {manifest.name}):
                place = self._place(files, home)
                if not place.is_complete and RETIRED not in place.entries:
                    files.put(f"{home}/{RETIRED}", b"")  # Before its first chunk, so that whoever removes this checkpoint finds the place.

            def send(chunk: Chunk, files: Files) -> Chunk:
                data = bytearray(chunk.size_bytes)
                read_chunk(checkpoints, chunk, manifest.algorithm, memoryview(data))
                files.put(chunk.path, data)
                return chunk

            for chunk in self._several(send, missing, stop):
                sent.append(chunk)
                progress(chunk)
        if missing := self._missing(files, manifest):
            raise RemoteUnavailable(
                f"{self.url} does not keep what it is sent: {missing[0].path} and {len(missing) - 1} others are not there after {_ROUNDS} times, "
                "expected with the size they were sent with. See whether somebody removes them."
            )
        return sent

    def _missing(self, files: Files, manifest: Manifest) -> Sequence[Chunk]:
        sizes = {home: files.list(f"{home}/{CHUNKS}") for home in sorted({chunk.home for chunk in manifest.chunks})}
        return [chunk for chunk in manifest.chunks if sizes[chunk.home].get(chunk.digest) != chunk.size_bytes]

    def _commit(self, files: Files, manifest: Manifest) -> None:
        for _ in range(_ROUNDS):
            if files.put_new(f"{manifest.name}/{MANIFEST}", encode(manifest)) or self._is_there(files, manifest):
                return
        raise RemoteUnavailable(f"{self.url}/{manifest.name}/{MANIFEST} comes and goes: somebody removes it while it is written. Try again when nobody does.")

    # What is there.

    def reach(self, *, stop: Stop = lambda: False) -> int:
        """See that the store can be listed and written; the newest generation that anything there is of, 0 for none.

        Raises RemoteRefused, RemoteUnavailable; Stopped once `stop` says so.
        """
        files = self._files.on_behalf_of(stop)
        generations = [key[1] for name in self._names(files) if (key := parse_directory_name(name))]
        probe = temporary("probe")
        files.put(probe, b"")
        with contextlib.suppress(RemoteRefused):  # Whoever may write is not always allowed to remove.
            files.remove(probe)
        return max(generations, default=0)

    def names(self, *, newer_than: tuple[int, int] = (-1, -1), stop: Stop = lambda: False) -> tuple[str, ...]:
        """Of all complete checkpoints, sound or not, that are newer than this generation and step; newest first. Asks for little: no manifest is read."""
        files = self._files.on_behalf_of(stop)
        newer = sorted(((generation, step), name) for name in self._names(files) for step, generation in [parse_directory_name(name) or (-1, -1)])
        names = [name for key, name in reversed(newer) if key > newer_than]
        return tuple(place.name for place in self._several(lambda name, files: self._place(files, name), names, stop) if place.is_complete)

    def list(self, *, stop: Stop = lambda: False) -> tuple[Manifest, ...]:
        """All complete checkpoints whose manifest is sound, newest first."""
        files = self._files.on_behalf_of(stop)
        found = self._several(lambda name, files: _sound(files.get(f"{name}/{MANIFEST}"), name), self._names(files), stop)
        return tuple(sorted((one for one in found if one is not None), key=_age_key, reverse=True))

    def survey(self, *, stop: Stop = lambda: False) -> tuple[Surveyed, ...]:
        """All that carries a checkpoint's name, complete or not; newest first."""

        def look(name: str, files: Files) -> Surveyed:
            entries = files.list(name)
            sizes = files.list(f"{name}/{CHUNKS}").values()
            manifest = files.get(f"{name}/{MANIFEST}") if MANIFEST in entries else None
            return Surveyed(name=name, manifest=manifest, retired=RETIRED in entries, bytes_there=sum(size or 0 for size in sizes))

        newest_first = sorted(self._names(self._files.on_behalf_of(stop)), key=lambda name: (parse_directory_name(name) or (0, 0))[::-1], reverse=True)
        return tuple(self._several(look, newest_first, stop))

    def manifest(self, name: str, *, stop: Stop = lambda: False) -> Manifest:
        """Raises CheckpointCorrupt or CheckpointMismatch with what is wrong with it."""
        for last in (False, True):
            text = self._files.on_behalf_of(stop).get(f"{name}/{MANIFEST}")
            if text is None:
                raise CheckpointCorrupt(f"checkpoint {self.url}/{name} has no manifest: it was never completed there, or was removed. {self._advice(name)}")
            try:
                manifest = decode_manifest(text)
                if manifest.name != name:
                    raise CheckpointCorrupt(f"it is that of {manifest.name}")
            except (CheckpointCorrupt, CheckpointMismatch) as error:
                if last:  # Once more before that: a proxy or a data node in trouble may give its own page for the file.
                    raise type(error)(f"the manifest of checkpoint {self.url}/{name} cannot be used: {error}. {self._advice(name)}") from error
            else:
                return manifest
        raise AssertionError

    def fetch_chunk(self, chunk: Chunk, algorithm: str, *, stop: Stop = lambda: False) -> bytes:
        """Its bytes, checked; raises CheckpointCorrupt when the store has not kept them."""
        return self._fetch(self._files.on_behalf_of(stop), chunk, algorithm)

    def _fetch(self, files: Files, chunk: Chunk, algorithm: str) -> bytes:
        where, saw = f"chunk {self.url}/{chunk.path}", ""
        for _ in range(2):  # What was damaged on the way is whole the second time.
            data = files.get(chunk.path, chunk.size_bytes)
            if data is None:
                raise CheckpointCorrupt(f"{where} is missing.", chunk)
            if len(data) == chunk.size_bytes and digest_of(data, algorithm) == chunk.digest:
                return data
            saw = f"{len(data)} bytes with {digest_of(data, algorithm)}"
        raise CheckpointCorrupt(f"{where} is damaged: expected {chunk.size_bytes} bytes with {algorithm} {chunk.digest}, saw {saw}.", chunk)

    def verify(self, name: str, *, progress: Progress = lambda chunk: None, stop: Stop = lambda: False) -> Manifest:
        """Read every byte of a checkpoint; raises CheckpointCorrupt with what was expected, what was seen, and which one to take instead."""
        manifest = self.manifest(name, stop=stop)

        def check(chunk: Chunk, files: Files) -> Chunk:
            self._fetch(files, chunk, manifest.algorithm)
            return chunk

        with self._advising(name):
            for chunk in self._several(check, manifest.chunks, stop):
                progress(chunk)
        return manifest

    # Down.

    def download(
        self, name: str, checkpoints: Path, *, progress: Progress = lambda chunk: None, stop: Stop = lambda: False, disk: Disk | None = None
    ) -> Manifest:
        """Put a checkpoint into a local directory, by the rules of a commit: chunks durable first, manifest last. What is there and sound is not fetched.

        `progress` hears of each chunk once it is here. Raises CheckpointCorrupt when the store's is damaged; then there is no manifest here, and what was
        fetched is used by the next try.
        """
        disk = disk or Disk()
        manifest = self.manifest(name, stop=stop)
        homes = sorted({chunk.home for chunk in manifest.chunks} | {name})
        new = [home for home in homes if not (checkpoints / home).exists()]

        def bring(chunk: Chunk, files: Files) -> Chunk:
            try:
                verify_chunk(checkpoints, chunk, manifest.algorithm)
            except CheckpointCorrupt:
                _put(disk, checkpoints, chunk, self._fetch(files, chunk, manifest.algorithm))
            return chunk

        with self._advising(name), _local(checkpoints):
            for home in homes:
                disk.make_directory(checkpoints / home / CHUNKS)
            for chunk in self._several(bring, manifest.chunks, stop):
                progress(chunk)
            for home in homes:
                disk.sync_directory(checkpoints / home / CHUNKS)
                disk.sync_directory(checkpoints / home)
            disk.sync_directory(checkpoints)
            disk.sync_directory(checkpoints.parent)
            for chunk in manifest.chunks:
                verify_size(checkpoints, chunk)
            disk.remove(checkpoints / name / RETIRED)  # Before the manifest: what carries both would be emptied.
            put_file(disk, checkpoints / name / MANIFEST, encode(manifest), temporary=checkpoints / name / temporary(MANIFEST))
            disk.sync_directory(checkpoints / name)
            for home in new:
                if home != name:  # After the manifest: a marked place that nobody needs is emptied.
                    disk.create(checkpoints / home / RETIRED).close()
        return manifest

    def download_newest(
        self, checkpoints: Path, *, progress: Progress = lambda chunk: None, stop: Stop = lambda: False
    ) -> tuple[Manifest | None, tuple[str, ...]]:
        """The newest that the store has kept whole, put here; and why any newer one was passed over."""
        refused: list[str] = []
        for one in self.list(stop=stop):
            try:
                return self.download(one.name, checkpoints, progress=progress, stop=stop), tuple(refused)
            except CheckpointCorrupt as corrupt:
                refused.append(str(corrupt))
        return None, tuple(refused)

    def repair(self, checkpoints: Path, chunk: Chunk, algorithm: str, *, stop: Stop = lambda: False) -> None:
        """Replace a damaged local chunk by what the store has kept; raises CheckpointCorrupt when that is no better."""
        data = self.fetch_chunk(chunk, algorithm, stop=stop)
        disk = Disk()
        with _local(checkpoints):
            disk.make_directory((checkpoints / chunk.path).parent)
            _put(disk, checkpoints, chunk, data)
            disk.sync_directory((checkpoints / chunk.path).parent)

    # Away.

    def prune(self, retention: Retention, *, now: float, stop: Stop = lambda: False) -> tuple[str, ...]:
        """Remove what no rule wants, and what uploads and removals left behind; the names of the checkpoints removed."""
        found = [CheckpointFound(path=Path(one.name), manifest=one) for one in self.list(stop=stop)]
        wanted = kept(found, retention, now=now)
        doomed = [one.name for one in found if one.name not in wanted]
        self._remove(self._files.on_behalf_of(stop), doomed, stop)
        return tuple(doomed)

    def remove(self, name: str, *, stop: Stop = lambda: False) -> None:
        """From here on it is no checkpoint any more; what no other one needs of it goes, at once or with the next removal if this one is cut short."""
        if parse_directory_name(name) is None:
            raise UserError(f"{name!r} is no name of a checkpoint; expected one such as step-00000120.g3.")
        self._remove(self._files.on_behalf_of(stop), [name], stop)

    def _remove(self, files: Files, doomed: Sequence[str], stop: Stop) -> None:
        for name in doomed:
            if self._place(files, name).is_complete:
                files.put(f"{name}/{RETIRED}", b"")  # First, so that the place is known for what it is when the manifest is gone.
                files.remove(f"{name}/{MANIFEST}")
        places = list(self._several(lambda name, files: self._place(files, name), self._names(files), stop))
        if not any(place.may_go(self._limits.stale_s) for place in places):
            return
        needed = self._needed(files, places, stop)
        for place in places:
            if place.may_go(self._limits.stale_s):
                self._empty(files, place, needed.get(place.name, frozenset()), stop)

    def _needed(self, files: Files, places: Iterable[_Place], stop: Stop) -> dict[str, frozenset[str]]:
        """By home, the chunks that any manifest refers to, or one to come."""
        paths = [f"{place.name}/{entry}" for place in places for entry in (*([MANIFEST] * place.is_complete), *place.announced(self._limits.stale_s))]
        needed: dict[str, set[str]] = {}
        for path, text in zip(paths, self._several(lambda path, files: files.get(path), paths, stop), strict=True):
            if text is None:  # Gone meanwhile; an upload that has just ended has left a manifest in place of its word.
                text = files.get(f"{path.partition('/')[0]}/{MANIFEST}")
            try:
                chunks = decode_manifest(text).chunks if text is not None else ()
            except (CheckpointCorrupt, CheckpointMismatch) as error:
                raise RemoteRefused(
                    f"nothing is removed from {self.url}: which chunks {path} needs cannot be told, since {error}. Upload that checkpoint again, or remove it."
                ) from error
            for chunk in chunks:
                needed.setdefault(chunk.home, set()).add(chunk.digest)
        return {home: frozenset(digests) for home, digests in needed.items()}

    def _empty(self, files: Files, place: _Place, needed: frozenset[str], stop: Stop) -> None:
        """All but what is needed; the mark that says that this may be done goes last."""
        with contextlib.suppress(RemoteRefused):
            files.sweep(f"{place.name}/{CHUNKS}", 0.0)
        doomed = [f"{place.name}/{CHUNKS}/{digest}" for digest in files.list(f"{place.name}/{CHUNKS}") if digest not in needed]
        for _ in self._several(lambda path, files: files.remove(path), doomed, stop):
            pass
        marks = [entry for entry, size in place.entries.items() if size is not None and not (needed and entry == RETIRED)]
        if needed and RETIRED not in place.entries:
            files.put(f"{place.name}/{RETIRED}", b"")
        for entry in sorted(marks, key=lambda entry: entry == RETIRED):
            files.remove(f"{place.name}/{entry}")
        if not needed:
            files.remove_directory(f"{place.name}/{CHUNKS}")
            files.remove_directory(place.name)

    # How.

    def _names(self, files: Files) -> Sequence[str]:
        return sorted(name for name, size in files.list("").items() if size is None and parse_directory_name(name))

    def _place(self, files: Files, name: str) -> _Place:
        return _Place(name=name, entries=files.list(name))

    def _several(self, work: Callable[[Item, Files], Result], items: Sequence[Item], stop: Stop) -> Iterator[Result]:
        """`work` on each, several at a time, in order; at most two for each thread are taken ahead. When one fails, those under way are given up too."""
        failed = threading.Event()
        files = self._files.on_behalf_of(lambda: failed.is_set() or stop())
        errors: list[BaseException] = []

        def one(item: Item) -> Result:
            try:
                return work(item, files)
            except BaseException as error:
                errors.append(error)
                failed.set()
                raise

        ahead: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(self._limits.at_a_time, thread_name_prefix="holdfast-remote") as pool:
            try:
                for item in items:
                    ahead.append(pool.submit(one, item))
                    if len(ahead) >= 2 * self._limits.at_a_time:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            except Stopped:
                raise errors[0] from None  # One that was given up because of another: that one tells why.
            finally:
                failed.set()
                for future in ahead:
                    future.cancel()

    def _advice(self, name: str, damaged: Chunk | None = None) -> str:
        """Which one to take instead."""
        step, generation = parse_directory_name(name) or (0, 0)
        with contextlib.suppress(HoldfastError):
            for one in self.list():
                if _age_key(one) < (generation, step) and damaged not in one.chunks:
                    return f"Take {one.name} instead."
        return "The store has no older one."

    @contextlib.contextmanager
    def _advising(self, name: str) -> Iterator[None]:
        try:
            yield
        except CheckpointCorrupt as corrupt:
            raise CheckpointCorrupt(f"checkpoint {self.url}/{name} cannot be used: {corrupt} {self._advice(name, corrupt.chunk)}", corrupt.chunk) from corrupt


def _sound(text: bytes | None, name: str) -> Manifest | None:
    try:
        manifest = decode_manifest(text) if text is not None else None
    except (CheckpointCorrupt, CheckpointMismatch):
        return None
    return manifest if manifest is not None and manifest.name == name else None


def _age_key(manifest: Manifest) -> tuple[int, int]:
    return (manifest.generation, manifest.step)


def _when(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _put(disk: Disk, checkpoints: Path, chunk: Chunk, data: bytes) -> None:
    path = checkpoints / chunk.path
    put_file(disk, path, data, temporary=path.with_name(temporary(path.name)))


@contextlib.contextmanager
def _local(checkpoints: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HoldfastError(
            f"{checkpoints} cannot be written: {error.strerror or error}. Make room or allow it, and try again: what was fetched is kept."
        ) from error
