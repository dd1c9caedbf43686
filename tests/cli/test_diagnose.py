"""`holdfast diagnose` as a person and a script use it, on real files."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.diagnose import Asked, run_diagnose
from holdfast.errors import UserError

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    step()\n'
IMPORT = f"{TRACEBACK}ModuleNotFoundError: No module named 'einops'\n"
DONE = "".join(f"step {number} loss: 2.0\n" for number in range(30)) + "Training completed\n"
PORT = f"{TRACEBACK}OSError: [Errno 98] Address already in use\n"


def process(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "holdfast.cli", "diagnose", *map(str, arguments)], input=stdin, capture_output=True, timeout=100)


def holdfast(*paths: str | Path, **asked_for: Any) -> tuple[int, str, str]:
    """The same within this process, which spares the start of one."""
    out, err = io.StringIO(), io.StringIO()
    asked = Asked(paths=tuple(map(str, paths)), **asked_for)
    return run_diagnose(asked, out=out, err=err), out.getvalue(), err.getvalue()


@pytest.mark.parametrize(("text", "status", "cause"), [(DONE, 0, "healthy"), (PORT, 10, "port_in_use"), (IMPORT, 11, "import_missing"), ("", 12, "unknown")])
def test_the_exit_status_says_what_a_script_needs(text: str, status: int, cause: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(text)
    code, out, err = holdfast(log, as_json=True, state=tmp_path)
    record = json.loads(out)
    assert (record["cause"], code) == (cause, status), err
    assert {"path", "cause", "permanence", "scope", "confidence", "alternatives", "evidence"} <= record.keys()
    assert record["path"] == str(log)


def test_a_person_reads_what_where_why_and_what_to_do(tmp_path: Path) -> None:
    log = tmp_path / "train.log.gz"
    log.write_bytes(gzip.compress(IMPORT.encode()))
    assert holdfast(log, html=tmp_path / "page.html", state=tmp_path)[1] == "", "the page takes the place of the lines"
    page = (tmp_path / "page.html").read_text()
    assert "import_missing" in page
    assert "<script" not in page
    shown = holdfast(log, explain=True, state=tmp_path)[1]
    for words in ("import_missing", f"{log}:4", "No module named 'einops'", "retry", "no: the same job would end here again", "Install what is named", "How:"):
        assert words in shown


def test_each_file_is_a_case_and_the_gravest_decides(tmp_path: Path) -> None:
    for name, text in (("a.log", DONE), ("b.log", PORT), ("c.log", IMPORT), ("d.log", "")):
        (tmp_path / name).write_text(text)
    (tmp_path / "e.bin").write_bytes(bytes(range(256)) * 100)
    code, out, _ = holdfast(tmp_path, each=True, as_json=True, state=tmp_path)
    told = {Path(record["path"]).name: record["cause"] for record in map(json.loads, out.splitlines())}
    assert told == {"a.log": "healthy", "b.log": "port_in_use", "c.log": "import_missing", "d.log": "unknown"}
    assert code == 11


def test_the_standard_input_is_a_log_and_secrets_are_masked() -> None:
    token = "hf_" + "a1B2" * 9
    done = process("-", "--json", stdin=f"{TRACEBACK}PermissionError: [Errno 13] Permission denied: '/x?token={token}'\n".encode())
    assert json.loads(done.stdout)["cause"] == "permission_denied"
    assert done.returncode == 11
    assert token.encode() not in done.stdout + done.stderr


def test_a_name_that_is_nothing_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file 'no-such-job'"):
        holdfast("no-such-job", state=tmp_path)
    with pytest.raises(UserError, match=r"gone\.log"):
        holdfast(tmp_path / "gone.log", state=tmp_path)


def test_text_of_a_log_cannot_become_markup(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"{TRACEBACK}KeyError: '<img src=x onerror=alert(1)>[bold]'\n")
    holdfast(log, html=tmp_path / "page.html", state=tmp_path)
    assert "<img" not in (tmp_path / "page.html").read_text()
    assert "[bold]" in holdfast(log, state=tmp_path)[1]
