"""Checksums: `digest_of` for bytes at hand, `new_digest` for bytes that come in pieces.

xxh3_128 where xxhash is installed (several GB/s), else blake2b from the standard library. The algorithm is recorded beside the checksums, so both
kinds can be read by whoever has the means.
"""

from __future__ import annotations

from typing import Final, Protocol

from holdfast.checkpoint.errors import CheckpointMismatch

Bytes = bytes | bytearray | memoryview
_XXH3: Final = "xxh3_128"
_BLAKE2: Final = "blake2b"


class Digest(Protocol):
    def update(self, data: Bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


ALGORITHMS: Final = (_XXH3, _BLAKE2)  # The best first.


def best_algorithm() -> str:
    return next(algorithm for algorithm in ALGORITHMS if can_digest(algorithm))


def can_digest(algorithm: str) -> bool:
    try:
        new_digest(algorithm)
    except CheckpointMismatch:
        return False
    return True


def new_digest(algorithm: str) -> Digest:
    """A new digest of the algorithm named; raises CheckpointMismatch when it cannot be had here."""
    if algorithm == _XXH3:
        try:
            import xxhash
        except ImportError:
            raise CheckpointMismatch(
                "this checkpoint carries xxh3_128 checksums, and the package xxhash that computes them is not installed here: install xxhash"
            ) from None
        return xxhash.xxh3_128()
    if algorithm == _BLAKE2:
        import hashlib  # Only here: it takes milliseconds to load, and is rarely needed.

        return hashlib.blake2b(digest_size=16)
    raise CheckpointMismatch(f"this checkpoint carries {algorithm!r} checksums; this Holdfast knows xxh3_128 and blake2b: use the newer one that wrote it")


def digest_of(data: Bytes, algorithm: str) -> str:
    hasher = new_digest(algorithm)
    hasher.update(data)
    return hasher.hexdigest()
