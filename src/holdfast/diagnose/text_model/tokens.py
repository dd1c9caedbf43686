"""A line to words: lower case, names taken apart, and whatever differs between two runs of the same failure masked.

Numbers go, except those that name the fault: an errno, a status, a signal, an exit code, an Xid. A path leaves its last name and its ending. A name such as
`CUDNN_STATUS_NOT_INITIALIZED` or `OutOfMemoryError` is one word and also its parts, so that a message nobody has seen is still met half-way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from zlib import crc32

_LINE_CHARACTERS = 600  # The reader keeps long lines; what names a cause stands near the front.
_MASKED = re.compile(
    r"(?P<url>\b[a-z][a-z0-9+]{1,9}://[^\s'\"<>)]+)"
    r"|(?P<path>(?:~|\.{1,2})?(?:/[\w.\-+@=%]+){2,}/?)"
    r"|(?P<address>\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\[?(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}\]?)"
    r"|(?P<hex>\b0x[0-9a-f]+\b|\b[0-9a-f]{12,}\b)"
    r"|(?P<word>[^\W\d_](?:[\w]|(?<=\w)[.](?=[^\W\d]))*)"
    r"|(?P<number>\d+(?:[.,]\d+)*)",
    re.IGNORECASE,
)  # fmt: skip
_TELLING = frozenset({"code", "errno", "error", "exit", "exitcode", "http", "result", "sig", "signal", "status", "xid", "err", "rc", "returned", "response"})
_XID = re.compile(r"(S?Xid) \(PCI:[0-9a-fA-F:.]+\):? ?(\d+)")
_TELLING_PLACES = ("/dev/shm", "/dev/nvidia", "/dev/infiniband", "/sys/fs/cgroup", "/proc/")  # Devices and the kernel's own files are no user's paths.
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\dA-Za-z_]+")
_DIGITS = re.compile(r"\d+")


def words(line: str) -> Iterator[str]:
    """The words of a line, in their order."""
    line = line[:_LINE_CHARACTERS]
    if "Xid" in line:
        line = _XID.sub(r"\1 \2", line)  # Its number stands behind the card's address.
    before = ""
    for match in _MASKED.finditer(line):
        kind, text = match.lastgroup, match.group()
        if kind == "word":
            for before in _of_name(text):
                yield before
        elif kind == "number":
            if before in _TELLING and len(text) <= 3:
                yield f"{before}={text}"
        elif kind == "path":
            yield from _of_path(text)
            before = ""
        else:
            assert kind is not None
            yield f"<{kind}>"
            before = ""


def hashed(word: str) -> int:
    """The same in every process and on every machine, unlike hash()."""
    return crc32(word.encode("utf-8", "replace"))


@lru_cache(maxsize=8192)
def _of_name(text: str) -> tuple[str, ...]:
    """The name as it stands, digits aside, then its parts where it has several; the last of them is what a number after it belongs to."""
    whole = _DIGITS.sub("0", text).lower()
    parts = [part.lower() for piece in text.split("_") for part in _PARTS.findall(piece) if len(part) > 1]
    if len(parts) < 2:
        return (whole,)
    return (whole, *parts)


def _of_path(text: str) -> Iterator[str]:
    name = text.rstrip("/").rsplit("/", 1)[-1]
    stem, dot, ending = name.rpartition(".")
    yield "<path>"
    yield from (f"<path>{place}" for place in _TELLING_PLACES if text.startswith(place))
    if dot and ending.isalnum() and len(ending) <= 12:
        yield f"<path>.{_DIGITS.sub('0', ending).lower()}"
        yield from _of_name(stem.replace("-", "_").replace(".", "_"))
    else:
        yield from _of_name(name.replace("-", "_").replace(".", "_"))
