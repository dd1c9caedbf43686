"""Files in a remote store: the few operations that checkpoints need, each with a deadline, tried again, and failing in plain words without a secret.

    Files        list, get, put, put_new, remove, sweep; paths are below the store's root
    Objects      S3 and what speaks it: an object appears whole; large ones go in parts; `put_new` is enforced by the store
    Renamed      WebHDFS and whatever else fsspec knows: a temporary name, then a rename
    Directory    a mounted directory, without fsspec: as durable as the local disk
    Asker        asks a store for something: the deadline, the retries, the rate, the words

Is wrong    for a store that says nothing for longer than `Limits.deadline_s` and would have answered: raise it.
Costs       one thread for each request: nothing else can be given up when a mounted directory hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from holdfast.checkpoint.disk import Disk, put_file
from holdfast.checkpoint.layout import CHUNKS
from holdfast.errors import HoldfastError, Retryable

PART_BYTES: Final = 8 << 20  # What one request carries at most, where the store takes parts. S3 wants at least 5 MiB.
_TEMPORARY: Final = re.compile(r".+\.part-(\d+)-[0-9a-f]+")
CONNECT_S: Final = 10.0
_HUNG_MAX: Final = 16  # Requests that were given up and have not returned yet; each may hold a chunk in memory.
_LOOK_EVERY_S: Final = 0.1

Result = TypeVar("Result")
Stop = Callable[[], bool]
Whole = bytes | bytearray


class RemoteUnavailable(Retryable):
    """The store did not answer, or not well: it may a moment later."""


class RemoteRefused(HoldfastError):
    """The store answered, and said no: it will again until somebody changes something."""


class Stopped(HoldfastError):
    """Whoever asked for it does not want it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How patient we are with a store, and how gentle."""

    deadline_s: float = 60.0  # For one request of up to 8 MiB; longer ones have proportionally more.
    tries: int = 6
    pause_s: float = 0.5  # Before the second try at most; doubled for each further one.
    pause_s_max: float = 30.0
    at_a_time: int = 4
    bytes_per_s: float = 0.0  # Of all that is sent; 0: as fast as it goes.
    stale_s: float = 86400.0  # Whatever an upload left unfinished for so long is nobody's any more.


class Files(Protocol):
    def on_behalf_of(self, stop: Stop) -> Files:
        """The same, for a caller who may want it no more."""

    def list(self, directory: str) -> dict[str, int | None]:
        """The names in a directory with their sizes, None for directories; nothing for one that is not there."""

    def get(self, path: str, size: int = 0) -> bytes | None:
        """All of a file, expected to be of about this size; None when there is none."""

    def put(self, path: str, data: Whole) -> None:
        """A file, whole or not at all, in place of one that may be there."""

    def put_new(self, path: str, data: Whole) -> bool:
        """The same, unless there is one: then False. Only `Objects` are sure of that when two do it at the same moment."""

    def remove(self, path: str) -> None:
        """One file, which may be gone already."""

    def remove_directory(self, directory: str) -> None:
        """An empty one, where a store has such a thing."""

    def sweep(self, directory: str, stale_s: float) -> int:
        """Take away what puts into this directory left unfinished so long ago; how many those were."""


# Asking.


class Asker:
    """Asks one store, on behalf of one caller who may `stop`."""

    def __init__(self, where: str, limits: Limits, *, stop: Stop = lambda: False, rate: Rate | None = None, hung: list[threading.Thread] | None = None) -> None:
        self.where, self.limits, self.stop = where, limits, stop
        self._rate = rate or Rate(limits.bytes_per_s)
        self._hung: list[threading.Thread] = [] if hung is None else hung

    def on_behalf_of(self, stop: Stop) -> Asker:
        return Asker(self.where, self.limits, stop=stop, rate=self._rate, hung=self._hung)

    def __call__(self, what: str, work: Callable[[], Result], *, size: int = 0, sends: bool = False, tries: int = 0) -> Result:
        """What `work` returns; raises RemoteRefused, RemoteUnavailable or Stopped, whose words come from here and not from any library."""
        tries, deadline_s = tries or self.limits.tries, self.deadline_s(size)
        seen = ""
        for number in range(tries):
            if number:
                # Full jitter: many nodes that lost the store at one moment do not come back at one moment.
                pause(random.uniform(0, min(self.limits.pause_s_max, self.limits.pause_s * 2**number)), self.stop)
            if sends:
                self._rate.take(size, self.stop)
            done, error = self._within(deadline_s, work)
            if error is None:
                return done[0]
            if isinstance(error, Stopped):
                raise Stopped(f"{what} in {self.where} was stopped.")
            if refusal := why_refused(error):
                raise RemoteRefused(f"{what} in {self.where} was refused: {refusal}")
            seen = what_was_seen(error, deadline_s)
        raise RemoteUnavailable(f"{what} in {self.where} failed {tries} times, last because {seen}. See whether the store is up, can be reached and has room.")

    def deadline_s(self, size: int) -> float:
        return self.limits.deadline_s * max(1.0, size / PART_BYTES)

    def _within(self, seconds: float, work: Callable[[], Result]) -> tuple[list[Result], BaseException | None]:
        """What came of it in so much time, in a thread that can be given up: a mounted directory that hangs cannot be interrupted."""
        self._hung[:] = [thread for thread in self._hung if thread.is_alive()]
        if len(self._hung) >= _HUNG_MAX:
            return [], TimeoutError()
        answer: queue.SimpleQueue[tuple[list[Result], BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answer.put(([work()], None))
            except BaseException as error:
                answer.put(([], error))

        thread = threading.Thread(target=run, name="holdfast-remote", daemon=True)
        thread.start()
        end = time.monotonic() + seconds
        while not self.stop() and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                return answer.get(timeout=min(left, _LOOK_EVERY_S))
        self._hung.append(thread)
        return [], Stopped() if self.stop() else TimeoutError()


class Rate:
    """Lets so many bytes pass in a second, of all threads together."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._lock, self._free_at = bytes_per_s, threading.Lock(), 0.0

    def take(self, size: int, stop: Stop) -> None:
        """Wait until what was let through before has had its time."""
        if self._bytes_per_s <= 0:
            return
        with self._lock:
            begin = max(time.monotonic(), self._free_at)
            self._free_at = begin + size / self._bytes_per_s
        pause(begin - time.monotonic(), stop)


