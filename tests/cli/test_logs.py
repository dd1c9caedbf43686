"""`holdfast logs -n`: the last lines, whatever the file ends with."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.logs import log_records


@pytest.mark.parametrize(
    ("printed", "lines", "shown"),
    [
        (b"a\nb\nc\n", 2, ["b", "c"]), (b"a\nb\nc", 2, ["b", "c"]), (b"a", 5, ["a"]), (b"", 3, []), (b"a\n\n\n", 2, ["", ""]), (b"a\nb\n", 0, []),
        (b"x" * 200_000 + b"\nlast\n", 1, ["last"]), (b"first\n\xff\xfe\n", 1, ["\ufffd\ufffd"]), (b"a\nb\n", None, ["a", "b"]),
    ],
)  # fmt: skip
def test_the_last_lines_are_shown(tmp_path: Path, printed: bytes, lines: int | None, shown: list[str]) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(printed)
    assert log_records(path, lines) == shown
