"""`holdfast diagnose` as a person and a script use it, on real files."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import histories
import pytest

from holdfast.cli.diagnose import Asked, run_diagnose
from holdfast.control.journal import Journal
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory

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


def journal_of(story: histories.History, root: Path) -> Path:
    """The journal of a job as the core told it, and an empty directory for its logs."""
    directory = JobDirectory(root / "jobs" / "demo")
    directory.logs.mkdir(parents=True)
    with closing(Journal(directory.journal)) as journal, journal.together():
        for entry in story.entries:
            journal.append(entry.event, entry.effects, story.state)
    return directory.logs


def test_the_journal_of_a_job_decides_and_its_exit_status_follows(tmp_path: Path) -> None:
    often = histories.History().submit().up()
    for _ in range(3):
        often.train(20).hangs(1)
    expected = {
        "finished": (histories.calm(), 0, "healthy"), "hung": (often.train(20).finish(), 0, "hang"), "failed": (histories.failed(), 11, "code_error"),
        "stopped": (histories.stopped(), 12, "user_cancelled"),
    }  # fmt: skip
    for name, (story, status, cause) in expected.items():
        logs = journal_of(story, tmp_path / name)
        (logs / "rank-3.log").write_text(f"{DONE}{histories.TRACEBACK}" if name == "failed" else DONE)
        code, out, err = holdfast("demo", as_json=True, state=tmp_path / name)
        record = json.loads(out)
        assert (record["cause"], code) == (cause, status), (name, err, record)
        assert record["outcome"] == ("permanent" if name == "failed" else "finished" if status == 0 else "stopped")
    shown = holdfast("demo", state=tmp_path / "hung")[1]
    assert "3 incidents stopped it on the way: hang 3 times" in shown
    assert "there is nothing to try again" in shown


def test_a_job_whose_logs_are_gone_is_still_known_by_its_journal(tmp_path: Path) -> None:
    journal_of(histories.failed(), tmp_path)
    code, out, _ = holdfast("demo", state=tmp_path)
    assert code == 11
    assert "batch <3> has 0 rows" in out
