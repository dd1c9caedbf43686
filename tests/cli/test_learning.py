"""`holdfast incidents` over all jobs, `holdfast correct` and `holdfast learn`, as a person at a shell meets them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from core.teller import Teller
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.control.journal import Journal
from holdfast.control.past import Past
from holdfast.core import Core
from holdfast.domain.event import JobResumed, JobSubmitted
from holdfast.domain.job import JobSpec
from holdfast.domain.past import PastIncident, PastRemedy, PastRun, PastService
from holdfast.errors import HoldfastError

DAY_S = 86400.0


def command(*words: object) -> SimpleNamespace:
    """In this process: each of these is about an answer, and starting an interpreter for it takes longer than the answer."""
    ran = CliRunner().invoke(app, [str(word) for word in words])
    error = ran.exception if isinstance(ran.exception, HoldfastError) else None
    assert ran.exception is None or error is not None or isinstance(ran.exception, SystemExit), ran.exception
    return SimpleNamespace(returncode=error.exit_code if error is not None else ran.exit_code, stdout=ran.stdout, stderr=str(error or ran.stderr))


@pytest.fixture
def history(state: Path) -> Path:
    """Two jobs of last week; node n1 keeps failing."""
    now = time.time()
    kept = [
        PastIncident(
            job="bert", number=number, opened_at=now - number * DAY_S, cause="hang", node="n1", fingerprint="hang:silent_rank", because="rank 3 fell silent",
            outcome="resolved", remedies=(PastRemedy(rung="respawn", worked=number > 1, cost_s=40.0),), cost_s=60.0, evidence=("NCCL waited",),
        )
        for number in range(1, 6)
    ]  # fmt: skip
    old = PastIncident(job="gpt", number=1, opened_at=now - 30 * DAY_S, cause="exception", node="n2", fingerprint="KeyError@train.py:f:3", outcome="gave_up")
    kept.append(old)
    service = [PastService(node=f"n{node}", run="r", day=int(now // DAY_S) - day, seconds=DAY_S) for node in range(40) for day in range(1, 15)]
    run = PastRun(job="bert", run="r", command="light.py", shape=(("batch", "8"),), started_at=now, peak_bytes=10**9)
    with Past(state / "history.db") as past:
        past.keep(incidents=kept, service=service, runs=[run])
    return state


def found(*words: object) -> list[str]:
    ran = command("incidents", *words, "--json")
    assert ran.returncode == 0, ran.stderr
    return [one["id"] for one in json.loads(ran.stdout)]


def test_incidents_of_all_jobs_are_searched_by_cause_node_job_and_time(history: Path) -> None:
    assert found() == ["bert/1", "bert/2", "bert/3", "bert/4", "bert/5", "gpt/1"]
    assert found("--cause", "exception") == ["gpt/1"]
    assert found("--node", "n1", "--since", "60h") == ["bert/1", "bert/2"]
    assert found("--job", "gpt") == ["gpt/1"]
    assert found("--cause", "disk_full") == []
    shown = command("incidents", "--cause", "exception")
    assert "gpt/1" in shown.stdout
    assert "gave up" in shown.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("incidents", "--cause", "hangg"), "did you mean 'hang'?"),
        (("incidents", "--since", "soon"), "12h, 7d or 2w"),
        (("correct", "bert/9", "hang"), "nearest: bert/"),
        (("correct", "bert", "hang"), "JOB/NUMBER"),
        (("correct", "bert/1", "disk_ful"), "nearest: disk_full"),
        (("learn", "revoke", "3"), "there is no correction 3"),
        (("learn", "export", "/proc/no/such/file"), "cannot be written"),
    ],
)
def test_what_does_not_exist_is_answered_with_what_is_near(history: Path, words: tuple[str, ...], said: str) -> None:
    ran = command(*words)
    assert ran.returncode == 2
    assert said in ran.stderr


def test_a_correction_changes_the_answer_for_its_fingerprint_at_once_until_it_is_revoked(history: Path) -> None:
    ran = command("correct", "bert/2", "gpu_ecc", "--because", "dmesg had Xid 63", "--json")
    assert ran.returncode == 0, ran.stderr
    assert found("--cause", "gpu_ecc") == ["bert/1", "bert/2", "bert/3", "bert/4", "bert/5"]
    listed = json.loads(command("learn", "corrections", "--json").stdout)
    assert [(one["was"], one["cause"], one["because"], one["holds"]) for one in listed] == [("hang", "gpu_ecc", "dmesg had Xid 63", True)]
    material = [json.loads(line) for line in command("learn", "export", "--corrections", "-").stdout.splitlines()]
    assert [(one["text"], one["cause"]) for one in material] == [("rank 3 fell silent\nNCCL waited", "gpu_ecc")]
    assert command("learn", "revoke", 1).returncode == 0
    assert found("--cause", "hang")[0] == "bert/1"
    assert command("learn", "export", "--corrections", "-").stdout == ""


def test_a_fingerprint_can_be_corrected_without_a_job_of_ours(state: Path) -> None:
    assert command("correct", "fingerprint:OSError@save", "disk_full").returncode == 0
    assert "OSError@save" in command("learn", "corrections").stdout


def test_the_report_says_what_was_learned_from_how_much_and_how_sure(history: Path) -> None:
    told = json.loads(command("learn", "report", "--json").stdout)
    assert told["incidents"] == 6
    assert told["fleet"]["lemons"] == ["n1"]
    assert 0.0 < told["fleet"]["healthy_on_the_list_expected"] < 0.4
    worst = told["nodes"][0]
    assert worst["low"] < worst["times_others"] < worst["high"]
    assert {row["rung"] for row in told["remedies"]["rows"]} == {"respawn"}
    assert told["memory"][0]["command"] == "light.py"
    shown = command("learn", "report").stdout
    for words in ("1 lemon of 40 nodes", "expected on the list by chance", "Forgotten by half", "light.py"):
        assert words in " ".join(shown.split())


def test_everything_can_be_exported_as_lines(history: Path) -> None:
    assert command("learn", "export", history / "all.jsonl").returncode == 0
    kinds = [json.loads(line)["kind"] for line in (history / "all.jsonl").read_text().splitlines()]
    assert kinds.count("incident") == 6
    assert kinds.count("run") == 1
    assert set(kinds) == {"incident", "service", "run"}


def test_a_history_that_is_built_again_tells_what_was_done_on_purpose_from_what_came_by_itself(state: Path) -> None:
    teller = Teller(at=time.time())
    for chaos in (True, False):  # The same job, first there to be struck, then run again as it is.
        began = JobResumed if teller.events else JobSubmitted
        teller.take(began(at=teller.at, spec=JobSpec(job="bert", argv=("train.py",), chaos=chaos)))
        for words in ("hear n1", "up", "progress 5", "exit 0 signal signal=9", "stopped", "up", "progress 9", "stop now", "stopped"):
            teller.play(words)
        teller.at += 1.0
    directory = state / "jobs" / "bert"
    directory.mkdir(parents=True)
    core, journal = Core(), Journal(directory / "journal.db")
    for event in teller.events:
        journal.append(event, core.step(event), core.state)
    journal.close()
    assert command("learn", "rebuild").returncode == 0
    with Past(state / "history.db", read_only=True) as past:
        assert [(one.cause, one.chaos) for one in past.incidents()] == [("killed", True), ("killed", False)]
    assert json.loads(command("learn", "report", "--json").stdout)["incidents"] == 1


def test_nothing_remembered_is_said_and_is_no_error(state: Path) -> None:
    assert "Nothing is remembered yet" in command("learn", "report").stdout
    assert "No such incident" in command("incidents").stdout
    assert not (state / "history.db").exists()


def test_a_damaged_history_is_a_sentence_and_no_crash(state: Path) -> None:
    (state / "history.db").write_bytes(b"broken" * 1000)
    ran = command("learn", "report")
    assert ran.returncode == 81
    assert "the history" in ran.stderr
