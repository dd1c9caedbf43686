"""The facts about an attempt, read from a real interpreter, real files and a real repository."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agent.surroundings import Surroundings
from holdfast.domain.job import JobSpec
from holdfast.domain.node import NodeSpec


@pytest.fixture
def spec(tmp_path: Path) -> NodeSpec:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "installed" / "some_lib-1.2.3.dist-info").mkdir(parents=True)
    job = JobSpec(job="j", argv=("train.py",), cwd=str(tmp_path), env={"PYTHONPATH": str(tmp_path / "installed"), "LICENCE": "a-secret"})
    place = str(tmp_path)
    return NodeSpec(
        node="n0", host="127.0.0.1", control=place, state=place, scratch=place, shared_memory=place, logs=place, checkpoints=place, interpreter=sys.executable,
        job=job,
    )  # fmt: skip


def test_packages_code_environment_and_machine_are_told_once(spec: NodeSpec, tmp_path: Path) -> None:
    of = Surroundings(spec)
    facts = of.news()

    assert facts["package some-lib"] == "1.2.3"
    assert facts["python"] == sys.version.split()[0]
    assert facts["kernel"] == os.uname().release
    assert "environment LICENCE" in facts
    assert "a-secret" not in str(facts)
    assert not any(name.startswith("environment HOLDFAST_") for name in facts)
    assert of.news() == {}, "as the time before"

    (tmp_path / "installed" / "some_lib-1.2.3.dist-info").rename(tmp_path / "installed" / "some_lib-1.3.0.dist-info")
    (tmp_path / "train.py").write_text("print(2)\n")
    now = of.news()
    assert {name for name in {*facts, *now} if facts.get(name) != now.get(name)} == {"package some-lib", "script"}


def test_the_commit_is_read_from_a_branch_a_packed_one_and_none(spec: NodeSpec, tmp_path: Path) -> None:
    assert "commit" not in Surroundings(spec).news() or (tmp_path.parent / ".git").exists()

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *who, *arguments], cwd=tmp_path, capture_output=True, check=True, text=True, timeout=60).stdout.strip()

    git("init", "-q")
    git("add", "train.py")
    git("commit", "-q", "-m", "one")
    assert Surroundings(spec).news()["commit"] == git("rev-parse", "HEAD")[:12]
    git("pack-refs", "--all")
    assert Surroundings(spec).news()["commit"] == git("rev-parse", "HEAD")[:12]
    git("worktree", "add", "-q", "beside")
    there = replace(spec, job=replace(spec.job, cwd=str(tmp_path / "beside")))
    assert Surroundings(there).news()["commit"] == git("rev-parse", "HEAD")[:12]


def test_an_interpreter_that_does_not_run_leaves_out_what_it_would_tell(spec: NodeSpec) -> None:
    facts = Surroundings(replace(spec, interpreter="/nowhere/python")).news()

    assert "kernel" in facts
    assert "python" not in facts
