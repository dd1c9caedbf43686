"""Boards as Grafana reads them: classic JSON with fixed uids and the datasource as a variable, which every version from 9 on takes; and its provisioning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from holdfast.cli.dashboards.panels import Board, Panel, Query, thresholds
from holdfast.detect.rules.rule import Rule
from holdfast.domain.finding import Severity
from holdfast.domain.metric import PREFIX
from holdfast.wire.exposition import JOB_LABEL

_SCHEMA: Final = 38
_COLUMNS: Final = 24
_HEIGHTS: Final = {"timeseries": 8, "table": 8, "stat": 4}
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLOURS: Final = {Severity.INFO: "blue", Severity.WARNING: "orange", Severity.CRITICAL: "red"}
_UNITS: Final = {
    "": "short", "s": "s", "bytes": "bytes", "ratio": "percentunit", "celsius": "celsius", "watts": "watt", "hertz": "hertz", "steps": "none", "1/s": "short",
    "bytes/s": "Bps", "/s": "ops", "s/s": "percentunit",
}  # fmt: skip


def dashboard(board: Board, rules: Iterable[Rule]) -> dict[str, Any]:
    rules = tuple(rules)
    return {
        "uid": board.uid, "title": board.title, "tags": ["holdfast"], "schemaVersion": _SCHEMA, "version": 1, "editable": True, "graphTooltip": 1,
        "refresh": "15s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser", "annotations": {"list": []},
        "links": [{"title": "Holdfast", "type": "dashboards", "tags": ["holdfast"], "asDropdown": True, "keepTime": True, "includeVars": True}],
        "templating": {"list": _variables()}, "panels": list(_placed(board, rules)),
    }  # fmt: skip


def _variables() -> list[dict[str, Any]]:
    job, node = f"label_values({PREFIX}job_generation, {JOB_LABEL})", f'label_values({PREFIX}host_cpu_ratio{{{JOB_LABEL}=~"$job"}}, node)'
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0},
        _choice("job", "Job", job, many=False), _choice("node", "Node", node, many=True),
    ]  # fmt: skip


def _choice(name: str, label: str, query: str, *, many: bool) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "datasource": _SOURCE, "definition": query, "query": {"query": query, "refId": name}, "refresh": 2,
        "sort": 1, "multi": many, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "hide": 0,
    }  # fmt: skip


def _placed(board: Board, rules: tuple[Rule, ...]) -> Iterable[dict[str, Any]]:
    """From left to right, a new line where there is no room."""
    number, down = 0, 0
    for title, panels in board.rows:
        number += 1
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": {"x": 0, "y": down, "w": _COLUMNS, "h": 1}, "panels": []}
        down, across, tallest = down + 1, 0, 0
        for panel in panels:
            if across + panel.width > _COLUMNS:
                down, across, tallest = down + tallest, 0, 0
            number, height = number + 1, _HEIGHTS[panel.kind]
            yield _panel(panel, number, {"x": across, "y": down, "w": panel.width, "h": height}, rules)
            across, tallest = across + panel.width, max(tallest, height)
        down += tallest


def _panel(panel: Panel, number: int, place: dict[str, int], rules: tuple[Rule, ...]) -> dict[str, Any]:
    lines = thresholds(panel, rules) if panel.kind == "timeseries" else []  # A single number is coloured by them upwards only, and half of them are floors.
    steps = [{"color": "transparent" if lines else "text", "value": None}, *({"color": _COLOURS[line.severity], "value": line.value} for line in lines)]
    custom: dict[str, Any] = {"fillOpacity": 10, "showPoints": "never", "spanNulls": False}
    if panel.stacked:
        custom |= {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40}
    if lines:
        custom |= {"thresholdsStyle": {"mode": "dashed"}}
    defaults = {"unit": _UNITS[panel.unit], "thresholds": {"mode": "absolute", "steps": steps}, "custom": custom if panel.kind == "timeseries" else {}}
    return {
        "id": number, "type": panel.kind, "title": panel.title, "description": "\n\n".join(line.says for line in lines), "datasource": _SOURCE,
        "gridPos": place, "targets": [_target(query, letter, panel) for query, letter in zip(panel.queries, "ABCDEFGH", strict=False)],
        "fieldConfig": {"defaults": defaults, "overrides": []}, "options": _options(panel),
    }  # fmt: skip


def _target(query: Query, letter: str, panel: Panel) -> dict[str, Any]:
    at_once = panel.kind != "timeseries"
    shape = {"instant": True, "range": False} if at_once else {"instant": False, "range": True}
    return {
        "refId": letter, "datasource": _SOURCE, "expr": query.expression, "legendFormat": query.legend, "editorMode": "code",
        "format": "table" if panel.kind == "table" else "time_series", **shape,
    }  # fmt: skip


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case "stat":
            return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "none", "textMode": "auto"}
        case "table":
            return {"showHeader": True}
        case _:
            return {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}


def provisioned_dashboards(directory: str) -> dict[str, Any]:
    """For grafana/provisioning/dashboards."""
    provider = {"name": "Holdfast", "folder": "Holdfast", "type": "file", "updateIntervalSeconds": 30, "options": {"path": directory}}
    return {"apiVersion": 1, "providers": [provider]}


def provisioned_datasource(url: str) -> dict[str, Any]:
    """For grafana/provisioning/datasources."""
    source = {"name": "Prometheus (Holdfast)", "uid": "holdfast-prometheus", "type": "prometheus", "access": "proxy", "url": url}
    return {"apiVersion": 1, "datasources": [source]}
