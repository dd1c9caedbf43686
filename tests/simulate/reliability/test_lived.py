"""The formulas and the played fleet take for granted what is done about a failure. The real core is asked whether it does that."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from holdfast.domain.goodput import Bucket
from holdfast.domain.job import JobSpec, Policy
from holdfast.domain.mesh import parsed
from holdfast.domain.plan import Rung
from holdfast.domain.state import State
from holdfast.simulate.reliability.goodput import Fault, Running, parts
from holdfast.simulate.reliability.lived import Pace, live

REPLICAS, STEP_S, INTERVAL_S = 16, 6.0, 60.0
PACE = Pace(parted_s=2.0, stopped_s=1.0, started_s=1.0, built_s=30.0, fetched_s=5.0, restored_s=2.0, first_step_s=12.0, replaced_s=70.0, step_s=STEP_S)
POLICY = Policy(node_wait_s=600.0, unguarded_after_s=600.0)  # As a person who runs a job with such group builds sets them.
AGAIN_S = PACE.started_s + PACE.built_s + PACE.first_step_s
EXIT = Fault(name="exit", share=0.2, detect_s=0.1, stop_s=PACE.parted_s, rendezvous_s=AGAIN_S, restore_s=PACE.fetched_s, live_s=STEP_S)
NODE = Fault(
    name="node", share=0.8, detect_s=4.0, stop_s=PACE.parted_s, rendezvous_s=AGAIN_S, live_s=STEP_S, smaller_s=POLICY.resize_every_s + INTERVAL_S / 2,
    kept=1 - 1 / REPLICAS, grow_s=PACE.parted_s + AGAIN_S + PACE.fetched_s, needs_node=True,
)  # fmt: skip
RUNNING = Running(per_s=1 / 10_000.0, interval_s=INTERVAL_S, stall_s=0.0, faults=(EXIT, NODE))


def lived(*, least: int, nodes: int = 1) -> State:
    """`least` replicas, each of so many nodes."""
    mesh = parsed(f"dp={REPLICAS},pp={nodes}") if nodes > 1 else None
    spec = JobSpec(job="life", argv=("train.py",), nodes=REPLICAS * nodes, min_nodes=least * nodes, mesh=mesh, policy=POLICY)
    return live(RUNNING, PACE, spec, 200 / RUNNING.per_s, seed=1)


@pytest.mark.parametrize("nodes", [1, 2], ids=["a node each", "two nodes each"])
def test_a_job_that_may_be_smaller_loses_what_the_formula_says(nodes: int) -> None:
    state = lived(least=REPLICAS // 2, nodes=nodes)
    assert all(len(change.after) % nodes == 0 for change in state.changes)
    count, said, totals = len(state.incidents), parts(RUNNING), state.ledger.totals()
    assert 150 < count < 250
    rungs = Counter(one.plans[0].rung for one in state.incidents)
    assert rungs[Rung.SHRINK] > 0.7 * count
    assert rungs[Rung.SHRINK] + rungs[Rung.REJOIN] > 0.95 * count, "but for what strikes while survivors recover"
    # For each failure, since there are more or fewer by chance.
    for bucket, part in ((Bucket.RENDEZVOUS, 0.1), (Bucket.SMALLER, 0.15), (Bucket.DETECT, 0.1)):
        assert totals[bucket] / count == pytest.approx(said[bucket] / RUNNING.per_s, rel=part), bucket
    # Half a step a failure, and another when it grows, are beyond what the ledger sees.
    lost_s = (1 - state.ledger.goodput) * state.ledger.wall_s / count
    assert lost_s == pytest.approx((1 - said[Bucket.PRODUCTIVE]) / RUNNING.per_s, abs=8.0)


def test_a_job_of_one_size_waits_for_the_node_and_goes_back_to_a_save() -> None:
    state = lived(least=0)
    waits = replace(NODE, stop_s=PACE.parted_s + PACE.stopped_s, replace_s=PACE.replaced_s, live_s=None, smaller_s=0.0, kept=1.0, grow_s=0.0)
    said = parts(replace(RUNNING, faults=(EXIT, waits)))
    lost_s = (1 - state.ledger.goodput) * state.ledger.wall_s / len(state.incidents)
    assert lost_s == pytest.approx((1 - said[Bucket.PRODUCTIVE]) / RUNNING.per_s, rel=0.15)
    assert Bucket.SMALLER not in state.ledger.totals()
