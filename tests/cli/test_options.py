"""Options of `holdfast run`: what a spelling means. What is refused is in test_bad_input.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.cli.options import (
    budgets_of,
    check_fits,
    checkpoint_every,
    gpus_of,
    limited_anew,
    limits_of,
    may_change_of,
    mode_of,
    never_of,
    nodes_of,
    notice_file_of,
    resources_of,
    smaller_batch_of,
    stages_of,
    target_of,
)
from holdfast.domain.job import Budget, JobSpec, Limits, MayChange, Mode, SaveEvery, Stage, Target
from holdfast.domain.resources import Resources
from holdfast.domain.scaling import SmallerBatch
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", None),
        ("auto", SaveEvery()),
        ("0", SaveEvery(steps=0)),
        ("458", SaveEvery(steps=458)),
        ("30s", SaveEvery(seconds=30.0)),
        ("1.5m", SaveEvery(seconds=90.0)),
        ("5min", SaveEvery(seconds=300.0)),
        ("2h", SaveEvery(seconds=7200.0)),
        ("250ms", SaveEvery(seconds=0.25)),
    ],
)
def test_an_interval_is_a_number_of_steps_a_time_or_what_is_best(text: str, meant: SaveEvery | None) -> None:
    assert checkpoint_every(text) == meant


@pytest.mark.parametrize("text", ["often", "2.5", "-5", "0s", "-3m", "nans", "infs", "1e3s", "5 m", "10S", "s", "autos", "0x10"])
def test_what_is_none_of_these_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"^--checkpoint-every "):
        checkpoint_every(text)


def test_nodes_are_a_number_or_the_least_and_the_most() -> None:
    assert [nodes_of(text) for text in ("3", "3:3", "2:4")] == [(3, 3), (3, 3), (2, 4)]


def test_a_policy_is_a_mode_rungs_that_are_forbidden_and_budgets_over_time() -> None:
    assert mode_of("ask") is Mode.ASK
    assert never_of(["shrink", "replace", "shrink"]) == ("shrink", "replace")
    assert budgets_of(["20/1h", "replace:3/1d"]) == (Budget(count=20, within_s=3600.0), Budget(count=3, within_s=86400.0, rung="replace"))
    assert budgets_of(["hang:5/1h", "replace,hang:2/1d"]) == (
        Budget(count=5, within_s=3600.0, cause="hang"), Budget(count=2, within_s=86400.0, rung="replace", cause="hang"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (mode_of, "maybe", "--policy is auto, ask, advise, not 'maybe'"),
        (lambda text: never_of([text]), "schrink", "did you mean 'shrink'"),
        (lambda text: never_of([text]), "stop", "there is no rung 'stop'"),
        (lambda text: budgets_of([text]), "often", "COUNT/TIME"),
        (lambda text: budgets_of([text]), "3/soon", "--budget is a time"),
        (lambda text: budgets_of([text]), "rest:3/1h", "there is no rung or cause 'rest'"),
        (lambda text: budgets_of([text]), "hung:3/1h", "did you mean 'hang'?"),
        (lambda text: budgets_of([text]), "respawn,replace:3/1h", "one rung and one cause at most"),
    ],
)
def test_what_is_no_policy_is_refused_in_a_sentence(read: Callable[[str], object], text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read(text)


def limits(**said: str) -> Limits | None:
    return limits_of(**{"time_limit": "", "epoch_limit": "", "target": "", "within": "", "at_limit": "report", **said})


def test_limits_are_times_a_target_and_what_to_do_beyond_them() -> None:
    assert limits() is None
    assert limits(time_limit="12h") == Limits(job_s=43200.0)
    assert limits(time_limit="2d", at_limit="stop") == Limits(job_s=172800.0, stop=True)
    assert limits(epoch_limit="90m") == Limits(epoch_s=5400.0)
    assert limits(target="validation_loss<=0.5", within="6h") == Limits(target=Target(metric="validation_loss", value=0.5), target_s=21600.0)
    assert limits(target="accuracy >= 0.9") == Limits(target=Target(metric="accuracy_ratio", value=0.9, below=False))


@pytest.mark.parametrize(("name", "metric"), [("val_loss", "validation_loss"), ("bleu", "user_bleu"), ("user_bleu", "user_bleu"), ("loss", "loss")])
def test_a_target_may_be_called_as_the_script_reports_it(name: str, metric: str) -> None:
    assert target_of(f"{name}<=1").metric == metric


@pytest.mark.parametrize("text", ["loss", "loss<0.5", "loss<=", "loss<=nan", "<=3", "Loss<=3", "loss<=0.5 and more", "host_load<=3"])
def test_what_is_no_target_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match="loss"):
        target_of(text)


@pytest.mark.parametrize(
    "said",
    [{"time_limit": "12"}, {"time_limit": "0h"}, {"time_limit": "long"}, {"within": "6h"}, {"at_limit": "kill", "time_limit": "1h"}, {"at_limit": "stop"}],
)
def test_limits_that_mean_nothing_are_refused(said: dict[str, str]) -> None:
    with pytest.raises(UserError):
        limits(**said)


def test_a_job_that_is_resumed_may_be_given_more_time() -> None:
    before = Limits(job_s=3600.0, epoch_s=60.0, stop=True)
    assert limited_anew(before, "2h", None) == Limits(job_s=7200.0, epoch_s=60.0, stop=True)
    assert limited_anew(before, None, "report") == Limits(job_s=3600.0, epoch_s=60.0)
    assert limited_anew(Limits(job_s=3600.0), "", None) is None
    assert limited_anew(None, None, None) is None
    with pytest.raises(UserError, match="report"):
        limited_anew(before, None, "kill")


def resources(**said: object) -> Resources:
    nothing = {"memory": "", "memory_high": "", "memory_per_worker": "", "cpus": None, "cpu_weight": None, "max_processes": None}
    return resources_of(**{**nothing, **said})  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "meant"), [("64MiB", 64 << 20), ("512MB", 512 * 10**6), ("8GB", 8 * 10**9), ("7.5GiB", 15 << 29), ("1TB", 10**12)])
def test_memory_is_a_size_with_a_unit_that_can_mean_one_thing_only(text: str, meant: int) -> None:
    assert resources(memory=text) == Resources(memory_bytes=meant)


def test_memory_may_be_a_range_in_which_it_may_be_raised() -> None:
    assert resources(memory="8GB:12GB") == Resources(memory_bytes=8 * 10**9, memory_max_bytes=12 * 10**9)
    assert resources(memory="8GB:12GB").words() == ("memory 8 GB, up to 12 GB",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8GB:", "MIN:MAX such as 64GB:96GB, not '8GB:'"), (":8GB", "MIN:MAX such as 64GB:96GB, not ':8GB'"), (":", "MIN:MAX"),
        ("8GB:8GB", "8GB, so far as it may be raised, must be above 8GB"), ("12GB:8GB", "swap them, or give one size"), ("1MB:8GB", "is too little"),
        ("8GB:many", "--memory is a size such as 512MB, 8GB or 7.5GiB, not 'many'"), ("8GB:9GB:10GB", "not '9GB:10GB'"),
    ],
)  # fmt: skip
def test_a_range_of_memory_that_is_none_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        resources(memory=text)


@pytest.mark.parametrize("text", ["8", "8G", "8gb", "lots", "-8GB", "0GB", "nanGB", "8 GB", "63MiB", "1e3GB", "GB", "8GBs"])
def test_what_is_no_size_or_too_small_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"^--memory-per-worker .*(is a size such as 512MB, 8GB or 7.5GiB|is too little)"):
        resources(memory_per_worker=text)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"memory": "8GB", "memory_per_worker": "9GB"}, "is more than --memory 8GB"),
        ({"memory": "8GB", "memory_high": "8GB"}, "must be below --memory 8GB"),
        ({"cpus": 0.0}, "at least 0.01"),
        ({"cpus": -1.0}, "at least 0.01"),
        ({"cpus": float("nan")}, "at least 0.01"),
        ({"cpus": float("inf")}, "at least 0.01"),
        ({"cpu_weight": 0}, "from 1 to 10000"),
        ({"cpu_weight": 10001}, "from 1 to 10000"),
    ],
    ids=str,
)
def test_resources_that_contradict_each_other_or_mean_nothing_are_refused(said: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        resources(**said)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Resources(memory_bytes=1 << 60), r"--memory 1048576 TiB is more than this machine has \([0-9.]+ GiB\)"),
        (Resources(memory_bytes=1 << 30, memory_max_bytes=1 << 60), "--memory raised to 1048576 TiB is more than this machine has"),
        (Resources(worker_memory_bytes=1 << 60), "--memory-per-worker .* is more than this machine has"),
        (Resources(cpus=1e6), "--cpus 1e[+]06 is more than there are"),
        (Resources(processes=15), "--max-processes 15 is too few for 2 ranks on a node, whose threads count too: at least 16"),
        (Resources(processes=(1 << 22) + 1), "--max-processes 4194305 is more than Linux can have .4194304.: it would limit nothing"),
    ],
    ids=["memory", "raised", "worker", "cpus", "processes", "too many"],
)
def test_a_limit_beyond_the_machine_or_below_what_ranks_need_is_refused_with_the_numbers(asked: Resources, says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_fits(JobSpec(job="job", argv=("train.py",), ranks_per_node=2, resources=asked))


@pytest.mark.parametrize(("text", "says"), [("0,x", "a list of numbers"), ("-1", "a list of numbers"), ("1,1", "twice"), ("9999", "there is no GPU 9999 here")])
def test_gpus_that_are_none_are_refused(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        gpus_of(text, 1)
    assert gpus_of("", 2) == ()


def test_what_is_staged_has_a_name_below_the_nodes_directory(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "words.json").touch()
    asked = stages_of([f"{tmp_path}/train=data/train", f"{tmp_path}/words.json"])
    assert asked == (Stage(source=f"{tmp_path}/train", target="data/train"), Stage(source=f"{tmp_path}/words.json", target="words.json"))


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["gone"], "there is no .*gone"), ([""], "there is no "), (["=x"], "there is no "), (["here=/etc"], "below .HOLDFAST_STAGED"),
        (["here=../up"], "below .HOLDFAST_STAGED"), (["here", "here"], "lie in the same place"), (["here=a", "here=a/b"], "lie in the same place"),
    ],
)  # fmt: skip
def test_what_cannot_be_staged_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").touch()
    with pytest.raises(UserError, match=says):
        stages_of(texts)


def test_a_notice_is_a_file_that_can_appear(tmp_path: Path) -> None:
    assert notice_file_of("") == ""
    assert notice_file_of(f"{tmp_path}/notice-{{node}}") == f"{tmp_path}/notice-{{node}}"
    with pytest.raises(UserError, match="is a directory"):
        notice_file_of(str(tmp_path))
    with pytest.raises(UserError, match="there is no directory"):
        notice_file_of(str(tmp_path / "gone" / "notice"))


def test_limits_of_what_a_remedy_may_change_are_read_or_refused() -> None:
    assert may_change_of("") == MayChange()
    assert may_change_of("lr=0.1, clip=1.0,warmup=500") == MayChange(rate_min=0.1, clip_min=1.0, warm_up_max=500)
    refused = {"lr": "'lr' is no limit", "depth=3": "cannot be changed by a remedy", "lr=2": "above 0, and 1 at most", "warmup=1.5": "whole number"}
    for text, says in refused.items():
        with pytest.raises(UserError, match=says):
            may_change_of(text)


def test_how_the_rate_follows_a_smaller_batch_is_read_or_refused() -> None:
    assert smaller_batch_of("", 2, 2) is None
    assert [smaller_batch_of(text, 2, 4) for text in ("linear", "sqrt")] == [SmallerBatch.LINEAR, SmallerBatch.SQRT]
    for text, least, most, says in (("root", 2, 4, "linear or sqrt"), ("sqrt", 2, 2, "a gang of 2 nodes is never smaller")):
        with pytest.raises(UserError, match=says):
            smaller_batch_of(text, least, most)


def _numbers() -> Iterator[tuple[str, Any, Any]]:
    """All options of all commands that take any number; those of `plan` are judged together, each in its own words (test_plan.py)."""
    groups = [typer.main.get_command(app)]
    while groups:
        group: Any = groups.pop()
        for name in group.list_commands(typer.Context(group)):
            command = group.get_command(typer.Context(group), name)
            if hasattr(command, "list_commands"):
                groups.append(command)
            elif name != "plan":
                yield from ((f"{name} {option.opts[0]}", command, option) for option in command.params if option.type.name.startswith("float"))


def test_no_option_that_takes_a_number_takes_nan_or_infinity() -> None:
    seen = set()
    for name, command, option in _numbers():
        seen.add(name)
        for text in ("nan", "inf"):
            with pytest.raises(UserError, match=f"{option.opts[0]} is a number, such as 1.5, not {text}"):
                option.process_value(typer.Context(command), text)
        if option.default is not None:
            assert option.process_value(typer.Context(command), option.default) == option.default
    assert {"run --slow-wait-s", "run --power-cap", "chaos --rate", "chaos --minutes", "prune --older-s"} <= seen


@pytest.mark.parametrize("text", ['{"job": "job", "argv": ["train.py"], "policy": {"slow_wait_s": null}}', "{", None])
@pytest.mark.parametrize("words", [("resume", "job"), ("doctor", "--job", "job", "--only", "limits")])
def test_a_job_that_was_kept_in_a_way_that_cannot_be_read_is_a_sentence_with_what_to_do(tmp_path: Path, words: tuple[str, ...], text: str | None) -> None:
    directory = JobDirectory(tmp_path / "jobs" / "job")
    directory.path.mkdir(parents=True)
    directory.journal.touch()
    if text is not None:
        directory.spec.write_text(text)
    ran = CliRunner().invoke(app, [*words, "--state", str(tmp_path)])
    assert isinstance(ran.exception, UserError)
    assert re.search(r"how job 'job' was run cannot be read from .*/job\.json: .*; `holdfast run --name job …` writes it anew", str(ran.exception))
