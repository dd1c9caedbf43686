"""Log files, opened for reading: plain, compressed, from a pipe, or a whole directory of them.

Sees        the files named, those below directories named, and `-` for standard input. In the order of their names, numbers as numbers; older parts of a
            rotated log first.
Says        for each its path as it is shown and its bytes in chunks; in `said`, a sentence for each that was left out or ends early.
Is wrong    when a directory holds more than `FILES_MAX` files: the newest are read, which is said. A file that grows is read as far as it had come.
Costs       one chunk of memory. What is compressed is told by its first bytes, not by its name.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final, Protocol

CHUNK_BYTES: Final = 1 << 20
FILES_MAX: Final = 10_000
_SAID_MAX: Final = 20
_GZIP, _ZSTD, _BZIP2, _XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"
# What lies beside logs and is none. A file that is named is read whatever it is called.
_NO_LOGS: Final = frozenset((
    ".bin", ".ckpt", ".distcp", ".gif", ".h5", ".jpeg", ".jpg", ".npy", ".npz", ".onnx", ".parquet", ".pdf", ".pickle", ".pkl", ".png", ".pt", ".pth", ".py",
    ".pyc",
    ".safetensors", ".so", ".sqlite", ".svg", ".tar", ".whl", ".zip",
))  # fmt: skip
_FROM_A_PIPE: Final = re.compile(r"/dev/(?:stdin|fd/\d+)|/proc/(?:self|\d+)/fd/\d+")
_ROTATED: Final = re.compile(r"\.(\d{1,4})(?=\.(?:gz|zst|bz2|xz)$|$)")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class LogFiles:
    """The logs that some paths name. A path that is not there is an error of whoever named it, and is said like all else."""

    def __init__(self, paths: Sequence[str | Path], *, files_max: int = FILES_MAX, with_empty: bool = False) -> None:
        self.said: list[str] = []
        self._paths = [str(path) for path in paths]
        self._files_max = files_max
        self._with_empty = with_empty  # Where every file is asked about, an empty one is an answer too.
        self._unsaid = 0

    def sources(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Each log in turn; its bytes must be taken before the next one is asked for."""
        for path in self.files():
            with closing(self._chunks(path)) as chunks:
                yield path, chunks

    def files(self) -> list[str]:
        """All paths that will be read, in order, each file once."""
        found: dict[tuple[int, int] | str, str] = {}
        for path in self._paths:
            if path == "-" or _FROM_A_PIPE.fullmatch(path):
                found.setdefault(path, path)
                continue
            try:
                seen = os.stat(path)
            except OSError as error:
                self._say(f"{path} was not read: {_why(error)}.")
                continue
            if stat.S_ISDIR(seen.st_mode):
                for one, identity in self._below(path):
                    found.setdefault(identity, one)
            elif not stat.S_ISREG(seen.st_mode):
                self._say(f"{path} was not read: it is {_kind(seen.st_mode)} and not a file. Pipe it in, and name `-`.")
            else:
                found.setdefault((seen.st_dev, seen.st_ino), path)
        return list(found.values())

    def _below(self, root: str) -> list[tuple[str, tuple[int, int]]]:
        found: list[tuple[str, os.stat_result]] = []
        others = 0

        def refused(error: OSError) -> None:
            self._say(f"{error.filename} was not read: {_why(error)}.")

        for directory, _, names in os.walk(root, onerror=refused):
            for name in names:
                path = os.path.join(directory, name)
                try:
                    seen = os.stat(path)
                except OSError as error:
                    self._say(f"{path} was not read: {_why(error)}.")
                    continue
                if not stat.S_ISREG(seen.st_mode):
                    self._say(f"{path} was not read: it is {_kind(seen.st_mode)} and not a file.")
                elif os.path.splitext(name)[1].lower() in _NO_LOGS or (seen.st_size == 0 and not self._with_empty):
                    others += 1
                else:
                    found.append((path, seen))
        if others:
            self._say(f"Below {root}, files that were not read because they are empty or by their names no logs: {others}.")
        if len(found) > self._files_max:
            self._say(f"{root} holds {len(found)} files. Only the {self._files_max} newest were read; name a smaller directory to read others.")
            found = sorted(found, key=lambda one: -one[1].st_mtime_ns)[: self._files_max]
        return [(path, (seen.st_dev, seen.st_ino)) for path, seen in sorted(found, key=lambda one: _order(one[0]))]

    def _chunks(self, path: str) -> Generator[bytes, None, None]:
        try:
            if path == "-":
                yield from self._unpacked(path, sys.stdin.buffer)
                return
            with open(path, "rb") as file:
                yield from self._unpacked(path, file)
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            self._say(f"{path} ends early or is damaged ({error}); what came before that was read.")
        except OSError as error:
            self._say(f"{path} was not read to its end: {_why(error)}.")

    def _unpacked(self, path: str, file: BinaryIO) -> Iterator[bytes]:
        magic = bytes(getattr(file, "peek", lambda _: b"")(6)[:6])
        if magic.startswith(_GZIP):
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield from _parts(unpacked)
        elif magic.startswith(_BZIP2):
            with bz2.BZ2File(file) as unpacked_bz2:
                yield from _parts(unpacked_bz2)
        elif magic.startswith(_XZ):
            with lzma.LZMAFile(file) as unpacked_xz:
                yield from _parts(unpacked_xz)
        elif magic.startswith(_ZSTD):
            yield from self._zstd(path, file)
        else:
            yield from _parts(file)

    def _zstd(self, path: str, file: BinaryIO) -> Iterator[bytes]:
        """By Python's package where it is installed, else by the program."""
        try:
            import zstandard
        except ImportError:
            program = shutil.which("zstd") if path != "-" else None
            if program is None:
                self._say(f"{path} was not read: it is packed with zstd, and Python's zstandard is not installed. Try: pip install zstandard, or install zstd.")
                return
            os.lseek(file.fileno(), 0, os.SEEK_SET)  # The first bytes were looked at.
            process = subprocess.Popen([program, "-dcq"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert process.stdout is not None
            try:
                yield from _parts(process.stdout)
                if process.wait() != 0:
                    self._say(f"{path} ends early or is damaged; what came before that was read.")
            finally:
                process.kill()
                process.wait()
                process.stdout.close()
        else:
            try:
                with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as unpacked:
                    yield from _parts(unpacked)
            except zstandard.ZstdError as error:
                self._say(f"{path} ends early or is damaged ({error}); what came before that was read.")

    def _say(self, text: str) -> None:
        if len(self.said) < _SAID_MAX:
            self.said.append(text)
        else:
            self._unsaid += 1
            self.said[_SAID_MAX:] = [f"{self._unsaid} more were not read either."]


def _parts(file: _Readable) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _order(path: str) -> tuple[list[tuple[int, int, str]], int]:
    """Numbers as numbers, and of a rotated log the oldest part, which has the highest number, first."""
    rotated = _ROTATED.search(path)
    base = path[: rotated.start()] if rotated else path
    parts = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d{1,18})", base) if part]
    return parts, -int(rotated[1]) if rotated else 1


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
    return next((name for test, name in kinds if test(mode)), "something else")


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