def pause(seconds: float, stop: Stop) -> None:
    end = time.monotonic() + seconds
    while not stop() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_EVERY_S))


# What libraries raise, in our words. Nothing of their own text is passed on: it may hold an address with a password, a signed request, a token.

_CREDENTIALS: Final = {
    "AccessDenied", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidSecurity",
    "InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired", "UnrecognizedClientException", "401", "403",
}  # fmt: skip
_NO_CREDENTIALS: Final = {
    "CredentialRetrievalError", "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "SSOTokenLoadError", "UnauthorizedSSOTokenError",
}  # fmt: skip
_FULL: Final = {"DSQuotaExceededException", "EntityTooLarge", "InsufficientStorage", "NSQuotaExceededException", "QuotaExceeded", "XMinioStorageFull", "507"}
_FULL_ERRNO: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def why_refused(error: BaseException) -> str | None:
    """What trying again would not change, with what to do about it; None for all else."""
    codes, kinds, numbers = set(_codes(error)), {type(one).__name__ for one in _chain(error)}, {one.errno for one in _chain(error) if isinstance(one, OSError)}
    if kinds & _NO_CREDENTIALS:
        return "no credentials were found. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE with one that is in the AWS configuration."
    if "NoSuchBucket" in codes:
        return "there is no such bucket (NoSuchBucket). Make it first, or correct the address and AWS_ENDPOINT_URL: Holdfast makes no buckets."
    if codes & _FULL or numbers & _FULL_ERRNO or any("quota" in str(one).lower() for one in _chain(error) if isinstance(one, RuntimeError)):
        return "the store is full or its quota is used up. Make room there, or keep fewer checkpoints; those that are complete are not touched."
    if "RequestTimeTooSkewed" in codes:
        return "this machine's clock differs too much from the store's (RequestTimeTooSkewed). Set the clock."
    if errno.EROFS in numbers:
        return "it is read-only. Mount it for writing, or choose another place."
    if codes & _CREDENTIALS:
        return f"the credentials are not valid there, or may not do this ({', '.join(sorted(codes & _CREDENTIALS))}). Set others, or allow them to do it."
    if any(isinstance(one, PermissionError) for one in _chain(error)):
        return f"user {os.environ.get('HADOOP_USER_NAME') or os.getuid()} has no permission. Allow it there, or choose another place."
    if any(isinstance(one, NotADirectoryError) for one in _chain(error)):
        return "there is no such directory. Mount it or make it first: Holdfast does not, so that nothing is written to where a mount is missing."
    return None


