"""`holdfast checkpoint` on remote stores: the same answers as on the directory that was sent there, and sentences for what cannot be had."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from cli.test_checkpoints import Ran, checkpoint, damage, refused, train

from holdfast.checkpoint.found import list_complete, verify
from holdfast.checkpoint.remote_address import open_remote
from holdfast.domain.job import JobSpec
from holdfast.launch.layout import JobDirectory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 4 to 10, and the same in a store beside it."""
    root = tmp_path_factory.mktemp("made")
    train(root / "runs", 10, keep=4)
    (root / "store").mkdir()
    for found in reversed(list_complete(root / "runs")):
        open_remote(str(root / "store")).upload(root / "runs", found.name)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "root"))


@pytest.fixture
def job(root: Path, state: Path) -> JobDirectory:
    directory = JobDirectory(state / "jobs" / "resnet")
    directory.path.mkdir(parents=True)
    directory.journal.touch()
    shutil.copytree(root / "runs", directory.checkpoints)
    directory.spec.write_bytes(msgspec.json.encode(JobSpec(job="resnet", argv=("train.py",), remote=str(root / "store"))))
    return directory


def url(root: Path) -> str:
    return f"file://{root / 'store'}"


def both(root: Path, command: str, *words: object) -> tuple[Any, Any]:
    """What is said about the directory, and about the store."""
    answers = [checkpoint(command, where, *words, "--json") for where in (root / "runs", url(root))]
    assert [one.code for one in answers] == [answers[0].code] * 2, answers
    return answers[0].json, answers[1].json


def test_list_and_show_say_the_same_of_a_store_as_of_the_directory_that_was_sent_there(root: Path) -> None:
    here, there = both(root, "list")
    here, there = ([row for row in rows if row["status"] == "complete"] for rows in (here, there))
    assert [row | {"path": ""} for row in there] == [row | {"path": ""} for row in here]
    assert there[0]["path"] == f"{url(root)}/step-00000010.g1"
    here, there = both(root, "show", "newest")
    assert there | {"path": ""} == here | {"path": ""}
    assert "step-00000010.g1" in checkpoint("list", url(root)).said
    assert "Tensors, largest first" in checkpoint("show", url(root), 6).said


def test_verify_reads_every_byte_in_the_store_and_names_what_to_use_instead(root: Path) -> None:
    here, there = both(root, "verify", "--all")
    assert there["sound"]
    assert there["bytes"] == here["bytes"]
    newest = root / "store" / "step-00000010.g1" / "chunks"
    damage(max(newest.iterdir(), key=lambda chunk: chunk.stat().st_size))
    ran = checkpoint("verify", url(root), "--json")
    assert ran.code == 1
    (row,) = ran.json["checkpoints"]
    assert row["damaged"][0]["holds"], "what it holds is known from the notes, which are sound"
    assert ran.json["instead"] == "step-00000008.g1"


def test_prune_removes_from_the_store_what_no_rule_wants(root: Path) -> None:
    before = list_complete(root / "runs")
    assert checkpoint("prune", url(root), "--last", 2, "--dry-run", "--json").json["doomed"] == ["step-00000006.g1", "step-00000004.g1"]
    ran = checkpoint("prune", url(root), "--last", 2, "--json")
    assert ran.json["removed"]
    assert [one.step for one in open_remote(str(root / "store")).list()] == [10, 8]
    open_remote(str(root / "store")).verify("step-00000010.g1")
    assert list_complete(root / "runs") == before, "only in the store"


def test_diff_and_export_fetch_what_they_need(root: Path, tmp_path: Path) -> None:
    here, there = both(root, "diff", 8, 10, "--values")
    assert here == there
    assert here["changes"]
    for name, where in (("here", root / "runs"), ("there", url(root))):
        (tmp_path / name).mkdir()
        ran = checkpoint("export", where, "--format", "torch", "--to", tmp_path / name / "state.pt")
        assert ran.code == 0, ran.said
    assert (tmp_path / "here" / "state.pt").read_bytes() == (tmp_path / "there" / "state.pt").read_bytes()


def test_import_and_upload_send_to_a_store(root: Path, job: JobDirectory, tmp_path: Path) -> None:
    torch.save({"model": {"weight": torch.ones(3)}}, tmp_path / "model.pt")
    ran = checkpoint("import", tmp_path / "model.pt", "--to", url(root), "--step", 500, "--json")
    assert ran.code == 0, ran.said
    assert ran.json["path"] == f"{url(root)}/{ran.json['checkpoint']}"
    open_remote(str(root / "store")).verify(ran.json["checkpoint"])

    (tmp_path / "empty").mkdir()
    sent = checkpoint("upload", "resnet", "--to", f"file://{tmp_path / 'empty'}", "--json").json
    assert sent["sent_bytes"] == sent["bytes"] > 0
    assert checkpoint("upload", "resnet", "--to", f"file://{tmp_path / 'empty'}", "--json").json["sent_bytes"] == 0
    assert "were sent" in checkpoint("upload", "resnet", 4).said, "by itself to where the job sends"


def test_a_job_is_asked_for_what_it_has_in_its_store(root: Path, job: JobDirectory) -> None:
    shutil.rmtree(job.checkpoints)
    assert [row["step"] for row in checkpoint("list", "resnet", "--remote", "--json").json if row["status"] == "complete"] == [10, 8, 6, 4]
    assert checkpoint("verify", "resnet", "--remote").code == 0
    assert checkpoint("show", "resnet", 8, "--remote").code == 0


def test_bad_input_gives_sentences(root: Path, job: JobDirectory, tmp_path: Path) -> None:
    assert "there is no such directory" in failed("list", f"file://{tmp_path}/nowhere").said
    assert f"Give {url(root)} and then step-00000010.g1" in refused("show", f"{url(root)}/step-00000010.g1")
    assert "of a kind that fsspec does not know" in refused("list", "gopher://host/path")
    assert "there is no checkpoint '77'" in refused("show", url(root), 77)
    assert "--remote is for a job" in refused("list", root / "runs", "--remote")
    assert "is a remote store already" in refused("upload", url(root))
    (tmp_path / "none").mkdir()
    assert "No checkpoints" in checkpoint("list", f"file://{tmp_path}/none").said
    assert "there is no complete checkpoint" in refused("verify", f"file://{tmp_path}/none")
    job.spec.write_bytes(msgspec.json.encode(JobSpec(job="resnet", argv=("train.py",))))
    assert "has no remote store" in refused("list", "resnet", "--remote")
    assert "has no remote store" in refused("upload", "resnet")


def failed(*words: object) -> Ran:
    ran = checkpoint(*words)
    assert ran.code == 81, ran.said
    return ran


def test_nothing_is_left_of_what_was_fetched(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    checkpoint("diff", url(root), 8, 10)
    assert not os.listdir(tmp_path / "scratch")
    verify(list_complete(root / "runs")[0].path)
