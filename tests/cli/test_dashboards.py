"""`holdfast dashboards export`: what Grafana and Prometheus load, made of the catalogue and the rules. tests/end_to_end/test_metrics.py has them answered."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from end_to_end.jobs import command
from end_to_end.prometheus import program

from holdfast.cli.dashboards.boards import BOARDS, GPUS, NODES, TRAINING
from holdfast.cli.dashboards.grafana import dashboard
from holdfast.cli.dashboards.panels import Board, Panel, thresholds
from holdfast.control.rulebook import rules_in_force
from holdfast.domain.metric import METRICS

RULES = rules_in_force().rules
OTHERS = {"build_info", "incidents_open", "incidents_total", "series_left_out"}  # What is no series of the catalogue.


def panels(board: Board) -> list[dict[str, Any]]:
    return [panel for panel in dashboard(board, RULES)["panels"] if panel["type"] != "row"]


def panel_named(board: Board, title: str) -> Panel:
    return next(panel for panel in board.panels if panel.title == title)


def test_every_name_in_every_expression_is_one_that_is_emitted() -> None:
    for board in BOARDS:
        for panel in board.panels:
            for query in panel.queries:
                names = set(re.findall(r"\bholdfast_([a-z0-9_]+)(?=[{\[])", query.expression))
                assert names <= METRICS.keys() | OTHERS, f"{board.uid}: {panel.title}"
                assert names or "ALERTS" in query.expression


def test_uids_are_fixed_and_every_panel_has_its_place_and_asks_the_chosen_datasource() -> None:
    assert [board.uid for board in BOARDS] == ["holdfast-overview", "holdfast-nodes", "holdfast-gpus", "holdfast-training"]
    for board in BOARDS:
        made = dashboard(board, RULES)
        assert [variable["name"] for variable in made["templating"]["list"]] == ["datasource", "job", "node"]
        assert made["templating"]["list"][0]["type"] == "datasource"
        ids = [panel["id"] for panel in made["panels"]]
        assert len(ids) == len(set(ids))
        taken: set[tuple[int, int]] = set()
        for panel in made["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert not cells & taken, panel["title"]
            assert place["x"] + place["w"] <= 24
            taken |= cells
        for panel in panels(board):
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


@pytest.mark.parametrize(
    ("board", "title", "lines"),
    [
        (GPUS, "Temperature", {"GpuHot": 87.0}), (NODES, "Space that is free", {"DiskFull": 0.01, "DiskNearlyFull": 0.05, "DiskWillBeFull": 0.4}),
        (NODES, "A small write, synced and read back", {"DiskSlow": 2.0}), (NODES, "Packets dropped", {"NetworkDrops": 500.0}),
        (TRAINING, "Silent for", {"RankSilentLong": 1800.0}), (TRAINING, "Printed", {"LogFlood": 2 * 2.0**20}), (TRAINING, "Loss", {}),
    ],
)  # fmt: skip
def test_threshold_lines_are_the_limits_of_the_rules(board: Board, title: str, lines: dict[str, float]) -> None:
    panel = panel_named(board, title)
    assert {line.says.partition(" ")[0]: line.value for line in thresholds(panel, RULES)} == lines
    (drawn,) = [one for one in panels(board) if one["title"] == title]
    assert sorted(step["value"] for step in drawn["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]) == sorted(lines.values())
    assert ("thresholdsStyle" in drawn["fieldConfig"]["defaults"]["custom"]) == bool(lines)
    assert all(name in drawn["description"] for name in lines)


def test_a_rule_of_ones_own_moves_the_line(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("rules: [{name: GpuHot, metric: gpu_temperature_celsius, is: '> 70', summary: hot}]")
    moved = thresholds(panel_named(GPUS, "Temperature"), rules_in_force([tmp_path / "own.yaml"]).rules)
    assert [line.value for line in moved] == [70.0]


def test_an_export_is_what_grafana_and_prometheus_load(tmp_path: Path) -> None:
    made = command("dashboards", "export", tmp_path / "out", "--prometheus", "http://prometheus:9090", "--target", "127.0.0.1:1234", "--json")
    assert made.returncode == 0, made.stderr
    files = [Path(file) for file in json.loads(made.stdout)["files"]]
    assert all(file.is_file() for file in files)
    boards = [json.loads(file.read_text()) for file in files if file.suffix == ".json"]
    assert {board["uid"] for board in boards} == {board.uid for board in BOARDS}
    provider = yaml.safe_load((tmp_path / "out/grafana/provisioning/dashboards/holdfast.yaml").read_text())["providers"][0]
    assert sorted(Path(provider["options"]["path"]).glob("*.json")) == sorted(file for file in files if file.suffix == ".json")
    source = yaml.safe_load((tmp_path / "out/grafana/provisioning/datasources/holdfast.yaml").read_text())["datasources"][0]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    checked = subprocess.run(
        [program("promtool"), "check", "config", str(tmp_path / "out/prometheus/prometheus.yml")], capture_output=True, text=True, check=False, timeout=30
    )
    assert checked.returncode == 0, checked.stderr
    assert f"{len(RULES)} rules found" in checked.stdout


def test_what_cannot_be_written_or_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = command("dashboards", "export", tmp_path / "file")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Name another directory." in refused.stderr
    (tmp_path / "own.yaml").write_text("rules: [{name: X}]")
    refused = command("dashboards", "export", tmp_path / "out", "--rules", tmp_path / "own.yaml")
    assert refused.returncode == 2
    assert not (tmp_path / "out").exists()
