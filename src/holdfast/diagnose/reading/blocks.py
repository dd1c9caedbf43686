"""From chunks of any size to blocks of whole lines: the same blocks however the bytes were handed over.

A block ends at the last line end within `BLOCK_BYTES`; a line longer than that is cut there. UTF-16 and UTF-32 with a byte order mark become UTF-8. What is not
text at all is told by its first bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

BLOCK_BYTES: Final = 1 << 18
HEAD_BYTES: Final = 1 << 12  # What is looked at to tell text from what is not.
_ODD_SHARE_MAX: Final = 0.05  # Control characters that no log has. Random bytes hold a tenth of them. NULs do not count: a crash leaves holes of them.
_CONTROL: Final = bytes(set(range(1, 32)) - {7, 8, 9, 10, 12, 13, 27})
_MARKS: Final = ((codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_MAGIC: Final = (
    (b"\x7fELF", "a program"), (b"PK\x03\x04", "a zip archive (torch saves are such)"), (b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"), (b"\x89PNG", "an image"), (b"\x89HDF", "HDF5"), (b"SQLite format 3", "a SQLite database"), (b"\x80\x02", "a pickle"), (b"\x80\x04",
    "a pickle"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Block:
    data: bytes
    last: bool


def blocks(chunks: Iterable[bytes]) -> Iterator[Block]:
    """The bytes again, cut at ends of lines; the last block says that it is."""
    held: Block | None = None
    for data in _cut(_as_utf8(chunks)):
        if held is not None:
            yield held
        held = Block(data, False)
    if held is not None:
        yield Block(held.data, True)


def odd_because(head: bytes) -> str:
    """Why these first bytes are not a log; empty when they may be one."""
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return f"is {name} and not text"
    written = head.translate(None, b"\0")
    odd = len(written) - len(written.translate(None, _CONTROL))
    if odd > _ODD_SHARE_MAX * len(written):
        return f"is binary: {odd} of its first {len(head)} bytes are control characters"
    return ""


def _as_utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """UTF-16 and UTF-32 with their mark are told by their first bytes, which may come one at a time."""
    rest = iter(chunks)
    head = b""
    for chunk in rest:
        head += chunk
        if len(head) >= 4:
            break
    for mark, name in _MARKS:
        if head.startswith(mark):
            decoder = codecs.getincrementaldecoder(name)("replace")
            yield decoder.decode(head[len(mark) :]).encode("utf-8", "replace")
            for chunk in rest:
                yield decoder.decode(chunk).encode("utf-8", "replace")
            yield decoder.decode(b"", True).encode("utf-8", "replace")
            return
    yield head.removeprefix(codecs.BOM_UTF8)
    yield from rest


def _cut(chunks: Iterable[bytes]) -> Iterator[bytes]:
    buffer = bytearray()
    for chunk in chunks:
        # A chunk may be a whole file: it is taken in parts, so that no second copy of it is made.
        for begin in range(0, len(chunk), BLOCK_BYTES):
            buffer += chunk[begin : begin + BLOCK_BYTES]
            while len(buffer) >= BLOCK_BYTES:
                end = buffer.rfind(b"\n", 0, BLOCK_BYTES) + 1 or buffer.rfind(b"\r", 0, BLOCK_BYTES) + 1
                yield bytes(buffer[: end or BLOCK_BYTES])
                del buffer[: end or BLOCK_BYTES]
    if buffer:
        yield bytes(buffer)
