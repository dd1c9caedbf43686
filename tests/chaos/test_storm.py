"""The storm: when it strikes, how long it waits, and what it takes for an answer, tried on views made up here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from holdfast.chaos.fault import Fault
from holdfast.chaos.faults import FAULTS
from holdfast.chaos.ground import Ground, Missed
from holdfast.chaos.storm import CALM_STEPS, PATIENCE_S, WARM_S, LiveScene, Storm, Strike
from holdfast.chaos.undo import Undoing
from holdfast.errors import HoldfastError
from holdfast.launch.layout import JobDirectory
from holdfast.wire.messages import IncidentView, NodeView, Reading, View


class Sky:
    """A storm over a job that is not there: its faults are only counted."""

    def __init__(self, *strikes: tuple[str, int], process_ids: Sequence[int] = (1,)) -> None:
        self.said: list[str] = []
        self.blows = self.healed = 0
        self._process_ids = list(process_ids)
        made = [Strike(fault=self.fault(key), rank=1, step=step) for key, step in strikes]
        self.storm = Storm(ground=Here(self), scene=LiveScene(directory=JobDirectory(Path("nowhere"))), strikes=made, say=self.said.append)  # type: ignore[arg-type]

    def fault(self, key: str) -> Fault:
        return replace(FAULTS[key], strike=self.refuse if key == "link_narrowed" else self.strike)

    def refuse(self, ground: Ground, rank: int) -> None:
        raise HoldfastError("`tc` was refused: unknown qdisc")

    def strike(self, ground: Ground, rank: int) -> None:
        self.blows += 1

    def process_id(self) -> int:
        return self._process_ids.pop(0) if len(self._process_ids) > 1 else self._process_ids[0]


class Here:
    """The ground below that sky."""

    def __init__(self, sky: Sky) -> None:
        self._sky = sky
        self.undoing = self

    def node(self, rank: int) -> str:
        return "node-0"

    def process(self, name: str) -> int:
        return self._sky.process_id()

    def heal(self) -> list[str]:
        self._sky.healed += 1
        return []


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


def standing(number: int, cause: str, *, phase: str = "noticed") -> IncidentView:
    return IncidentView(id=number, at=0.0, phase=phase, cause=cause, because="", rung="", seconds=1.0, stands=True)


def beside(seen: View, incidents: tuple[IncidentView, ...]) -> View:
    return msgspec.structs.replace(seen, incidents=incidents)


def test_a_storm_strikes_at_the_stated_step_and_not_before() -> None:
    sky = Sky(("worker_killed", 10))
    sky.storm.look(view(9))
    assert sky.blows == 0
    sky.storm.look(view(10))
    assert sky.blows == 1
    assert sky.said == ["storm: SIGKILL to rank 1"]


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


def test_what_the_machine_refuses_is_said_and_the_others_are_done_all_the_same() -> None:
    sky = Sky(("link_narrowed", 10), ("worker_killed", 10))
    sky.storm.look(view(10, at=0.0))
    sky.storm.look(view(10, at=WARM_S))
    assert (sky.blows, sky.healed) == (0, 1)
    sky.storm.look(view(11, at=2 * WARM_S))
    sky.storm.look(view(12, at=2 * WARM_S))
    assert sky.storm.refused == {"link_narrowed": "`tc` was refused: unknown qdisc"}
    assert "link_narrowed could not be done" in sky.said[0]
    assert [one.fault.key for one in sky.storm.struck] == ["worker_killed"]
    assert not sky.storm.over
    sky.storm.look(view(20, at=2 * WARM_S + 1, generation=2, incidents=["resolved"]))
    assert sky.storm.over


def test_a_fault_that_nobody_answers_is_said_not_to_be_survived() -> None:
    sky = Sky(("worker_killed", 10))
    sky.storm.look(view(10, at=0.0))
    patience_s = FAULTS["worker_killed"].within_s + PATIENCE_S
    sky.storm.look(view(11, at=patience_s - 1))
    assert len(sky.said) == 1
    sky.storm.look(view(12, at=patience_s))
    assert "not survived" in sky.said[-1]
    assert sky.storm.struck[0].answered_at is None


def test_whoever_is_struck_while_the_gang_is_given_other_nodes_is_gone_with_the_old_one() -> None:
    sky = Sky(("worker_stopped", 10))
    sky.storm.look(view(10))
    sky.storm.look(view(11, generation=2))  # The process that was struck is still there.
    assert sky.storm.struck[0].answered_at is None
    sky.storm.look(view(12, generation=2, pids=(7, 9)))
    assert (sky.storm.struck[0].answered_at, sky.storm.struck[0].moved) == (12.0, True)
    assert "other nodes" in sky.said[-1]


def test_a_killed_control_is_ridden_through_when_another_one_is_there_and_the_same_workers_go_on() -> None:
    sky = Sky(("control_killed", 10), process_ids=[1, 1, 2])
    sky.storm.look(view(10))
    sky.storm.look(view(11))  # The process is still the old one.
    assert sky.storm.struck[0].answered_at is None
    sky.storm.look(view(12))
    assert sky.storm.struck[0].answered_at == 12.0
    assert sky.storm.struck[0].incidents == ()
    assert "no worker noticed" in sky.said[-1]


def test_workers_that_were_replaced_have_noticed() -> None:
    sky = Sky(("control_killed", 10), process_ids=[1, 2])
    sky.storm.look(view(10))
    sky.storm.look(view(11, pids=(7, 9)))
    assert sky.storm.struck[0].answered_at is None


def test_a_fault_that_stands_beside_training_is_put_right_when_it_was_noticed_and_over_when_its_story_is() -> None:
    sky = Sky(("clock_shifted", 10))
    sky.storm.look(view(10))
    sky.storm.look(view(11))
    assert sky.healed == 0
    sky.storm.look(view(12, incidents=["noticed"]))
    assert sky.healed == 1
    sky.storm.look(view(13, incidents=["noticed"]))
    assert sky.storm.struck[0].answered_at is None
    sky.storm.look(view(14, incidents=["resolved"]))
    assert sky.storm.struck[0].answered_at == 14.0
    assert sky.storm.over


def test_another_story_that_begins_beside_it_neither_puts_a_fault_right_nor_keeps_it_open() -> None:
    sky = Sky(("clock_shifted", 10))
    restarted, suspect = standing(1, "RestartedOften"), standing(3, "suspect_node")
    sky.storm.look(view(10))
    sky.storm.look(beside(view(11), (restarted,)))
    assert sky.healed == 0
    sky.storm.look(beside(view(12), (restarted, standing(2, "clock_jump"))))
    assert sky.healed == 1
    sky.storm.look(beside(view(13), (restarted, standing(2, "clock_jump"), suspect)))
    assert sky.storm.struck[0].answered_at is None
    sky.storm.look(beside(view(14), (restarted, standing(2, "clock_jump", phase="resolved"), suspect)))
    assert sky.storm.struck[0].answered_at == 14.0


def test_what_was_found_under_another_name_is_put_right_when_its_own_would_have_come() -> None:
    sky = Sky(("clock_shifted", 10))
    within_s = FAULTS["clock_shifted"].within_s
    sky.storm.look(view(10, at=0.0))
    sky.storm.look(beside(view(11, at=within_s - 1), (standing(1, "slow_rank"),)))
    assert sky.healed == 0
    sky.storm.look(beside(view(12, at=within_s), (standing(1, "slow_rank"),)))
    assert sky.healed == 1
    sky.storm.look(beside(view(13, at=within_s + 9), (standing(1, "slow_rank", phase="resolved"),)))
    assert sky.storm.struck[0].answered_at == within_s + 9


def test_what_only_a_gang_sees_that_knows_what_is_usual_waits_until_it_does() -> None:
    sky = Sky(("rank_held_back", 10))
    sky.storm.look(view(10, at=0.0))
    sky.storm.look(view(11, at=WARM_S - 1))
    assert sky.blows == 0
    sky.storm.look(view(12, at=WARM_S))
    assert sky.blows == 1


def test_and_as_long_after_the_last_one_since_it_is_learned_anew() -> None:
    sky = Sky(("rank_held_back", 10), ("rank_held_back", 11))
    sky.storm.look(view(10, at=0.0))
    sky.storm.look(view(12, at=WARM_S))
    over = WARM_S + 30.0
    sky.storm.look(view(20, at=over, incidents=["resolved"]))
    sky.storm.look(view(90, at=over + WARM_S - 1, incidents=["resolved"]))
    assert sky.blows == 1
    sky.storm.look(view(91, at=over + WARM_S, incidents=["resolved"]))
    assert sky.blows == 2


def test_a_fault_whose_victim_is_gone_already_is_tried_again(tmp_path: Path) -> None:
    scene = LiveScene(directory=JobDirectory(tmp_path), view=view(1, pids=()))
    ground = Ground(scene=scene, orders=tmp_path, undoing=Undoing(tmp_path / "undo"))
    for key in ("worker_killed", "worker_stopped", "agent_killed", "control_killed"):
        with pytest.raises(Missed):
            FAULTS[key].strike(ground, 0)
