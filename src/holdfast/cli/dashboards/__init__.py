"""`holdfast dashboards`: everything for Grafana and Prometheus, made from the same definitions as `/metrics` and the rules.

    DIR/grafana/dashboards/*.json                 the dashboards
    DIR/grafana/provisioning/{dashboards,datasources}/holdfast.yaml
    DIR/prometheus/holdfast.rules.yaml            the alerts: the rules in force, as `holdfast rules export --prometheus` writes them
    DIR/prometheus/prometheus.yml                 a configuration that scrapes a job and loads them

Alerts are Prometheus' rules and not Grafana's: promtool can check and test them, they fire also where no Grafana runs, and Grafana shows them all the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from holdfast.cli.checkpoints.drawing import print_json
from holdfast.cli.common import AsJson
from holdfast.cli.dashboards.boards import BOARDS
from holdfast.cli.dashboards.grafana import dashboard, provisioned_dashboards, provisioned_datasource
from holdfast.cli.words import count
from holdfast.control.rulebook import rules_in_force
from holdfast.detect.rules.prometheus import SCRAPE_S, exported
from holdfast.detect.rules.rule import Rule
from holdfast.errors import UserError

app = typer.Typer()


@app.callback()
def _group() -> None:
    """So that `export` keeps its name while it is the only command."""


@app.command("export")
def export(
    to: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; made where it is not there, and written over where it is.")],
    prometheus: Annotated[str, typer.Option(metavar="URL", help="Where Grafana finds Prometheus.")] = "http://127.0.0.1:9090",
    target: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where Prometheus finds the job: `holdfast run --metrics PORT`.")] = "127.0.0.1:9464",
    rules: Annotated[list[Path] | None, typer.Option("--rules", metavar="FILE", help="Rules of your own; they add to the shipped ones.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write Grafana dashboards, their provisioning, and the alerts and configuration of Prometheus."""
    found = rules_in_force(rules or ())
    if found.problems:
        raise UserError("the rules cannot be read:\n" + "\n".join(f"  {problem}" for problem in found.problems))
    texts = _texts(to.absolute(), found.rules, prometheus, target)
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}. Name another directory.") from error
    if as_json:
        print_json({"files": [str(path) for path in texts]})
    else:
        print(f"{count(len(BOARDS), 'dashboard')} and their provisioning in {to / 'grafana'}, alerts and configuration in {to / 'prometheus'}")


def _texts(to: Path, rules: Sequence[Rule], prometheus: str, target: str) -> dict[Path, str]:
    grafana, configuration = to / "grafana", to / "prometheus"
    return {
        **{grafana / "dashboards" / f"{board.uid}.json": json.dumps(dashboard(board, rules), indent=1) + "\n" for board in BOARDS},
        grafana / "provisioning" / "dashboards" / "holdfast.yaml": _dumped(provisioned_dashboards(str(grafana / "dashboards"))),
        grafana / "provisioning" / "datasources" / "holdfast.yaml": _dumped(provisioned_datasource(prometheus)),
        configuration / "holdfast.rules.yaml": exported(rules).text,
        configuration / "prometheus.yml": _dumped(_scraping(target)),
    }


def _scraping(target: str) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": f"{SCRAPE_S:g}s", "evaluation_interval": f"{SCRAPE_S:g}s"},
        "rule_files": ["holdfast.rules.yaml"],
        "scrape_configs": [{"job_name": "holdfast", "static_configs": [{"targets": [target]}]}],
    }


def _dumped(document: Any) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)
    return text
