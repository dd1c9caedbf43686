"""`holdfast plan`: what it answers, from given and from measured rates; and one sentence for each input that cannot be."""

from __future__ import annotations

import importlib.util
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import histories
import pytest
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.cli.job import new_job
from holdfast.control.journal import Journal
from holdfast.core import Core
from holdfast.domain.exit import Exit, ExitKind
from holdfast.errors import UserError
from holdfast.simulate.reliability import rates
from holdfast.simulate.reliability.forecast import Fleet, Times, forecast

LLAMA3 = ("--gpus", "16384", "--failures", "419", "--over", "54d")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "130"}, catch_exceptions=True)


def answered(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert isinstance(record, dict)
    return record


def refused(*arguments: str) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, UserError), result.output
    text = str(result.exception)
    assert "\n" not in text
    return text


def kept(root: Path, story: histories.History) -> str:
    """A job on disk whose journal holds this history."""
    journal, core = Journal(new_job(root, "measured").journal), Core()
    for entry in story.entries:
        journal.append(entry.event, core.step(entry.event), core.state)
    journal.close()
    return "measured"


def test_llama_3_at_its_published_rate() -> None:
    record = answered(*LLAMA3, "--lives", "50")
    assert 1 / record["per_s"]["value"] == pytest.approx(11135, rel=1e-3)
    assert record["goodput"]["low"] < record["goodput"]["value"] < record["goodput"]["high"]
    assert record["running"]["interval_s"] == 30.0
    assert sum(record["parts"].values()) == pytest.approx(1.0)
    assert record["simulated"]["mean"] == pytest.approx(record["goodput"]["value"], rel=0.01)
    assert record["nodes"] == 2048
    assert record == answered(*LLAMA3, "--lives", "50"), "the same question has the same answer"


def test_the_textbook_s_example_is_answered_with_the_right_values() -> None:
    """100 nodes, one failure a node in 100 days, one day, each detected with probability 0.9, repair with a mean of 10 minutes."""
    asked = ("--gpus", "800", "--node-mtbf", "100d", "--window", "1d", "--detected", "0.9", "--repair", "10m", "--lives", "0")
    record = answered(*asked)
    assert [round(record[name], 4) for name in ("failures_mean", "undisturbed", "any_seen", "none_missed")] == [1.0, 0.3679, 0.5934, 0.9048]
    assert dict(record["repaired"]) == pytest.approx({0.5: 600 * math.log(2), 0.95: 600 * math.log(20)})
    assert all(said in run(*asked).output for said in ("0.5934", "0.9048", "50 of 100 within 6m 56s"))


def test_a_published_rate_is_what_is_taken_when_none_is_given() -> None:
    record = answered("--gpus", "16384", "--lives", "0")
    assert record["per_s"]["value"] == pytest.approx(419 / (54 * 86400))
    assert record["simulated"] is None
    assert answered("--gpus", "16384", "--lives", "0", "--like", "rsc1")["per_s"]["value"] == pytest.approx(2048 * 6.5 / 1000 / 86400)


def test_a_rate_per_node_grows_with_the_job() -> None:
    small, large = (answered("--gpus", gpus, "--node-mtbf", "100d", "--lives", "0")["per_s"]["value"] for gpus in ("8", "80"))
    assert small == pytest.approx(1 / (100 * 86400))
    assert large == pytest.approx(10 * small)


def test_every_figure_that_went_in_says_where_it_is_from() -> None:
    figures = {figure["name"]: figure for figure in answered(*LLAMA3, "--save-cost", "2s", "--state-gb", "7290", "--lives", "0")["figures"]}
    assert figures["save cost"] == {"name": "save cost", "value": "2.0 s", "source": "given"}
    assert all("0.445 GB a GPU" in figures[name]["source"] for name in ("restore", "fetch", "behind"))
    assert "torchft" in figures["fetch"]["source"]
    assert all(figure["source"] for figure in figures.values())


def test_people_get_tables_and_plots() -> None:
    result = run(*LLAMA3, "--replicas", "128", "--parameters", "405B", "--tokens", "15.6T", "--within", "70d", "--growth", "2", "--years", "2", "--lives", "20")
    assert result.exit_code == 0, result.output
    for heading in ("What went in", "Failures", "How often to save", "Where the time goes", "What the goodput hangs on", "Spares", "Copies", "Capacity"):
        assert heading in result.output
    assert "16,384 GPUs on 2,048 nodes" in result.output
    assert "shrink or wait" in result.output
    assert "simulated" in result.output


