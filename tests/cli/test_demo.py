"""The demo, its storm and its text: the quick demo is run for real, the storm's patience is tried on views made up here."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from holdfast.cli.demo import last_loss
from holdfast.cli.storm import CALM_STEPS, FAULTS, PATIENCE_S, Blow, Fault, Ground, Missed, Storm, Strike
from holdfast.demo.text import ships_log
from holdfast.domain.diagnosis import Cause
from holdfast.launch.layout import JobDirectory
from holdfast.wire.messages import IncidentView, NodeView, Reading, View

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
    assert said["steps"] == 150
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


class Sky:
    """A storm over a job that is not there: its faults are only counted."""

    def __init__(self, *strikes: tuple[str, int], process_ids: Sequence[int] = (1,)) -> None:
        self.said: list[str] = []
        self.blows = 0
        self._process_ids = list(process_ids)
        ground = Ground(directory=JobDirectory(Path("nowhere")), process_id=self.process_id, traps=Path("nowhere"), chance=Random(0))
        made = [Strike(fault=self.fault(name), step=step) for name, step in strikes]
        self.storm = Storm(ground=ground, strikes=made, say=self.said.append)

    def fault(self, name: str) -> Fault:
        real = FAULTS[name]
        return Fault(name=name, does=real.does, strike=self.strike, causes=real.causes, ridden_through=real.ridden_through)

    def strike(self, ground: Ground) -> Blow:
        self.blows += 1
        return Blow(said=f"blow {self.blows}", process="control", process_id=1)

    def process_id(self, name: str) -> int:
        return self._process_ids.pop(0) if len(self._process_ids) > 1 else self._process_ids[0]


def view(
    step: int, *, at: float | None = None, phase: str = "running", generation: int = 1, pids: Sequence[int] = (7, 8), incidents: Sequence[str] = ()
) -> View:
    return View(
        job="job", at=float(step if at is None else at), phase=phase, because="", generation=generation, world_size=2, step=step,
        nodes=(NodeView(name="node-0", state="ready", role="gang", connected=True), NodeView(name="node-1", state="ready", role="spare", connected=True)),
        ranks=tuple(Reading(rank=rank, generation=generation, pid=pid, step=step, step_started=step - 1) for rank, pid in enumerate(pids)),
        incidents=tuple(
            IncidentView(id=index + 1, at=0.0, phase=phase, cause="killed", because="", rung="respawn", seconds=1.0) for index, phase in enumerate(incidents)
        ),
    )  # fmt: skip


def test_a_storm_strikes_at_the_stated_step_and_not_before() -> None:
    sky = Sky(("worker_killed", 10))
    sky.storm.look(view(9))
    assert sky.blows == 0
    sky.storm.look(view(10))
    assert sky.blows == 1
    assert sky.said == ["storm: blow 1"]


def test_a_storm_waits_for_the_recovery_and_a_little_calm_before_it_strikes_again() -> None:
    sky = Sky(("worker_killed", 10), ("worker_stopped", 11))
    for seen in (view(10), view(11), view(10, generation=2, incidents=["acting"]), view(12, phase="stopping", incidents=["stopping"])):
        sky.storm.look(seen)
    assert sky.blows == 1
    sky.storm.look(view(12, generation=2, incidents=["resolved"]))
    sky.storm.look(view(12 + CALM_STEPS - 1, generation=2, incidents=["resolved"]))
    assert sky.blows == 1
    sky.storm.look(view(12 + CALM_STEPS, generation=2, incidents=["resolved"]))
    assert sky.blows == 2
    assert sky.storm.struck[0].incidents == (1,)


def test_a_fault_that_nobody_answers_is_said_not_to_be_survived() -> None:
    sky = Sky(("worker_killed", 10))
    sky.storm.look(view(10, at=0.0))
    sky.storm.look(view(11, at=PATIENCE_S - 1))
    assert len(sky.said) == 1
    sky.storm.look(view(12, at=PATIENCE_S))
    assert "not survived" in sky.said[-1]
    assert sky.storm.struck[0].answered_at is None


def test_a_killed_control_is_ridden_through_when_another_one_is_there_and_the_same_workers_go_on() -> None:
    sky = Sky(("control_killed", 10), process_ids=[1, 2])
    sky.storm.look(view(10))
    sky.storm.look(view(11))  # The process is still the old one.
    assert sky.storm.struck[0].answered_at is None
    sky.storm.look(view(12))
    assert sky.storm.struck[0].answered_at == 12.0
    assert sky.storm.struck[0].incidents == ()
    assert "no worker noticed" in sky.said[-1]


def test_workers_that_were_replaced_have_noticed() -> None:
    sky = Sky(("control_killed", 10), process_ids=[2])
    sky.storm.look(view(10))
    sky.storm.look(view(11, pids=(7, 9)))
    assert sky.storm.struck[0].answered_at is None


def test_a_fault_whose_victim_is_gone_already_is_tried_again() -> None:
    ground = Ground(directory=JobDirectory(Path("nowhere")), process_id=lambda name: 1, traps=Path("nowhere"), chance=Random(0), view=view(1, pids=()))
    for fault in (FAULTS["worker_killed"], FAULTS["worker_stopped"]):
        with pytest.raises(Missed):
            fault.strike(ground)


def test_every_fault_says_what_it_does_and_what_it_may_be_taken_for() -> None:
    assert all(fault.does and (fault.causes or fault.ridden_through) for fault in FAULTS.values())
    assert {cause for fault in FAULTS.values() for cause in fault.causes} <= set(Cause)
    assert all(name == fault.name for name, fault in FAULTS.items())
