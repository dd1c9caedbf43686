"""What `holdfast profile` takes, and how it shows what it got."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.cli.profile import Who, profile_json, profile_shown, take_profile, who
from holdfast.domain.profile import Operator, Profile, RankProfile
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory


def profile(*ranks: RankProfile, **more: object) -> Profile:
    return Profile(number=1, name="20260101-000000-asked-1", generation=1, asked_at=0.0, because="", steps=5, ranks=ranks, ended_at=1.0, **more)  # type: ignore[arg-type]


def shown(of: Profile) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(profile_shown(JobDirectory(Path("jobs/job")), of))
    return out.getvalue()


@pytest.mark.parametrize(("text", "meant"), [("slow", Who()), ("all", Who(all=True)), ("3", Who(ranks=(3,))), ("3,0,3", Who(ranks=(0, 3)))])
def test_ranks_are_slow_all_or_numbers(text: str, meant: Who) -> None:
    assert who(text) == meant


@pytest.mark.parametrize("text", ["fast", "", "1,", "-1", "0-3"])
def test_anything_else_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match="--ranks"):
        who(text)


def test_a_job_that_does_not_run_cannot_be_profiled(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not running, and only a running job can be profiled"):
        take_profile(JobDirectory(tmp_path / "jobs" / "job"), Who(), steps=5, wait_s=1.0, quiet=True)


def test_words_parts_operators_and_the_place_of_the_traces_are_shown() -> None:
    one = RankProfile(
        rank=3, node="node-1", generation=1, first_step=10, steps=5, step_s=0.05, parts={"compute": 0.041, "communication": 0.009},
        operators=(Operator(name="aten::mm", seconds=0.03, calls=41.0),), trace="rank-3.1.pt.trace.json.gz",
    )  # fmt: skip
    text = shown(profile(one, says=("rank 3 spends 41 ms",), slow=(3,), missing={"1": "it did not finish"}))
    for word in ("rank 3 spends 41 ms", "node-1", "10-14", "41 ms", "aten::mm", "rank 1: it did not finish", "jobs/job/profiles/20260101-000000-asked-1"):
        assert word in text
    assert profile_json(JobDirectory(Path("jobs/job")), profile(one))["directory"] == "jobs/job/profiles/20260101-000000-asked-1"


def test_where_nothing_came_there_is_a_reason_and_no_place() -> None:
    text = shown(profile(says=("no profile was taken: it ended",), missing={"0": "it ended"}))
    assert "no profile was taken" in text
    assert "traces in" not in text


def test_what_a_job_calls_its_operators_cannot_move_a_cursor() -> None:
    evil = RankProfile(rank=0, generation=1, first_step=1, steps=1, step_s=1.0, parts={}, operators=(Operator(name="a\x1b[2Jb", seconds=1.0, calls=1.0),))
    assert "\x1b" not in shown(profile(evil))
