"""Smaller meanwhile: what the rule says a lost node costs is what it costs the real core in a made-up world, and waiting costs what it says of waiting."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from holdfast.domain.job import Outcome
from holdfast.domain.plan import Rung
from holdfast.domain.state import State
from holdfast.recover.candidates import Fleet
from holdfast.recover.costs import costs_of
from holdfast.recover.shrink import shrinking_costs_s, waiting_costs_s
from holdfast.simulate.control import MemoryJournal
from holdfast.simulate.world import _live, _make

LOST_AT_S, AWAY_S, STEP_S, STEPS, SAVE_EVERY = 300.0, 400.0, 1.0, 1500, 5
QUIET = next(
    seed for seed in range(1000)
    if (world := _make(seed, MemoryJournal(), 0.0, 1.0, None)).training.guarded and (world.spec.nodes, world.spec.spares) == (4, 0)
)  # fmt: skip


@dataclass(frozen=True)
class Told:
    took_s: float
    state: State


def _told(*, min_nodes: int, loses: bool) -> Told:
    """A world of four nodes in which nothing goes wrong but that one is lost, and comes back."""
    world = _make(QUIET, MemoryJournal(), 0.0, 1.0, None)
    world.spec = replace(world.spec, min_nodes=min_nodes, policy=replace(world.spec.policy, node_wait_s=600.0, resize_every_s=0.0))
    world.training.step_s, world.training.steps_total, world.training.save_every = STEP_S, STEPS, SAVE_EVERY
    began, node = world.clock.now, world.nodes["n1"]
    if loses:
        world.clock.after(LOST_AT_S, node.lose)
        world.clock.after(LOST_AT_S + AWAY_S, node.come_back)
    _live(world)
    assert world.control.core.state.outcome is Outcome.FINISHED
    return Told(world.clock.now - began, world.control.core.state)


@pytest.mark.parametrize(("min_nodes", "rung"), [(2, Rung.SHRINK), (0, Rung.REPLACE)])
def test_what_a_lost_node_costs_is_what_the_rule_says(min_nodes: int, rung: Rung) -> None:
    calm, struck = _told(min_nodes=min_nodes, loses=False), _told(min_nodes=min_nodes, loses=True)
    (incident,) = struck.state.incidents
    assert incident.plans[0].rung is rung
    # As it is known afterwards: the bill of the incident, the wait left out.
    fleet = Fleet(gang=("n0", "n1", "n2", "n3"), spares=(), lost=("n1",), costs=costs_of(struck.state.incidents))
    wait_s = AWAY_S - incident.costs["detect"]
    says_s = shrinking_costs_s(wait_s, fleet.smaller) if rung is Rung.SHRINK else waiting_costs_s(wait_s, fleet.smaller)
    # Beside it: until it is noticed, a save that is waited for before it grows, and the world's own latencies.
    assert struck.took_s - calm.took_s == pytest.approx(says_s + incident.costs["detect"], abs=10.0 + SAVE_EVERY * STEP_S)
    assert [(len(change.before), len(change.after)) for change in struck.state.changes] == ([(4, 3), (3, 4)] if rung is Rung.SHRINK else [])
