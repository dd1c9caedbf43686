"""Log files of every kind are opened, and what is not read is said."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.observe.log_files import LogFiles

TEXT = b"step 1\nValueError: x\n" * 5000


def contents(files: LogFiles) -> dict[str, bytes]:
    return {Path(path).name: b"".join(chunks) for path, chunks in files.sources()}


def test_plain_and_packed_files_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(TEXT)
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(TEXT))
    (tmp_path / "c.log").write_bytes(gzip.compress(TEXT))  # Told by its first bytes, not by its name.
    (tmp_path / "d.log.bz2").write_bytes(bz2.compress(TEXT))
    (tmp_path / "e.log.xz").write_bytes(lzma.compress(TEXT))
    files = LogFiles([tmp_path])
    assert set(contents(files).values()) == {TEXT}
    assert files.said == []


def test_zstd_is_read_or_it_is_said_what_to_install(tmp_path: Path) -> None:
    program = shutil.which("zstd")
    if program is None:
        pytest.skip("needs the zstd program to make a file")
    (tmp_path / "a.log").write_bytes(TEXT)
    subprocess.run([program, "-q", "--rm", str(tmp_path / "a.log")], check=True)
    files = LogFiles([tmp_path])
    assert contents(files) == {"a.log.zst": TEXT}


def test_without_zstd_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log.zst").write_bytes(b"\x28\xb5\x2f\xfd rest")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    files = LogFiles([tmp_path])
    assert contents(files) == {"a.log.zst": b""}
    assert "pip install zstandard" in files.said[0]


def test_a_packed_file_that_ends_early_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(os.urandom(500_000) + TEXT)[:400_000])
    files = LogFiles([tmp_path / "a.gz"])
    contents(files)
    assert "ends early" in files.said[0]


def test_pipes_sockets_and_what_is_not_there_are_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "good.log").write_bytes(TEXT)
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "socket"))
        (tmp_path / "broken").symlink_to("nowhere")
        (tmp_path / "model.safetensors").write_bytes(b"x")
        (tmp_path / "empty.log").write_bytes(b"")
        files = LogFiles([tmp_path, tmp_path / "missing.log", tmp_path / "pipe"])
        assert set(contents(files)) == {"good.log"}
    said = " ".join(files.said)
    assert all(name in said for name in ("pipe", "socket", "broken", "missing.log", "by their names no logs: 2"))


def test_a_named_file_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "log.py").write_bytes(TEXT)
    assert contents(LogFiles([tmp_path / "log.py"])) == {"log.py": TEXT}


def test_files_come_in_the_order_of_their_numbers_and_older_parts_first(tmp_path: Path) -> None:
    for name in ("rank-10.log", "rank-2.log", "rank-2.log.1", "rank-2.log.2", "rank-1.log"):
        (tmp_path / name).write_bytes(b"x")
    assert list(contents(LogFiles([tmp_path]))) == ["rank-1.log", "rank-2.log.2", "rank-2.log.1", "rank-2.log", "rank-10.log"]


def test_a_file_that_two_names_lead_to_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(TEXT)
    (tmp_path / "b.log").symlink_to(tmp_path / "a.log")
    assert len(contents(LogFiles([tmp_path, tmp_path / "a.log"]))) == 1


def test_of_too_many_files_the_newest_are_read_and_it_is_said(tmp_path: Path) -> None:
    for number in range(30):
        path = tmp_path / f"{number}.log"
        path.write_bytes(b"x")
        os.utime(path, (number, number))
    files = LogFiles([tmp_path], files_max=5)
    assert set(contents(files)) == {f"{number}.log" for number in range(25, 30)}
    assert "holds 30 files" in files.said[0]


def test_sentences_about_what_was_left_out_are_bounded(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.log").symlink_to("nowhere")
    files = LogFiles([tmp_path])
    assert contents(files) == {}
    assert len(files.said) == 21
    assert "40 more" in files.said[-1]


def test_standard_input_is_a_log_too(tmp_path: Path) -> None:
    code = "from holdfast.observe.log_files import LogFiles\nfor path, chunks in LogFiles(['-']).sources(): print(path, len(b''.join(chunks)))"
    for data in (TEXT, gzip.compress(TEXT)):
        done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True, timeout=60)
        assert done.stdout == f"- {len(TEXT)}\n".encode()
