"""What a storm is made of: a plan that is a function of the seed, faults that say what they need, and a scorecard whose parts add up."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.chaos.fault import Need
from holdfast.chaos.faults import FAULTS
from holdfast.chaos.inside import carried
from holdfast.chaos.listen import ANYBODYS, Listener, OrderedFault
from holdfast.chaos.needs import Here, replaceable, why_not
from holdfast.chaos.plan import planned, suite
from holdfast.chaos.scorecard import WEIGHTS, Tried, scorecard
from holdfast.chaos.storm import CALM_STEPS
from holdfast.cli.chaos import Asked, _chosen
from holdfast.domain.job import JobSpec
from holdfast.domain.mesh import parsed
from holdfast.errors import UserError

NOTHING = Here(has=frozenset(), carried=frozenset(), programs=frozenset())
EVERYTHING = Here(has=frozenset(Need), carried=frozenset(fault.order for fault in FAULTS.values()), programs=frozenset(("gcc", "tc")))


def asked(faults: str = "") -> Asked:
    return Asked(faults=faults, count=1, per_1000_steps=1.0, seed=0, minutes=1.0, suite=False, list_only=False, page=None)


@pytest.mark.parametrize(("mesh", "least", "spares", "may_be_lost"), [
    ("", 0, 0, 0), ("", 0, 2, 2), ("", 3, 0, 3), ("", 3, 1, 4), ("dp=3,pp=2", 3, 0, 2), ("dp=3,pp=2", 2, 1, 5), ("dp=2,pp=3", 4, 0, 0),
])  # fmt: skip
def test_as_many_nodes_may_be_lost_as_spares_and_whole_replicas_make_up_for(mesh: str, least: int, spares: int, may_be_lost: int) -> None:
    spec = JobSpec(job="train", argv=("train.py",), nodes=6, min_nodes=least, spares=spares, mesh=parsed(mesh) if mesh else None)
    assert replaceable(spec) == may_be_lost


@given(seed=st.integers(0, 1000), count=st.integers(1, 50), rate=st.floats(1.0, 500.0), world=st.integers(1, 64), step=st.integers(0, 10_000))
def test_the_same_seed_gives_the_same_kinds_ranks_and_steps(seed: int, count: int, rate: float, world: int, step: int) -> None:
    faults = list(FAULTS.values())
    plan = planned(faults, count=count, per_1000_steps=rate, world_size=world, seed=seed, from_step=step, spares=2)
    again = planned(faults[::-1], count=count, per_1000_steps=rate, world_size=world, seed=seed, from_step=step, spares=2)
    assert plan == again
    assert len(plan) == count
    assert all(0 <= strike.rank < world for strike in plan)
    assert sum(strike.fault.key == "node_lost" for strike in plan) <= 2
    assert all(later.step - earlier.step >= CALM_STEPS for earlier, later in pairwise(plan))


def test_another_seed_gives_another_storm() -> None:
    plans = {planned(list(FAULTS.values()), count=10, per_1000_steps=10.0, world_size=4, seed=seed, from_step=0) for seed in range(20)}
    assert len(plans) == 20


def test_a_suite_has_every_fault_once_and_what_breaks_a_gang_that_has_learned_comes_last() -> None:
    strikes = suite(list(FAULTS.values()), world_size=4, seed=0, from_step=7)
    assert sorted(strike.fault.key for strike in strikes) == sorted(FAULTS)
    learned = [strike.fault.learned for strike in strikes]
    assert learned == sorted(learned)
    assert not strikes[-1].fault.stands


def test_every_fault_says_what_it_does_and_what_it_may_be_called() -> None:
    for key, fault in FAULTS.items():
        assert key == fault.key
        assert fault.says.format(rank=1, node="node-0")
        assert fault.kinds or fault.ridden_through
        assert fault.culprit in ("rank", "node", "")
    assert len({fault.name for fault in FAULTS.values()}) == len(FAULTS)


def test_every_fault_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text()
    assert not [key for key in FAULTS if f"`{key}`" not in guide]


def test_what_is_not_possible_has_a_reason_and_what_is_has_none() -> None:
    assert why_not(FAULTS["worker_killed"], NOTHING) == ""
    assert "--spares" in why_not(FAULTS["node_lost"], NOTHING)
    assert "--own-network" in why_not(FAULTS["packets_lost"], Here(has=frozenset({Need.ROOT}), carried=frozenset(), programs=frozenset()))
    assert "two lines" in why_not(FAULTS["exception"], NOTHING)
    assert "does not carry 'deadlock'" in why_not(FAULTS["deadlock"], Here(has=frozenset(), carried=frozenset(ANYBODYS), programs=frozenset()))
    assert not [key for key, fault in FAULTS.items() if why_not(fault, EVERYTHING)]


def test_a_fault_that_is_asked_for_and_not_possible_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match="disk_full is not possible here: the checkpoints lie on the machine's own disk"):
        _chosen(asked("worker_killed,disk-full"), NOTHING)
    with pytest.raises(UserError, match="there is no fault 'meteor'"):
        _chosen(asked("meteor"), NOTHING)
    assert "worker_killed" in [fault.key for fault in _chosen(asked(), NOTHING)]


def test_the_parts_of_a_scorecard_are_from_0_to_1_and_the_score_is_their_weighted_sum() -> None:
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)
    tried = [Tried(fault="a", found=True, recovered=True, lost_s=6.0), Tried(fault="b", found=False, recovered=False, lost_s=None)]
    card = scorecard(tried, kinds=4, goodput=0.8)
    assert card.parts == pytest.approx({"coverage": 0.5, "detection": 0.5, "recovery": 0.5, "loss": 0.45, "goodput": 0.8})
    assert card.score == pytest.approx(sum(WEIGHTS[name] * part for name, part in card.parts.items()))
    assert scorecard([], kinds=4, goodput=1.0).score == pytest.approx(WEIGHTS["goodput"])


# The script's side.


def give(directory: Path, text: str) -> None:
    (directory / "do-0").write_text(text)


def test_a_script_does_what_is_ordered_once_and_nothing_that_was_meant_for_an_earlier_life(tmp_path: Path) -> None:
    give(tmp_path, '{"id": "old", "how": "exception"}')
    orders = Listener(tmp_path, rank=0)
    orders.listen(0)
    give(tmp_path, '{"id": "new", "how": "exception", "from_step": 5}')
    orders.listen(4)
    with pytest.raises(OrderedFault):
        orders.listen(5)


def test_what_was_meant_for_the_next_start_happens_at_it_and_once(tmp_path: Path) -> None:
    orders = Listener(tmp_path, rank=0)
    give(tmp_path, '{"id": "x", "how": "exit_at_start", "at_start": true}')
    orders.listen(1)
    with pytest.raises(SystemExit):
        Listener(tmp_path, rank=0)
    Listener(tmp_path, rank=0).listen(1)


def test_what_is_ordered_for_a_time_is_over_after_it(tmp_path: Path) -> None:
    orders = Listener(tmp_path, rank=0, carries=("odd",))
    give(tmp_path, '{"id": "x", "how": "odd", "for_s": -1}')
    orders.listen(1)
    assert not orders.active


def test_what_is_taken_back_is_over_too(tmp_path: Path) -> None:
    orders = Listener(tmp_path, rank=0, carries=("odd",))
    give(tmp_path, '{"id": "x", "how": "odd"}')
    orders.listen(1)
    assert "odd" in orders.active
    (tmp_path / "do-0").unlink()
    orders.listen(2)
    assert not orders.active


def test_a_script_says_what_it_carries_and_only_what_all_ranks_carry_is_possible(tmp_path: Path) -> None:
    assert carried(tmp_path) == frozenset()
    Listener(tmp_path, rank=0, carries=("odd",))
    Listener(tmp_path, rank=1)
    assert carried(tmp_path) == frozenset(ANYBODYS)


def test_without_a_directory_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_CHAOS", raising=False)
    Listener(rank=0).listen(3)