def what_was_seen(error: BaseException, deadline_s: float) -> str:
    if any(isinstance(one, TimeoutError) for one in _chain(error)):
        return f"there was no answer within {deadline_s:g} s"
    if codes := list(_codes(error)):
        return f"it answered {' '.join(dict.fromkeys(codes))}"
    numbers = [one.errno for one in _chain(error) if isinstance(one, OSError) and one.errno]
    said = f": {os.strerror(numbers[-1])}" if numbers else ""
    return f"of {type(error).__name__}{said}"


def is_code(error: BaseException, *codes: str) -> bool:
    return bool(set(codes) & set(_codes(error)))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _codes(error: BaseException) -> Iterator[str]:
    """The store's own word for what is wrong, if it is one that looks like a code, and the status of its answer."""
    for one in _chain(error):
        response: Any = getattr(one, "response", None)
        code = status = ""
        with contextlib.suppress(Exception):  # It may have any form: a proxy answers in its own words.
            if isinstance(response, dict):  # From botocore.
                status = str(response["ResponseMetadata"]["HTTPStatusCode"])
                code = str(response["Error"]["Code"])
            elif response is not None:  # From requests: Hadoop says it in its own form.
                status = str(response.status_code)
                code = str(response.json()["RemoteException"]["exception"])
        yield from (word for word in (code, status) if re.fullmatch(r"[A-Za-z]{3,48}|[1-5]\d\d", word))


# Kinds of stores.


def _given_up_quietly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A request that is ended with its deadline leaves a task of aiohttp's behind, which finds the connection closed. Whoever asked knows already."""
    if not isinstance(context.get("exception"), ConnectionError):
        loop.default_exception_handler(context)


def temporary(path: str) -> str:
    """A name nobody else writes to, which says when it was made."""
    return f"{path}.part-{int(time.time())}-{secrets.token_hex(4)}"


def is_stale(name: str, stale_s: float) -> bool:
    match = _TEMPORARY.fullmatch(name)
    return match is not None and time.time() - int(match[1]) >= stale_s


