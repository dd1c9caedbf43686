"""`holdfast doctor` and `holdfast run --check`: the answer as lines and JSON, the exit code, and no job on a machine that is not fit."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path

import pytest
from checkpoint.disks import save_step

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import list_complete
from holdfast.cli.doctor import check_before, run_doctor
from holdfast.domain.job import JobSpec, MetricsAt
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory

SPEC = JobSpec(job="job", argv=("train.py",))


def test_it_says_what_it_saw_and_closes_with_a_sentence(tmp_path: Path) -> None:
    out = io.StringIO()
    assert run_doctor(tmp_path, "", only="limits, ports", full=False, as_json=False, out=out) in (0, 1)
    assert "limits: " in out.getvalue()
    assert "2 checks in " in out.getvalue()


def test_as_json_every_check_has_its_verdict_and_figures(tmp_path: Path) -> None:
    out = io.StringIO()
    run_doctor(tmp_path, "", only="storage", full=False, as_json=True, out=out)
    said = json.loads(out.getvalue())
    assert said["verdict"] in ("ok", "warn", "bad")
    assert {"name", "verdict", "said", "do", "culprit", "node", "seconds", "figures"} == set(said["checks"][0])
    assert said["checks"][0]["figures"]["free_bytes"] > 0


def test_a_check_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no check 'horoscope'; there are versions, "):
        run_doctor(tmp_path, "", only="horoscope", full=False, as_json=False, out=io.StringIO())


def test_for_a_job_that_does_not_run_the_machine_is_held_against_its_newest_checkpoint(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path / "jobs" / "job")
    job.path.mkdir(parents=True)
    job.journal.touch()
    job.spec.write_text('{"job": "job", "argv": ["train.py"]}')
    for rank in range(2):
        save_step(Disk(), job.checkpoints, 20, rank)
    out = io.StringIO()
    run_doctor(tmp_path, "job", only="storage,shared_memory", full=False, as_json=True, out=out)
    figures = {check["name"]: check["figures"] for check in json.loads(out.getvalue())["checks"]}
    saved = list_complete(job.checkpoints)[0].manifest
    assert figures["storage"]["wanted_bytes"] == 3 * saved.own_bytes  # Two more are kept, and one is written before the oldest goes.
    assert figures["shared_memory"]["wanted_bytes"] >= 2 * saved.size_bytes


def test_a_job_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no job 'jib'"):
        run_doctor(tmp_path, "jib", only="limits", full=False, as_json=False, out=io.StringIO())


def test_before_a_job_what_is_bad_is_said_and_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.preflight.examine.CHECKS", ("limits", "ports"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        out = io.StringIO()
        with pytest.raises(UserError, match=f"not fit for the job: ports: port {port} is taken"):
            check_before(tmp_path, JobSpec(job="job", argv=("train.py",), metrics=MetricsAt(port=port)), out)
    assert f"port {port} is taken" in out.getvalue()
    check_before(tmp_path, SPEC, io.StringIO())
