"""The demo and its text: the quick demo is run for real."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.demo import last_loss
from holdfast.demo.text import ships_log
from holdfast.launch.layout import JobDirectory

DEMO_S = 280.0  # Forty seconds on two quiet cores; most of it is the import of torch, which a busy machine makes long.


def holdfast(*arguments: str, cwd: Path, code: str = "from holdfast.cli import main; main()") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; sys.argv = ['holdfast', *sys.argv[1:]]; {code}", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=DEMO_S)


@pytest.mark.unprivileged
@pytest.mark.timeout(DEMO_S + 20)
def test_the_quick_demo_survives_its_storm_and_leaves_a_report(state: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ran = holdfast("demo", "--quick", "--json", "--report", str(page), cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = json.loads(ran.stdout)
    assert said["survived"]
    assert not said["problems"]
    assert [fault["fault"] for fault in said["faults"]] == ["worker_killed", "control_killed", "node_lost"]
    assert said["steps"] == 400
    assert said["loss_last"] < 3.0  # Guessing among 256 bytes costs 5.5. When the first sample was taken, much may have been learned already.
    assert "storm: SIGKILL to control" in ran.stderr
    check_page(page.read_text(), said["job"])
    directory = JobDirectory(state / "jobs" / said["job"])
    assert directory.journal.exists()
    assert "node lost" in (directory.path / "report.txt").read_text()
    assert not directory.checkpoints.exists()


def test_the_last_loss_is_of_the_last_steps_however_few_samples_a_fast_machine_leaves() -> None:
    assert last_loss([(0, 5.4), (34, 2.7), (59, 2.2), (129, 1.75), (150, 1.85)]) == pytest.approx(1.8)
    assert last_loss([(0, 5.4)]) == 5.4
    assert last_loss([]) is None


def check_page(text: str, job: str) -> None:
    """It tells the story, draws it, and loads nothing."""
    assert job in text
    assert "<svg" in text
    assert "Incident 1" in text
    assert not re.search(r"""(?:src|href)=["'](?!#)|url\(|@import""", text)


def test_without_torch_the_demo_says_how_to_get_it(state: Path, tmp_path: Path) -> None:
    ran = holdfast("demo", cwd=tmp_path, code="sys.modules['torch'] = None; from holdfast.cli import main; main()")
    assert ran.returncode == 2
    assert "pip install 'holdfast[torch]'" in ran.stderr
    assert not list(state.iterdir())


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_started(state: Path, tmp_path: Path) -> None:
    ran = holdfast("demo", "--report", str(tmp_path / "nowhere" / "page.html"), cwd=tmp_path)
    assert ran.returncode == 2
    assert "--report" in ran.stderr
    assert not list(state.iterdir())


def test_the_ships_log_is_the_same_on_every_machine() -> None:
    assert hashlib.sha256(ships_log(10_000)).hexdigest() == "10ff9bcf480fa10ecbbb1cd3cc6cbbd4f4c748b1acb75a1f4f578c993b4af7bb"


@pytest.mark.parametrize("size_bytes", [1, 999, 100_000])
def test_the_ships_log_is_as_long_as_asked(size_bytes: int) -> None:
    assert len(ships_log(size_bytes)) == size_bytes
