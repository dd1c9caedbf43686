"""`holdfast rules`, as a person at a shell meets it: what it says, what it refuses, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from detect.rules_given import promtool
from typer.testing import CliRunner, Result

from holdfast.cli import app
from holdfast.errors import UserError

PACK_TESTS = sorted((Path(__file__).resolve().parents[1] / "detect" / "rules").glob("*.yaml"))
GOOD = """
rules:
  - name: RewardLow
    metric: user_reward
    function: mean
    window: 5m
    is: "< 0.2"
    for: 10m
    summary: "{node}: the reward of rank {rank} is {value}"
  - name: GpuHot
    metric: gpu_temperature_celsius
    is: "> 95 °C"
    summary: "{node}: {gpu} is at {value}"
  - {name: LogFlood, disabled: true}
"""
BAD = "rules:\n  - {name: RewardLow, metric: disk_fre_bytes, is: '< 1GiB', summary: x}\n"
TEST = """
tests:
  - name: a low reward is told of
    rule: RewardLow
    every: 30s
    series: {"user_reward{node=a, rank=0}": 0.5x10 0.1x50}
    firing: {5m: nothing, 25m: node=a rank=0}
"""


def rules(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["rules", *map(str, arguments)])


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.yaml").write_text(GOOD)
    return tmp_path / "own.yaml"


def test_check_says_how_many_rules_are_good_what_they_replace_and_what_is_switched_off(own: Path) -> None:
    ran = rules("check", own)
    assert ran.exit_code == 0
    assert ran.stdout == "2 rules good; 1 replaced: GpuHot; 1 switched off: LogFlood\n"
    said = json.loads(rules("check", own, "--json").stdout)
    assert said == {"ok": True, "problems": [], "rules": ["GpuHot", "RewardLow"], "replaced": ["GpuHot"], "disabled": ["LogFlood"]}


def test_check_names_file_line_rule_and_the_nearest_metric_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    ran = rules("check", path)
    assert ran.exit_code == 1
    assert ran.stdout.splitlines() == [
        f"{path}:2: RewardLow: there is no metric 'disk_fre_bytes'; did you mean 'disk_free_bytes'?", "1 problem; 0 rules good"
    ]  # fmt: skip
    said = rules("check", path, "--json")
    assert said.exit_code == 1
    assert json.loads(said.stdout)["problems"] == [
        {"file": str(path), "line": 2, "rule": "RewardLow", "what": "there is no metric 'disk_fre_bytes'; did you mean 'disk_free_bytes'?"}
    ]


def test_check_knows_how_often_readings_are_taken(own: Path) -> None:
    ran = rules("check", own, "--sampling", "10m")
    assert ran.exit_code == 1
    assert "the window is 5m, and a reading is taken every 10m" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["check", "nowhere.yaml"], "nowhere.yaml cannot be read: No such file"), (["check", "."], "cannot be read"),
     (["list", "--rules", "nowhere.yaml"], "cannot be read"), (["export", "--tests", "x.yaml"], "Say where with --to"),
     (["export", "--scrape", "often"], "--scrape: 'often' is not a duration"),
     (["export", "--to", "/nowhere/at/all.yaml"], "cannot be written")],
)  # fmt: skip
def test_what_cannot_be_read_or_written_is_refused_with_a_sentence(arguments: list[str], said: str) -> None:
    ran = rules(*arguments)
    assert isinstance(ran.exception, UserError)
    assert said in str(ran.exception)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_bytes(b"\xff\xfe\x00")
    ran = rules("check", tmp_path / "own.yaml")
    assert isinstance(ran.exception, UserError)
    assert "is not text in UTF-8" in str(ran.exception)


def test_list_shows_every_rule_in_force(own: Path) -> None:
    listed = json.loads(rules("list", "--rules", own, "--json").stdout)
    by_name = {rule["name"]: rule for rule in listed}
    assert list(by_name) == sorted(by_name)
    assert by_name["GpuHot"]["conditions"] == [{"value": "last(gpu_temperature_celsius, 1m)", "where": {}, "limit": "> 95 °C"}]
    assert "LogFlood" not in by_name
    assert by_name["RewardLow"]["for_s"] == 600.0
    table = rules("list", "--rules", own)
    assert table.exit_code == 0
    assert all(name in table.stdout for name in by_name)
    assert "Switched off: LogFlood" in table.stdout


def test_rules_that_are_bad_are_not_listed_tested_or_exported(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    for command in (["list"], ["export"], ["test", str(PACK_TESTS[0])]):
        ran = rules(*command, "--rules", tmp_path / "bad.yaml")
        assert isinstance(ran.exception, UserError)
        assert "1 problem in the rules" in str(ran.exception)


def test_test_runs_the_tests_of_the_pack_and_of_ones_own_rules(own: Path) -> None:
    ran = rules("test", PACK_TESTS[0])
    assert (ran.exit_code, ran.stdout) == (0, "8 tests of 7 rules\n")
    path = own.with_name("tests.yaml")
    path.write_text(TEST)
    ran = rules("test", path, "--rules", own)
    assert (ran.exit_code, ran.stdout) == (0, "1 test of 1 rule\n")


def test_a_test_that_fails_or_cannot_be_read_fails_the_command(own: Path) -> None:
    path = own.with_name("tests.yaml")
    path.write_text(TEST.replace("5m: nothing", "5m: node=a rank=0"))
    ran = rules("test", path, "--rules", own)
    assert ran.exit_code == 1
    assert f"{path}:3: RewardLow: a low reward is told of" in ran.stdout
    assert "at 5m: expected node=a rank=0; seen nothing" in ran.stdout
    assert json.loads(rules("test", path, "--rules", own, "--json").stdout)["tests"][0]["ok"] is False
    path.write_text(TEST)
    ran = rules("test", path)
    assert ran.exit_code == 1
    assert "there is no rule 'RewardLow'" in ran.stdout


def test_export_writes_what_promtool_accepts_and_tests_it_proves(own: Path) -> None:
    to = own.with_name("prometheus.yaml")
    own.with_name("tests.yaml").write_text(TEST)
    ran = rules("export", "--prometheus", "--rules", own, "--to", to, "--tests", own.with_name("tests.yaml"))
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.splitlines()[-1].endswith("prometheus.test-30s.yaml")
    assert sorted(path.name for path in own.parent.iterdir()) == ["own.yaml", "prometheus.test-30s.yaml", "prometheus.yaml", "tests.yaml"]
    promtool("check", "rules", to, directory=own.parent)
    promtool("test", "rules", "prometheus.test-30s.yaml", directory=own.parent)


def test_export_says_what_it_left_out_and_fails(own: Path) -> None:
    own.write_text(GOOD.replace("window: 5m", "window: 5s"))
    ran = rules("export", "--rules", own)
    assert ran.exit_code == 1
    assert "left out: RewardLow: its window of 5s holds less than two readings" in ran.stderr
    assert "# Left out: RewardLow" in ran.stdout
    names = {rule["alert"] for group in yaml.safe_load(ran.stdout)["groups"] for rule in group["rules"]}
    assert "RewardLow" not in names
    assert "GpuHot" in names
    said = json.loads(rules("export", "--rules", own, "--json").stdout)
    assert list(said["left_out"]) == ["RewardLow"]
