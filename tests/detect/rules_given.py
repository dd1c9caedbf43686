"""Rules and series for tests, in few words."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import yaml

from holdfast.detect.rules.evaluate import Evaluator, Looked
from holdfast.detect.rules.reading import read_rules
from holdfast.detect.rules.rule import Rule
from holdfast.detect.series import Rings
from holdfast.domain.signal import Signal

BEGIN = 1_200_000.0


def rule(text: str) -> Rule:
    """One rule; its name and summary may be left out."""
    given = yaml.safe_load(textwrap.dedent(text))
    read = read_rules(yaml.safe_dump({"rules": [{"name": "Trouble", "summary": "trouble"} | given]}), "own.yaml")
    assert not read.problems, "\n".join(map(str, read.problems))
    return read.rules[0]


class Told:
    """A ring and rules over it, with time in seconds since the beginning."""

    def __init__(self, *rules: Rule) -> None:
        self.rings = Rings()
        self.evaluator = Evaluator(rules, self.rings, job="resnet")

    def at(self, second: float, signals: Mapping[str, Iterable[Signal]] | None = None) -> Looked:
        """Take each node's signals, and look."""
        for node, some in (signals or {}).items():
            self.rings.take(node, list(some), at=BEGIN + second, now=BEGIN + second)
        return self.evaluator.look(BEGIN + second)

    @property
    def firing(self) -> list[tuple[str, str, str]]:
        return sorted((finding.kind.removeprefix("rule:"), finding.node, finding.of or ",".join(map(str, finding.ranks))) for finding in self.evaluator.firing)


def promtool(*arguments: str | Path, directory: Path) -> str:
    """What it says; skipped where it is not installed."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    ran = subprocess.run([program, *map(str, arguments)], cwd=directory, capture_output=True, text=True, check=False, timeout=110)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said[-4000:]
    return said
