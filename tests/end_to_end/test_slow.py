"""A rank that is far slower than the others, with real processes: it is named, its node is left for the spare, and the others keep their processes."""

from __future__ import annotations

from pathlib import Path

from end_to_end.jobs import Job, eventually
from end_to_end.test_rejoin import job_of, used

from holdfast.domain.plan import Rung


def _processes(job: Job, rank: int) -> set[str]:
    return {row[2] for row in used(job.kept, rank)}


def test_a_rank_ten_times_slower_is_named_and_replaced_and_the_others_go_on_where_they_are(state: Path) -> None:
    options: list[object] = ["--nodes", 2, "--spares", 1, "--slow-wait-s", 5, "--stop-grace-s", 5]
    with job_of(state, "slow", options=options) as job:
        eventually(lambda: len(used(job.kept, 1)) > 100, within_s=120.0, what="steps")
        gang = job.state().gang
        assert gang is not None
        (job.kept / f"slow-{gang.nodes[1].rpartition('node-')[2]}").touch()
        change = eventually(lambda: job.state().changes, within_s=120.0, what="another node in the place of the slow one")[0]
        assert (change.before, change.by_choice) == (gang.nodes, True)
        assert change.after[0] == gang.nodes[0]
        assert change.after[1] not in gang.nodes
        (incident,) = job.state().incidents
        assert incident.stands
        assert incident.findings[0].ranks == (1,)
        assert incident.findings[0].share > 0.5
        (plan,) = incident.plans
        assert (plan.rung, plan.drop, plan.take) == (Rung.REPLACE, (gang.nodes[1],), (change.after[1],))
        assert "holds the gang back" in plan.because
        eventually(lambda: int(used(job.kept, 1)[-1][1]) > gang.generation, within_s=60.0, what="the next generation")
        new = len(used(job.kept, 1))
        eventually(lambda: len(used(job.kept, 1)) > new + 100, within_s=60.0, what="steps at the old speed")
        assert len(_processes(job, 0)) == 1, "who stays keeps its process"
        assert len(_processes(job, 1)) == 2
    steps = [int(row[0]) for row in used(job.kept, 0)]
    assert steps == list(range(1, len(steps) + 1)), "no step is lost or done twice"