class Objects:
    """S3, and what speaks it, by way of s3fs."""

    def __init__(self, fs: Any, root: str, ask: Asker) -> None:
        self._fs, self._ask = fs, ask
        fs.loop.set_exception_handler(_given_up_quietly)
        self._bucket, _, prefix = root.partition("/")
        self._prefix = f"{prefix.strip('/')}/".removeprefix("/")

    def on_behalf_of(self, stop: Stop) -> Objects:
        return Objects(self._fs, f"{self._bucket}/{self._prefix}", self._ask.on_behalf_of(stop))

    def list(self, directory: str) -> dict[str, int | None]:
        below = f"{self._prefix}{directory}/" if directory else self._prefix
        found: dict[str, int | None] = {}
        more: dict[str, Any] = {}
        while True:
            page = self._call(f"listing {directory or 'the checkpoints'}", "list_objects_v2", Prefix=below, Delimiter="/", **more)
            found |= {one["Key"].removeprefix(below): int(one["Size"]) for one in page.get("Contents", ()) if one["Key"] != below}
            found |= {one["Prefix"].removeprefix(below).rstrip("/"): None for one in page.get("CommonPrefixes", ())}
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def get(self, path: str, size: int = 0) -> bytes | None:
        def work() -> bytes | None:
            try:
                data: bytes = self._sync(self._read, path, size=size)
            except FileNotFoundError as error:
                if is_code(error, "NoSuchBucket"):
                    raise
                return None
            return data

        return self._ask(f"reading {path}", work, size=size)

    async def _read(self, path: str) -> Any:
        """As s3fs does, but without asking for the size first: such a request is refused without a word why."""
        answer = await self._fs._call_s3("get_object", Bucket=self._bucket, Key=self._prefix + path)
        async with answer["Body"] as body:
            return await body.read()

    def put(self, path: str, data: Whole) -> None:
        if len(data) <= PART_BYTES:
            self._call(f"writing {path}", "put_object", path=path, size=len(data), Body=bytes(data))
        else:
            self._put_in_parts(path, data)

    def _put_in_parts(self, path: str, data: Whole) -> None:
        what = f"writing {path}"
        upload = self._call(what, "create_multipart_upload", path=path)["UploadId"]
        try:
            parts = []
            for number, start in enumerate(range(0, len(data), PART_BYTES), 1):
                piece = bytes(data[start : start + PART_BYTES])  # aiohttp sends nothing else of this size without holding up its loop.
                tag = self._call(what, "upload_part", path=path, size=len(piece), Body=piece, PartNumber=number, UploadId=upload)["ETag"]
                parts.append({"PartNumber": number, "ETag": tag})
            self._call(what, "complete_multipart_upload", path=path, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            with contextlib.suppress(HoldfastError):  # Else it is swept later.
                self._call(what, "abort_multipart_upload", path=path, tries=1, UploadId=upload)
            raise

    def put_new(self, path: str, data: Whole) -> bool:
        def work() -> bool:
            try:
                self._request("put_object", path=path, size=len(data), Body=bytes(data), IfNoneMatch="*")
            except OSError as error:
                if is_code(error, "412"):
                    return False
                if not is_code(error, "501"):
                    raise
                self._request("put_object", path=path, size=len(data), Body=bytes(data))  # A store that does not know the condition, and says so.
            return True

        return self._ask(f"writing {path}", work, size=len(data), sends=True)

    def remove(self, path: str) -> None:
        self._call(f"removing {path}", "delete_object", path=path)

    def remove_directory(self, directory: str) -> None:
        """There are none: they end with their last object."""

    def sweep(self, directory: str, stale_s: float) -> int:
        what, below = f"sweeping {directory}", f"{self._prefix}{directory}/"
        swept = 0
        more: dict[str, Any] = {}
        while True:
            page = self._call(what, "list_multipart_uploads", Prefix=below, **more)
            for one in page.get("Uploads", ()):
                if one["Key"].startswith(below) and (datetime.now(UTC) - one["Initiated"]).total_seconds() >= stale_s:
                    self._call(what, "abort_multipart_upload", path=one["Key"].removeprefix(self._prefix), UploadId=one["UploadId"])
                    swept += 1
            if not page.get("IsTruncated"):
                return swept
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _call(self, what: str, method: str, *, path: str = "", size: int = 0, tries: int = 0, **given: Any) -> Any:
        return self._ask(what, lambda: self._request(method, path=path, size=size, **given), size=size, sends="Body" in given, tries=tries)

    def _request(self, method: str, *, path: str, size: int, **given: Any) -> Any:
        key = {"Key": self._prefix + path} if path else {}
        return self._sync(self._fs._call_s3, method, Bucket=self._bucket, **key, **given, size=size)

    def _sync(self, function: Callable[..., Any], *given: Any, size: int, **named: Any) -> Any:
        """Ended with the deadline, and not only given up: its connection is closed."""
        from fsspec.asyn import sync

        return sync(self._fs.loop, function, *given, timeout=self._ask.deadline_s(size), **named)


class Renamed:
    """Any other store of fsspec's, WebHDFS first of all."""

    def __init__(self, fs: Any, root: str, ask: Asker) -> None:
        self._fs, self._root, self._ask = fs, root.rstrip("/"), ask

    def on_behalf_of(self, stop: Stop) -> Renamed:
        return Renamed(self._fs, self._root, self._ask.on_behalf_of(stop))

    def list(self, directory: str) -> dict[str, int | None]:
        def work() -> dict[str, int | None]:
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._below(directory), detail=True)
            except FileNotFoundError:
                return {}
            return {str(one["name"]).rstrip("/").rpartition("/")[2]: None if one["type"] == "directory" else int(one["size"]) for one in found}

        return self._ask(f"listing {directory or 'the checkpoints'}", work)

    def get(self, path: str, size: int = 0) -> bytes | None:
        def work() -> bytes | None:
            with contextlib.suppress(FileNotFoundError):
                data: bytes = self._fs.cat_file(self._below(path))
                return data
            return None

        return self._ask(f"reading {path}", work, size=size)

    def put(self, path: str, data: Whole) -> None:
        self._ask(f"writing {path}", lambda: self._put(self._below(path), data), size=len(data), sends=True)

    def put_new(self, path: str, data: Whole) -> bool:
        if self._ask(f"looking at {path}", lambda: self._fs.exists(self._below(path))):
            return False
        self.put(path, data)
        return True

    def remove(self, path: str) -> None:
        self._ask(f"removing {path}", lambda: self._remove(self._below(path)))

    def remove_directory(self, directory: str) -> None:
        def work() -> None:
            with contextlib.suppress(Exception):  # One that stays is empty, and does no harm.
                if not self._fs.ls(self._below(directory), detail=False):
                    self._fs.rm(self._below(directory), recursive=False)

        self._ask(f"removing {directory}", work)

    def sweep(self, directory: str, stale_s: float) -> int:
        stale = [name for name in self.list(directory) if is_stale(name, stale_s)]
        for name in stale:
            self.remove(f"{directory}/{name}")
        return len(stale)

    def _put(self, path: str, data: Whole) -> None:
        before = temporary(path)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            with self._fs.open(before, "wb", block_size=PART_BYTES) as file:
                file.write(data)
            there = self._size(path)
            if there == len(data):
                self._remove(before)  # Another upload was faster. Its file is as good, and must not be missing even for a moment.
                return
            if there is not None:
                self._remove(path)  # WebHDFS renames onto nothing that is there.
            self._fs.mv(before, path)
            if self._size(path) != len(data):  # WebHDFS says "false" when it did not rename, and fsspec does not read that.
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        except BaseException:
            with contextlib.suppress(Exception):  # What is left of it is swept later.
                self._remove(before)
            raise

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def _size(self, path: str) -> int | None:
        with contextlib.suppress(FileNotFoundError):
            return int(self._fs.info(path)["size"])
        return None

    def _below(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root or "/"


class Directory:
    """A directory, such as a mounted one. It must be there: a place that is not mounted must not be filled instead."""

    def __init__(self, root: Path, ask: Asker) -> None:
        self._root, self._ask, self._disk = root, ask, Disk()

    def on_behalf_of(self, stop: Stop) -> Directory:
        return Directory(self._root, self._ask.on_behalf_of(stop))

    def list(self, directory: str) -> dict[str, int | None]:
        def work() -> dict[str, int | None]:
            self._check_root()
            found: dict[str, int | None] = {}
            with contextlib.suppress(FileNotFoundError):
                for entry in (self._root / directory).iterdir():
                    with contextlib.suppress(FileNotFoundError):  # Somebody has just renamed or removed it.
                        found[entry.name] = None if entry.is_dir() else entry.stat().st_size
            return found

        return self._ask(f"listing {directory or 'the checkpoints'}", work)

    def get(self, path: str, size: int = 0) -> bytes | None:
        def work() -> bytes | None:
            with contextlib.suppress(FileNotFoundError):
                return (self._root / path).read_bytes()
            return None

        return self._ask(f"reading {path}", work, size=size)

    def put(self, path: str, data: Whole) -> None:
        def work() -> None:
            self._check_root()
            target = self._root / path
            new = [above for above in (target.parent, *target.parent.parents) if not above.exists()]
            self._disk.make_directory(target.parent)
            put_file(self._disk, target, data, temporary=target.with_name(temporary(target.name)))
            for above in (target.parent, *(one.parent for one in new)):
                self._disk.sync_directory(above)

        self._ask(f"writing {path}", work, size=len(data), sends=True)

    def put_new(self, path: str, data: Whole) -> bool:
        if self._ask(f"looking at {path}", (self._root / path).exists):
            return False
        self.put(path, data)
        return True

    def remove(self, path: str) -> None:
        def work() -> None:
            target = self._root / path
            self._disk.remove(target)
            with contextlib.suppress(FileNotFoundError):
                if target.parent.name != CHUNKS:  # A manifest is gone before any of its chunks is, also after a power cut; they may go at any time.
                    self._disk.sync_directory(target.parent)

        self._ask(f"removing {path}", work)

    def remove_directory(self, directory: str) -> None:
        self._ask(f"removing {directory}", lambda: self._disk.remove_directory(self._root / directory))

    def sweep(self, directory: str, stale_s: float) -> int:
        stale = [name for name in self.list(directory) if is_stale(name, stale_s)]
        for name in stale:
            self.remove(f"{directory}/{name}")
        return len(stale)

    def _check_root(self) -> None:
        if not self._root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