def test_state_comes_over_the_network_as_fast_as_that_is() -> None:
    slow, fast = (answered(*LLAMA3, "--state-gb", "7290", "--network-gb-per-s", rate, "--lives", "0")["fleet"]["times"] for rate in ("0.445", "44.5"))
    assert slow["fetch_s"] == slow["behind_s"] == pytest.approx(1.0, rel=0.001)
    assert fast["fetch_s"] == pytest.approx(slow["fetch_s"] / 100)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpus", "8"), "there is one"), (("--gpus", "16"), "all 2 nodes fail together"), (("--gpus", "16384", "--copies", "1"), "only in storage"),
        (("--gpus", "16384"), "drawn at random"), (("--gpus", "512"), "drawn at random"),
        (("--gpus", "504"), "a copy of everything outside them takes 32 nodes, and there are 31"),
    ],
)  # fmt: skip
def test_what_is_said_of_copies_fits_the_fleet(arguments: tuple[str, ...], said: str) -> None:
    assert said in " ".join(run(*arguments, "--lives", "0").output.split())


def test_capacity_grows_with_the_workload_and_the_failures_with_it() -> None:
    rows = answered(*LLAMA3, "--parameters", "405B", "--tokens", "15.6T", "--within", "70d", "--growth", "2", "--years", "3", "--lives", "0")["capacity"]
    assert [row["year"] for row in rows] == [0, 1, 2, 3]
    gpus, shares = [row["gpus"] for row in rows], [row["goodput"] for row in rows]
    assert all(later > 2 * earlier for earlier, later in pairwise(gpus)), "more than doubled, because more of it fails"
    assert shares == sorted(shares, reverse=True)


def test_rates_and_times_are_taken_from_a_job(tmp_path: Path) -> None:
    story = histories.stormy(steps_per_s=0.1)
    name = kept(tmp_path, story)
    record = answered("--job", name, "--state", str(tmp_path), "--lives", "0")
    incidents = [incident for incident in story.state.incidents if incident.step_before >= 0]
    assert record["fleet"]["seen"]["failures"] == len(incidents) == 5
    assert (record["fleet"]["gpus"], record["nodes"]) == (4, story.state.spec.nodes if story.state.spec else 0) == (4, 2)
    assert record["fleet"]["times"]["save_s"] == 0.04
    assert record["per_s"]["low"] < record["per_s"]["value"] < record["per_s"]["high"]
    sources = {figure["name"]: figure["source"] for figure in record["figures"]}
    assert sources["restart"] == sources["detect"] == "measured in measured"
    assert answered("--job", str(tmp_path / "jobs" / name), "--lives", "0")["per_s"] == record["per_s"], "its directory will do, too"


def without_steps() -> histories.History:
    """Of a script as it is, which tells no steps."""
    story = histories.History().submit().answer()
    story.at += 86400.0
    story.exits(Exit(rank=1, pid=100, kind=ExitKind.SIGNAL, signal=9, because="rank 1 was ended by SIGKILL")).answer()
    story.at += 60.0
    return story.finish()


@pytest.mark.parametrize("told", [without_steps, lambda: histories.History(steps_per_s=0.0005).submit().up().train(19).killed(2).train(30).finish()])
def test_a_failure_counts_whether_or_not_steps_are_known_to_be_lost(tmp_path: Path, told: histories.Make) -> None:
    """Each costs a recovery: to say that none was seen would be wrong."""
    record = answered("--job", kept(tmp_path, told()), "--state", str(tmp_path), "--lives", "0")
    assert record["fleet"]["seen"]["failures"] == 1
    assert record["figures"][0]["source"].startswith("1 failure in ")


@pytest.mark.parametrize("told", [histories.calm, histories.stormy])
def test_a_minute_and_a_half_says_nothing_of_how_often_a_job_fails(tmp_path: Path, told: histories.Make) -> None:
    name = kept(tmp_path, told())
    record = answered("--job", name, "--state", str(tmp_path), "--gpus", "256", "--lives", "0")
    assert record["per_s"]["value"] == pytest.approx(419 / (54 * 86400) * 256 / 16384), "a published rate is taken"
    assert "cannot tell how often it fails" in record["unsaid"]
    assert "--mtbf TIME" in record["unsaid"]
    assert "cannot tell" in " ".join(run("--job", name, "--state", str(tmp_path), "--lives", "0").output.split())
    assert answered("--job", name, "--state", str(tmp_path), "--mtbf", "3h", "--lives", "0")["unsaid"] is None, "a rate that is given is enough"


