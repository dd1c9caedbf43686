"""A disk that stumbles while a checkpoint is read is asked again, and a broken one is not for ever."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast.checkpoint import chunks
from holdfast.checkpoint.digest import digest_of
from holdfast.checkpoint.disk import read_some
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.layout import Chunk


@pytest.mark.parametrize(("number", "failures", "tries"), [(errno.EIO, 2, 3), (errno.ESTALE, 9, 4), (errno.EACCES, 9, 1)])
def test_what_passes_is_waited_for_and_what_does_not_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, failures: int, tries: int
) -> None:
    content, asked = b"state" * 100, []
    digest = digest_of(content, "blake2b")
    chunk = Chunk(digest, len(content), "step-00000001.g1")
    path = tmp_path / chunk.path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)

    def stumbling(file: object, view: memoryview) -> int:
        asked.append(number)
        if len(asked) <= failures:
            raise OSError(number, "the disk stumbled")
        return read_some(file, view)  # type: ignore[arg-type]

    monkeypatch.setattr(chunks, "read_some", stumbling)
    monkeypatch.setattr(chunks, "sleep", lambda _: None)
    into = memoryview(bytearray(len(content)))
    if failures < 9:
        chunks.read_chunk(tmp_path, chunk, "blake2b", into)
        assert bytes(into) == content
    else:
        with pytest.raises(CheckpointCorrupt, match="cannot be read"):
            chunks.read_chunk(tmp_path, chunk, "blake2b", into)
        assert len(asked) == tries
