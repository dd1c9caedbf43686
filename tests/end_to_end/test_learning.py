"""What happens in one job is known to the next: real jobs, one history."""

from __future__ import annotations

import time
from pathlib import Path

from end_to_end.jobs import Job, command, eventually

from holdfast.cli.job import state_of
from holdfast.cli.lessons import before, correct
from holdfast.control.past import Past
from holdfast.domain.job import Outcome
from holdfast.domain.past import PastIncident, PastRemedy
from holdfast.domain.plan import Rung
from holdfast.domain.state import NodeState, State
from holdfast.launch.layout import JobDirectory

SCRIPT = """
import pathlib, sys
flag = pathlib.Path(sys.argv[1])
if not flag.exists():
    flag.write_text("")
    raise RuntimeError("the scratch disk is gone")
"""


def run(state: Path, job: str, *options: object) -> State:
    (state / "train.py").write_text(SCRIPT)
    command("run", "--name", job, *options, state / "train.py", state / f"flag-{job}")
    return state_of(JobDirectory(state / "jobs" / job))


def test_an_incident_is_remembered_told_of_in_the_next_job_and_a_correction_decides_there(state: Path) -> None:
    first = run(state, "first", "--shape", "batch=8")
    assert first.outcome is Outcome.FINISHED
    assert first.spec is not None
    assert first.spec.learned is None, "nothing was known yet"
    with Past(state / "history.db", read_only=True) as past:
        kept, ran = past.incidents(), past.runs()
        assert [(one.id, one.cause, one.outcome) for one in kept] == [("first/1", "exception", "resolved")]
        assert [one.rung for one in kept[0].remedies] == ["respawn"]
        assert ran[-1].shape == (("batch", "8"),)

    correct(state, "first/1", "disk_full", "the quota")
    second = run(state, "second")
    assert second.outcome is Outcome.PERMANENT
    assert second.incidents[0].diagnoses[0].corrected == "disk_full"
    assert second.spec is not None
    assert second.spec.learned is not None
    assert second.incidents[0].plans[0].learned == second.spec.learned.version, "every decision says which tables it was made with"
    seen = before(state, "second", second.incidents[0])
    assert seen is not None
    assert seen.says.startswith("this is the second time")
    assert seen.says.endswith("in 2 jobs; a respawn helped then")


BOUND = """
import os, pathlib, sys, time
first, here, go = map(pathlib.Path, sys.argv[1:])
here.touch()
while not go.exists():
    time.sleep(0.01)
node = os.environ["HOLDFAST_SCRATCH"].split("/")[-2]
if os.environ["RANK"] == "1":
    if not first.exists():
        first.write_text(node)
    if first.read_text() == node:
        raise RuntimeError("uncorrectable ECC error encountered")
"""


def test_what_a_respawn_did_not_cure_in_earlier_jobs_is_moved_to_a_spare_in_the_next(state: Path) -> None:
    (state / "bound.py").write_text(BOUND)
    failed = PastRemedy(rung="respawn", worked=False, cost_s=90.0)
    earlier = [PastIncident(job="earlier", number=number, opened_at=time.time(), cause="exception", remedies=(failed,)) for number in (1, 2)]
    with Past(state / "history.db") as past:
        past.keep(incidents=earlier)
    with Job(state, options=["--nnodes", 2, "--spares", 1], script=state / "bound.py", arguments=[state / "first-node", state / "here", state / "go"]) as job:
        eventually((state / "here").exists, what="a rank")
        eventually(lambda: [node.state for node in job.state().nodes.values()] == [NodeState.READY] * 3, what="two nodes and a spare")
        (state / "go").write_text("")
        ended = job.finished(60.0)
    plan = ended.incidents[0].plans[0]
    assert plan.rung is Rung.REPLACE
    assert plan.drop == ((state / "first-node").read_text(),)
    assert "respawn helped 0.0 of 2.0 times" in plan.because
