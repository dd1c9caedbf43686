"""What changed since the last attempt that worked is recorded with every start, and `holdfast diagnose JOB` says it."""

from __future__ import annotations

import json
from pathlib import Path

from end_to_end.jobs import Job, command


def test_a_run_that_fails_after_a_change_is_told_what_changed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('fine')\n")
    with Job(tmp_path, script=script, arguments=("--size", "4"), env={"NCCL_ALGO": "Ring"}) as first:
        state = first.finished()
    assert state.worked_with == state.started_with
    assert state.worked_with["arguments"].endswith("--size 4")
    assert any(name.startswith("package ") for name in state.worked_with)

    script.write_text("import no_such_library_of_anybody\n")
    with Job(tmp_path, script=script, arguments=("--size", "5"), env={"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"}) as second:
        assert second.wait() != 0, second.said()
    state = second.state()
    assert state.worked_with != state.started_with

    said = command("diagnose", "job", "--json", "--explain", HOLDFAST_STATE=str(tmp_path))
    record = json.loads(said.stdout)
    assert record["cause"] == "import_missing", said.stderr
    changed = record["changed"]
    assert "script is another one" in changed
    assert "environment NCCL_ALGO is another one" in changed
    assert "environment NCCL_PROTO is new" in changed
    assert any(one.startswith("arguments was") and "--size 5" in one for one in changed)
    assert not any("Tree" in one for one in changed), "values of the environment are not told"
    assert any("changed since the last good attempt" in line for line in record["reasoning"])
    assert "the last attempt that worked" in command("diagnose", "job", HOLDFAST_STATE=str(tmp_path)).stdout
