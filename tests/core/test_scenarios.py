"""Scenarios: text files with commands and what the core said, checked line by line. `pytest tests/core --rewrite` writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from core.teller import Teller

from holdfast.core import Core
from holdfast.simulate.judge import encoded

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def _played(text: str) -> tuple[str, Teller]:
    teller = Teller()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            lines.append(line)
        elif line.startswith("> "):
            lines.append(line)
            lines += [f"  {said}" for said in teller.play(line[2:])]
    return "\n".join(lines) + "\n", teller


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_the_core_says_what_the_scenario_says(path: Path, request: pytest.FixtureRequest) -> None:
    told = path.read_text()
    played, _ = _played(told)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(played)
    else:
        assert played == told, f"{path.name} differs; if the new answer is right, run pytest tests/core --rewrite and read the difference"


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_replaying_a_scenario_gives_the_same_state_at_every_event(path: Path) -> None:
    _, teller = _played(path.read_text())
    twin = Core()
    for event in teller.events:
        twin.step(event)
        twin.check()
    assert encoded(twin.state) == encoded(teller.core.state)
