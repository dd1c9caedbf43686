from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.cli.detect import SeriesUnreadable, detect, read_series, show
from holdfast.cli.plot import plot

SPIKE = 3000


def lines_of(rows: int = 3500, *, epoch: bool = False) -> list[str]:
    """A noisy series with one spike."""
    values = 50 + np.random.default_rng(1).normal(size=rows)
    values[SPIKE % rows] += 40
    start = np.datetime64("2014-04-01T00:00:00")
    times = [str(300 * row) if epoch else str(start + np.timedelta64(300 * row, "s")).replace("T", " ") for row in range(rows)]
    return ["timestamp,value", *(f"{at},{value:.4f}" for at, value in zip(times, values.tolist(), strict=True))]


@pytest.fixture
def series(tmp_path: Path) -> Path:
    path = tmp_path / "series.csv"
    path.write_text("\n".join(lines_of()) + "\n")
    return path


def run(*arguments: str, given: bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["detect", *arguments], input=given)


def refused(path: Path) -> str:
    with pytest.raises(SeriesUnreadable) as raised:
        read_series(str(path))
    return str(raised.value)


def written(tmp_path: Path, content: str | bytes, name: str = "bad.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_json_is_one_line_a_file_with_a_score_for_each_row(series: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "zipped.csv.gz"
    zipped.write_bytes(gzip.compress(series.read_bytes()))
    result = run("--json", str(series), str(zipped))
    assert result.exit_code == 0
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["path"] == str(series)
    assert second["path"] == str(zipped)
    assert first["scores"] == second["scores"]
    assert len(first["scores"]) == 3500
    assert all(0 <= score <= 1 for score in first["scores"])
    assert [(one["row"], one["kind"]) for one in first["findings"]] == [(SPIKE, "unusual_value")]
    assert first["scores"][SPIKE] == max(first["scores"])


def test_people_get_a_plot_and_a_sentence(series: Path) -> None:
    result = run(str(series))
    assert result.exit_code == 0
    assert "▲" in result.stdout
    assert "3,500 rows, 1 finding" in result.stdout
    assert "row 3,000, 2014-04-11 10:00:00: 9" in result.stdout
    assert "was expected" in result.stdout


def test_the_standard_input_is_a_file_too() -> None:
    result = run("--json", "-", given="\n".join(lines_of(epoch=True)).encode())
    assert json.loads(result.stdout)["path"] == "-"
    assert [one["row"] for one in json.loads(result.stdout)["findings"]] == [SPIKE]


def test_scores_of_a_file_that_is_cut_are_the_first_scores_of_the_whole(tmp_path: Path) -> None:
    whole = detect(read_series(str(written(tmp_path, "\n".join(lines_of(5000)))))).scores
    for cut in (1, 31, 700, 4097, 4999):
        part = detect(read_series(str(written(tmp_path, "\n".join(lines_of(5000)[: cut + 1]))))).scores
        assert np.array_equal(part, whole[:cut])


def test_columns_may_come_in_any_order_and_more_of_them(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffhost, Value ,Timestamp\na,1.5,2014-04-01T00:00:00Z\na,2.5,1396310700\na,3.5,20140401\n")
    read = read_series(str(path))
    assert read.values.tolist() == [1.5, 2.5, 3.5]
    assert read.at.tolist() == [1396310400.0, 1396310700.0, 20140401.0]


def test_values_that_are_missing_score_nothing(tmp_path: Path) -> None:
    lines = lines_of()
    for row, value in ((2000, ""), (2001, "NaN"), (2002, "inf"), (2003, "-Infinity")):
        lines[row + 1] = f"{lines[row + 1].partition(',')[0]},{value}"
    detected = detect(read_series(str(written(tmp_path, "\n".join(lines)))))
    assert detected.scores[2000:2004].tolist() == [0, 0, 0, 0]
    assert [one.row for one in detected.found] == [SPIKE]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("timestamp,value\n", "has a header and no rows"),
        ("time,value\n1,2\n", "has no column timestamp: its first line is 'time,value'"),
        ("1,2\n3,4\n", "has no column timestamp and no column value"),
        ("timestamp,value\n1,2\n2,many\n", "row 2: 'many' is not a number"),
        ("timestamp,value\nyesterday,2\n", "row 1: 'yesterday' is no time"),
        ("timestamp,value\n1,2\n\n2\n", "row 2, is cut short"),
        (b"\x89PNG\r\n\x1a\n\0\0\xff", "is not text"),
        (b"timestamp,value\n1,\0\n", "has zero bytes"),
        (gzip.compress(b"timestamp,value\n1,2\n", mtime=0)[:-9], "is gzip and damaged"),
    ],
)
def test_what_is_no_series_is_refused_with_what_was_seen(tmp_path: Path, content: str | bytes, said: str) -> None:
    message = refused(written(tmp_path, content))
    assert said in message
    assert ";" in message  # What was expected, or what to do.
    assert "\n" not in message


def test_a_name_that_ends_in_gz_must_be_gzip(tmp_path: Path) -> None:
    assert "is named .gz and is not gzip: it begins with b'timestam'" in refused(written(tmp_path, "timestamp,value\n1,2\n", "a.csv.gz"))


def test_a_bad_file_does_not_keep_the_others_from_being_read(series: Path, tmp_path: Path) -> None:
    result = run("--json", str(tmp_path / "none.csv"), str(tmp_path), str(series))
    assert result.exit_code == 2
    assert [json.loads(line)["path"] for line in result.stdout.splitlines()] == [str(series)]
    assert len(result.stderr.splitlines()) == 2
    assert "none.csv cannot be read" in result.stderr


def test_nothing_in_a_file_can_move_the_cursor(tmp_path: Path) -> None:
    assert "\x1b" not in refused(written(tmp_path, "timestamp,value\n1,\x1b[2Jx\n"))


def test_a_file_of_20_000_rows_takes_seconds_and_no_torch(tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(lines_of(20_000)))
    code = f"import sys; from holdfast.cli.detect import run_detect; run_detect([{str(path)!r}], as_json=True, out=sys.stdout, err=sys.stderr)"
    began = time.process_time()
    detect(read_series(str(path)))
    assert time.process_time() - began < 5  # Under one when the machine has nothing else to do.
    loaded = subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], capture_output=True, check=False, timeout=60)
    assert loaded.returncode == 0, loaded.stderr


def test_a_terminal_without_braille_gets_a_plain_plot(series: Path) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(detect(read_series(str(series))), Console(file=out, width=60))
    out.seek(0)
    assert "#" in out.read()


@pytest.mark.parametrize("values", [[1.0], [np.nan], [5.0, 5.0], [1e308, -1e308], [np.nan, 1.0, np.nan, 2.0], [0.0] * 1000])
def test_a_plot_of_anything_has_lines_that_fit(values: list[float]) -> None:
    with np.errstate(all="raise", under="ignore"):
        lines = plot(np.array(values), [0], width=50)
    assert all(len(line) <= 50 for line in lines)
