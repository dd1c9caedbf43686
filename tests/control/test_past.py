"""The past: written by many at once, bounded, never in a job's way, and moved aside when it is damaged."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from end_to_end.jobs import environment

from holdfast.control import past as past_module
from holdfast.control.past import AGE_S, SCHEMA, Past, PastUnusable
from holdfast.control.remembering import Remembering
from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.finding import Finding
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import JobSpec
from holdfast.domain.past import Correction, PastIncident, PastRun, PastService
from holdfast.domain.plan import Plan, Remedy, Rung
from holdfast.domain.state import Node, State
from holdfast.learn.remembering import past_of
from holdfast.wire.messages import Reading

NOW = 1_800_000_000.0


def incident(number: int = 1, job: str = "job", **more: object) -> PastIncident:
    return PastIncident(job=job, number=number, opened_at=NOW + number, cause="hang", node="n1", fingerprint="f", **more)  # type: ignore[arg-type]


def test_what_was_kept_is_found_by_what_it_is(tmp_path: Path) -> None:
    with Past(tmp_path / "history.db") as past:
        past.keep(incidents=[incident(), incident(2, "other")], service=[PastService(node="n1", run="r", day=3, seconds=9.0)])
        past.keep(runs=[PastRun(job="job", run="r", command="train.py", started_at=NOW)])
        assert past.incidents() == [incident(), incident(2, "other")]
        assert past.incidents(job="other") == [incident(2, "other")]
        assert past.incidents(since=NOW + 2) == [incident(2, "other")]
        assert past.incidents(node="n2") == []
        assert past.incident("job", 1) == incident()
        assert past.incident("job", 7) is None
        assert past.service() == [PastService(node="n1", run="r", day=3, seconds=9.0)]
        assert [run.command for run in past.runs(job="job")] == ["train.py"]
    assert (tmp_path / "history.db").stat().st_mode & 0o077 == 0, "it may quote logs, so it is for its owner alone"


def test_what_is_told_twice_is_one_row_and_the_newer_counts(tmp_path: Path) -> None:
    with Past(tmp_path / "history.db") as past:
        past.keep(incidents=[incident()])
        past.keep(incidents=[incident(outcome="resolved")])
        assert [one.outcome for one in past.incidents()] == ["resolved"]


def test_many_processes_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom holdfast.control.past import Past\nfrom holdfast.domain.past import PastIncident\n"
        "past = Past(pathlib.Path(sys.argv[1]))\n"
        "for number in range(20): past.keep(incidents=[PastIncident(job=sys.argv[2], number=number, opened_at=float(number))])\n"
    )
    asked = [[sys.executable, "-c", code, str(tmp_path / "history.db"), f"job-{job}"] for job in range(4)]
    writers = [subprocess.Popen(words, env=environment()) for words in asked]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    with Past(tmp_path / "history.db", read_only=True) as past:
        assert len(past.incidents()) == 80


def test_the_oldest_go_first_when_there_are_too_many_or_they_are_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_module, "ROWS", {"incidents": 3, "service": 3, "runs": 3})
    with Past(tmp_path / "history.db") as past:
        past.keep(incidents=[incident(number) for number in range(1, 9)])
        past.prune(NOW + 10)
        assert [one.number for one in past.incidents()] == [6, 7, 8]
        past.prune(NOW + 8 + AGE_S)
        assert [one.number for one in past.incidents()] == [8]


def test_a_damaged_file_is_moved_aside_with_a_sentence_and_a_new_one_is_begun(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"this was never a database" * 100)
    with Past(path) as past:
        with pytest.raises(PastUnusable, match=r"is damaged .* moved to history\.db\.damaged-\d+, and a new one is begun"):
            past.keep(incidents=[incident()])
        past.keep(incidents=[incident()])
        assert len(past.incidents()) == 1
    assert len(list(tmp_path.glob("history.db.damaged-*"))) == 1


def test_a_file_that_somebody_holds_is_said_to_be_locked_and_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_module, "BUSY_S", 0.05)
    path = tmp_path / "history.db"
    with Past(path) as past:
        past.keep(incidents=[incident()])
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with Past(path) as other, pytest.raises(PastUnusable, match="locked"):
            other.keep(incidents=[incident(2)])
        holder.execute("ROLLBACK")
        holder.close()
        past.keep(incidents=[incident(2)])
        assert len(past.incidents()) == 2
    assert not list(tmp_path.glob("*.damaged-*"))


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    database.close()
    with Past(path) as past, pytest.raises(PastUnusable, match="newer Holdfast"):
        past.keep(incidents=[incident()])
    assert path.exists()


def test_who_only_reads_makes_no_file(tmp_path: Path) -> None:
    with Past(tmp_path / "history.db", read_only=True) as past:
        assert past.incidents() == []
        assert past.corrections() == []
    assert not (tmp_path / "history.db").exists()


def test_corrections_are_numbered_and_can_be_revoked(tmp_path: Path) -> None:
    with Past(tmp_path / "history.db") as past:
        first, second = (past.correct(Correction(fingerprint="f", cause=cause, at=NOW)) for cause in ("hang", "disk_full"))
        assert (first.number, second.number) == (1, 2)
        past.revoke(second, NOW + 1)
        assert [one.revoked_at for one in past.corrections()] == [None, NOW + 1]


# How a job gets into it.


_RESPAWN = Plan(rung=Rung.RESPAWN, because="it may pass")


def broken(phase: IncidentPhase = IncidentPhase.RESOLVED, plan: Plan = _RESPAWN) -> Incident:
    story = Incident(id=1, generation=1, opened_at=NOW, began_at=NOW - 1, findings=(Finding(kind="worker_exited", because="it broke", node="n1", ranks=(3,)),))
    story = story.move(IncidentPhase.STOPPING, at=NOW + 1, because="").move(IncidentPhase.ACTING, at=NOW + 2, because=f"{plan.name}: {plan.because}")
    diagnosis = Diagnosis(cause=Cause.CRASH, permanent=False, confidence=0.8, because="SIGSEGV", ranks=(3,), fingerprint="crash:11")
    story = story.move(phase, at=NOW + 12, because="every rank has finished step 5")
    outcome = "worked" if phase is IncidentPhase.RESOLVED else ""
    return replace(story, diagnoses=(diagnosis,), plans=(plan,), outcome=outcome)


def job_state() -> State:
    state = State(spec=JobSpec(job="job", run="r1", argv=("train.py",)), nodes={"n1": Node(host="h")})
    state.incidents.append(broken())
    return state


def test_an_incident_its_outcome_and_the_time_in_service_are_written(tmp_path: Path) -> None:
    said: list[str] = []
    remembering, state = Remembering(tmp_path / "history.db", "job", said.append, list), job_state()
    ranks = {0: Reading(rank=0, generation=1, pid=1, phase="eval", phase_s=4.0, memory_bytes=500)}
    for second in range(4):
        remembering.look(state, ranks, {"n1"}, NOW + second)
    remembering.look(state, {0: Reading(rank=0, generation=1, pid=1, phase="step", phase_s=0.1, memory_bytes=400)}, {"n1"}, NOW + 4)
    remembering.finish(state, NOW + 5, within_s=10.0)
    with Past(tmp_path / "history.db", read_only=True) as past:
        kept = past.incidents()[0]
        assert (kept.id, kept.cause, kept.node, kept.outcome) == ("job/1", "crash", "n1", "resolved")
        assert [(one.rung, one.worked, one.cost_s) for one in kept.remedies] == [("respawn", True, 10.0)]
        assert sum(one.seconds for one in past.service()) == pytest.approx(4.0)
        run = past.runs()[0]
        assert (run.peak_bytes, run.phases, run.command) == (500, (("eval", (4.0,)),), "train.py")
    assert not said


def test_of_a_job_that_was_struck_on_purpose_the_story_is_kept_and_nothing_that_is_learned_from(tmp_path: Path) -> None:
    struck = JobSpec(job="job", run="r2", argv=("train.py",), chaos=True)
    state = job_state()
    assert state.spec is not None
    runs = [(NOW - 9, state.spec), (NOW + 20, struck), (NOW + 40, state.spec)]
    state.incidents = [replace(broken(), id=number, opened_at=NOW + at) for number, at in ((1, 0), (2, 21), (3, 41))]
    state.spec = struck
    remembering = Remembering(tmp_path / "history.db", "job", print, lambda: runs)
    remembering.look(state, {0: Reading(rank=0, generation=1, pid=1, memory_bytes=500)}, {"n1"}, NOW + 50)
    remembering.finish(state, NOW + 60, within_s=10.0)
    with Past(tmp_path / "history.db", read_only=True) as past:
        assert [(one.number, one.chaos) for one in past.incidents()] == [(1, False), (2, True), (3, False)]
        assert past.service() == []
        assert past.runs() == []


def test_a_damaged_history_is_said_and_what_happened_is_in_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_bytes(b"no database" * 1000)
    said: list[str] = []
    remembering, state = Remembering(tmp_path / "history.db", "job", said.append, list), job_state()
    remembering.look(state, {}, {"n1"}, NOW)
    remembering.finish(state, NOW + 1, within_s=10.0)
    remembering.look(state, {}, {"n1"}, NOW + 2)
    assert len(said) == 1
    assert "moved to history.db.damaged-" in said[0]
    with Past(tmp_path / "history.db", read_only=True) as past:
        assert [one.id for one in past.incidents()] == ["job/1"]


def test_a_remedy_that_met_the_next_fault_did_not_work() -> None:
    gave_up = past_of("job", broken(IncidentPhase.GAVE_UP))
    assert (gave_up.outcome, [one.worked for one in gave_up.remedies]) == ("gave_up", [False])


def test_what_was_only_advised_before_the_break_is_no_remedy_that_failed() -> None:
    advised = replace(broken(), plans=(Plan(rung=Rung.REPLACE, because="it is slow"), *broken().plans))
    assert [(one.rung, one.worked, one.cost_s) for one in past_of("job", advised).remedies] == [("respawn", True, 10.0)]


def test_a_remedy_of_which_nobody_knows_yet_whether_it_helped_is_not_counted() -> None:
    assert past_of("job", replace(broken(), outcome="")).remedies == ()


def test_remedies_for_training_gone_wrong_are_told_apart() -> None:
    skipped = broken(plan=Plan(rung=Rung.ROLL_BACK, remedy=Remedy.SKIP, because="data is left out"))
    assert [(one.rung, one.worked) for one in past_of("job", skipped).remedies] == [("skip", True)]


def test_a_history_that_cannot_be_written_is_said_once_and_the_job_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("")
    said: list[str] = []
    remembering, state = Remembering(tmp_path / "in-the-way" / "history.db", "job", said.append, list), job_state()
    deadline = time.monotonic() + 30.0
    now = NOW
    while not said and time.monotonic() < deadline:
        now += 10.0
        state.incidents[0] = broken()
        remembering.look(state, {}, {"n1"}, now)
        time.sleep(0.01)
    for _ in range(5):
        now += 10.0
        state.incidents[0] = broken()
        remembering.look(state, {}, {"n1"}, now)
    remembering.finish(state, now, within_s=5.0)
    assert len(said) == 1
    assert "The job does not need it" in said[0]
