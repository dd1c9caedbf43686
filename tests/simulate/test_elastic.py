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
    kept_of: dict[int, int]  # Generation to the one whose survivors it began with.


def _told(*, min_nodes: int, loses: bool, rejoins: bool = False) -> Told:
    """A world of four nodes in which nothing goes wrong but that one is lost, and comes back."""
    world = _make(QUIET, MemoryJournal(), 0.0, 1.0, None)
    world.training.rejoins = rejoins
    world.spec = replace(world.spec, min_nodes=min_nodes, policy=replace(world.spec.policy, node_wait_s=600.0, resize_every_s=0.0))
    world.training.step_s, world.training.steps_total, world.training.save_every = STEP_S, STEPS, SAVE_EVERY
    began, node = world.clock.now, world.nodes["n1"]
    if loses:
        world.clock.after(LOST_AT_S, node.lose)
        world.clock.after(LOST_AT_S + AWAY_S, node.come_back)
    _live(world)
    assert world.control.core.state.outcome is Outcome.FINISHED
    return Told(world.clock.now - began, world.control.core.state, {one.generation: one.kept_of for one in world.training.attempts.values()})


@pytest.mark.parametrize(("min_nodes", "rung", "rejoins"), [(2, Rung.SHRINK, False), (2, Rung.SHRINK, True), (0, Rung.REPLACE, False)])
def test_what_a_lost_node_costs_is_what_the_rule_says(min_nodes: int, rung: Rung, rejoins: bool) -> None:
    calm, struck = (_told(min_nodes=min_nodes, loses=loses, rejoins=rejoins) for loses in (False, True))
    (incident,) = struck.state.incidents
    assert incident.plans[0].rung is rung
    # As it is known afterwards: the bill of the incident, the wait left out.
    fleet = Fleet(gang=("n0", "n1", "n2", "n3"), spares=(), lost=("n1",), costs=costs_of(struck.state.incidents), can_rejoin="" if rejoins else "no")
    noticed_s = incident.costs.get("detect", 0.0)
    wait_s = AWAY_S - noticed_s
    says_s = shrinking_costs_s(wait_s, fleet.smaller) if rung is Rung.SHRINK else waiting_costs_s(wait_s, fleet.smaller)
    # Beside it: until it is noticed, a save that is waited for before it grows, and the world's own latencies.
    assert struck.took_s - calm.took_s == pytest.approx(says_s + noticed_s, abs=10.0 + SAVE_EVERY * STEP_S)
    assert [(len(change.before), len(change.after)) for change in struck.state.changes] == ([(4, 3), (3, 4)] if rung is Rung.SHRINK else [])
    assert struck.kept_of == ({1: 0, 2: 1, 3: 2} if rejoins else dict.fromkeys(struck.kept_of, 0)), "survivors go on in both gangs, where they can"
    if rung is Rung.SHRINK:  # What a quarter of the gang would have done meanwhile.
        assert incident.costs["smaller"] == pytest.approx(0.25 * (wait_s - fleet.smaller.shrink_s), abs=10.0 + SAVE_EVERY * STEP_S)