def test_a_job_in_which_nothing_failed_is_not_one_that_never_fails(tmp_path: Path) -> None:
    story = histories.calm(steps_per_s=0.0005)
    record = answered("--job", kept(tmp_path, story), "--state", str(tmp_path), "--lives", "0")
    assert record["per_s"]["value"] == pytest.approx(2.996 / story.state.ledger.wall_s, rel=1e-3)
    assert "none seen" in record["figures"][0]["source"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--gpus 16384"),
        (("--gpus", "8", "--mtbf", "soon"), "a time such as"),
        (("--gpus", "8", "--mtbf", "0s"), "above 0"),
        (("--gpus", "8", "--mtbf", "1h", "--like", "llama3"), "given twice"),
        (("--gpus", "8", "--failures", "3"), "belong together"),
        (("--gpus", "8", "--failures", "-1", "--over", "3d"), "a count"),
        (("--gpus", "8", "--failures", "nan", "--over", "3d"), "a count"),
        (("--gpus", "1000000", "--failures", "1000000", "--over", "1d", "--watched-gpus", "8"), "no time to train"),
        (("--gpus", "8", "--like", "bloom"), "llama3, rsc1, rsc2"),
        (("--gpus", "8", "--hangs", "0.9", "--nans", "0.9"), "more than all"),
        (("--gpus", "8", "--hangs", "1.5"), "between 0 and 1"),
        (("--gpus", "8", "--detected", "-0.1"), "between 0 and 1"),
        (("--gpus", "8", "--stock-out", "0"), "a chance"),
        (("--gpus", "8", "--step", "0s"), "above 0"),
        (("--gpus", "8", "--mtbf", "1s", "--window", "99999999999d"), "at most 1000 years"),
        (("--gpus", "8", "--mtbf", "1s", "--repair", "9999999999999d"), "at most 1000 years"),
        (("--gpus", "8", "--detect", "9" * 400 + "d"), "at most 1000 years"),
        (("--gpus", "8", "--watched-gpus", "4"), "no count is given"),
        (("--gpus", "8", "--network-gb-per-s", "1.2"), "--state-gb"),
        (("--gpus", "8", "--state-gb", "-1"), "--state-gb"),
        (("--gpus", "8", "--state-gb", "7", "--network-gb-per-s", "0"), "--network-gb-per-s"),
        (("--gpus", "8", "--replicas", "9"), "more than the 8 GPUs"),
        (("--gpus", "8", "--years", "3"), "--parameters"),
        (("--gpus", "8", "--parameters", "7B"), "--tokens and --within"),
        (("--gpus", "8", "--parameters", "many", "--tokens", "1T", "--within", "3d"), "405B"),
        (("--gpus", "8", "--parameters", "7B", "--tokens", "1T", "--within", "3d", "--tflops", "0"), "above 0"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(*arguments)


def test_an_unknown_job_is_refused(tmp_path: Path) -> None:
    assert "no job" in refused("--job", "nosuch", "--state", str(tmp_path))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--gpus", "8", "--mtbf", "1s"), ("--gpus", "8", "--mtbf", "5000d"), ("--gpus", "1", "--save-cost", "0s"), ("--gpus", "8", "--spares", "0"),
        ("--gpus", "10000000", "--like", "rsc1"), ("--gpus", "16384", "--interval", "30d", "--mtbf", "1m"), ("--gpus", "8", "--copies", "1"),
        ("--gpus", "8", "--detect", "0s", "--replace", "0s", "--fetch", "0s", "--behind", "0s", "--restart", "0s", "--restore", "0s"),
        ("--gpus", "8", "--failures", "0", "--over", "30d"), ("--gpus", "8", "--parameters", "1e20", "--tokens", "1e15", "--within", "1d"),
    ],
)  # fmt: skip
def test_extremes_have_an_answer(arguments: tuple[str, ...]) -> None:
    assert run(*arguments, "--lives", "0").exit_code == 0
    assert 0.0 <= answered(*arguments, "--lives", "3")["goodput"]["value"] <= 1.0


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is not None, reason="matplotlib is installed")
def test_without_matplotlib_a_picture_is_refused_with_the_way_to_get_it(tmp_path: Path) -> None:
    assert "pip install 'holdfast[plots]'" in refused(*LLAMA3, "--png", str(tmp_path / "plan.png"))


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed: pip install 'holdfast[plots]'")
def test_a_picture_of_a_small_fleet_says_its_goodput_in_full() -> None:
    from holdfast.cli.plan.png import picture

    times = Times(
        save_s=0.04, detect_s=3.7, replace_s=71.0, restart_s=43.0, restore_s=1.5, fetch_s=5.4, hang_detect_s=24.0, nan_found_s=4289.0, behind_s=2.0,
        hang_share=0.12, nan_share=0.01, node_share=0.85, step_s=6.0,
    )  # fmt: skip
    found = forecast(Fleet(gpus=8, gpus_per_node=8, seen=rates.given(1e10, 8), times=times, window_s=1e6))
    figure = picture(found)
    figure.canvas.draw()
    saves, _, hangs_on, spares = figure.axes
    assert figure.get_suptitle().startswith("8 GPUs on 1 node: goodput 99.9997 %")
    assert (saves.yaxis.get_offset_text().get_text(), hangs_on.xaxis.get_offset_text().get_text()) == ("", ""), "no axis that begins at 99.999"
    assert min(spares.lines[0].get_ydata()) == min(chance for _, chance in found.spares_table if chance >= 1e-12), "and no chance that is not so"


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed: pip install 'holdfast[plots]'")
def test_with_matplotlib_a_picture_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    assert run(*LLAMA3, "--lives", "0", "--png", str(path)).exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "no directory" in refused(*LLAMA3, "--png", str(tmp_path / "nowhere" / "plan.png"))
    assert "is a directory" in refused(*LLAMA3, "--png", str(tmp_path))
