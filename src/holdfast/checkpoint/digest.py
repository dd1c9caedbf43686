"""Checksums: `digest()` for writing, `checksum_of(path, algorithm)` for reading.

xxh3_128 where xxhash is installed (several GB/s), else blake2b from the standard library. The algorithm is recorded beside each checksum, so both
kinds can be read by whoever has the means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from holdfast.checkpoint.errors import CheckpointMismatch

_CHUNK_BYTES: Final = 1 << 20


class Digest(Protocol):
    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def digest(algorithm: str | None = None) -> tuple[str, Digest]:
    """A new digest and the name of its algorithm: the best one here, or the one named."""
    if algorithm in (None, "xxh3_128"):
        try:
            import xxhash
        except ImportError:
            if algorithm:
                raise CheckpointMismatch(
                    "this checkpoint carries xxh3_128 checksums, and the package xxhash that computes them is not installed here: install xxhash"
                ) from None
        else:
            return "xxh3_128", xxhash.xxh3_128()
    if algorithm in (None, "blake2b"):
        import hashlib  # Only here: it takes milliseconds to load, and is rarely needed.

        return "blake2b", hashlib.blake2b(digest_size=16)
    raise CheckpointMismatch(f"this checkpoint carries {algorithm!r} checksums; this Holdfast knows xxh3_128 and blake2b: use the newer one that wrote it")


def checksum_of(path: Path, algorithm: str) -> str:
    """The checksum of a file, read in pieces."""
    _, hasher = digest(algorithm)
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(view[:count])
    return hasher.hexdigest()
