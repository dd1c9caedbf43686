"""Alerts of real jobs: what goes wrong in one reaches real servers, whatever becomes of control and of the servers."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from control.alerts.servers import Got, Reply, Web, alertmanager, free_port, needs_alertmanager
from end_to_end.jobs import Job, command, eventually, expected_result

KEY = "k3y-that-nobody-may-see"
STEPS = 300


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_KEY", KEY)


def configured(state: Path, *sinks: str) -> Path:
    names = ", ".join(line.partition(":")[0] for line in sinks)
    file = state / "alerts.yaml"
    file.write_text("sinks:\n" + "".join(f"  {line}\n" for line in sinks) + f"routes:\n  - {{to: [{names}], group_wait: 0s, group_interval: 1s}}\n")
    return file


def hook(name: str, url: str, timeout: str = "2s") -> str:
    return f"{name}: {{kind: webhook, url: '{url}', key_env: HOOK_KEY, timeout: {timeout}}}"


def job(state: Path, file: Path, *, fault: str = "kill@60@1", step_s: float = 0.02, **more: Any) -> Job:
    return Job(state, options=["--nproc", 2, "--alerts", file], arguments=["--steps", STEPS, "--step-s", step_s, "--fault", fault], **more)


def hopeless(state: Path, file: Path) -> Job:
    """One that fails and is not started again."""
    options = ["--nproc", 1, "--max-restarts", 0, "--alerts", file]
    return Job(state, options=options, arguments=["--steps", STEPS, "--step-s", 0.01, "--fault", "kill@20@0"])


def heard(got: list[Got]) -> list[tuple[str, str]]:
    return [(alert["id"], alert["status"]) for one in got for alert in one.json["alerts"]]


def finished_once_told(run: Job, web: Web) -> None:
    eventually(lambda: ("job/1", "resolved") in heard(web.got), what="the news that the incident is over")
    run.hurry()
    run.finished()


def assert_nothing_secret(run: Job) -> None:
    for path in (*run.directory.logs.glob("*.log"), run.directory.spec, run.directory.journal, run.stdout, run.stderr, *run.directory.path.glob("alerts.db*")):
        assert KEY.encode() not in path.read_bytes(), f"the key is in {path.name}"


@needs_alertmanager
def test_a_killed_worker_reaches_webhook_slack_and_alertmanager_while_others_are_dead(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Web() as web, Web() as slack, Web() as hanging, Web(Reply(500)) as failing, alertmanager(tmp_path) as server:
        hanging.hang = threading.Event()
        monkeypatch.setenv("SLACK_URL", f"{slack.url}/services/T0/B0/XYZZY")
        file = configured(
            state, hook("pager", web.url), "chat: {kind: slack, url_env: SLACK_URL}", f"am: {{kind: alertmanager, url: '{server.url}', resend: 2s}}",
            hook("hanging", hanging.url, "60s"), hook("failing", failing.url), hook("gone", f"http://127.0.0.1:{free_port()}"),
        )  # fmt: skip
        with job(state, file) as run:
            finished_once_told(run, web)
        assert run.result() == expected_result(STEPS, 2), "training is unaffected"
        assert heard(web.got)[-1] == ("job/1", "resolved")
        assert web.got[0].json["alerts"][0]["kind"] == "worker_exited"
        assert any("worker_exited" in one.body.decode() for one in slack.got)
        assert not server.alerts(), "what was told is told to be over"
        said = run.said()
        for sink in ("failing", "gone"):
            assert said.count(f"holdfast control: alerts do not reach {sink}") == 1, "told once"
        assert "could not be delivered yet; `holdfast alerts send job`" in said
        assert_nothing_secret(run)
        listed = json.loads(command("alerts", "list", "job", "--json", HOLDFAST_STATE=str(state)).stdout)
        assert {one["sink"] for one in listed["done"]} >= {"pager", "chat", "am"}
        assert {one["sink"] for one in listed["waiting"]} == {"hanging", "failing", "gone"}


@pytest.mark.parametrize("point", ["alerts-queued", "alerts-delivered"])
def test_control_is_killed_between_writing_and_sending_and_between_sending_and_forgetting(state: Path, point: str) -> None:
    used = state / "used"
    used.mkdir()
    with Web() as web:
        env = {"HOLDFAST_CRASH_AT": point, "HOLDFAST_CRASH_ONCE": str(used)}
        with job(state, configured(state, hook("pager", web.url)), env=env) as run:
            finished_once_told(run, web)
        assert (used / point).exists(), "control never came by"
        assert run.result() == expected_result(STEPS, 2)
        assert heard(web.got)[-1] == ("job/1", "resolved")
        ids = [one.headers["idempotency-key"] for one in web.got]
        if point == "alerts-delivered":
            assert ids[0] == ids[1], "sent again under the same id"
            assert web.got[0].body == web.got[1].body
        else:
            assert len(set(ids)) == len(ids), "nothing is sent twice"


def test_a_control_that_is_killed_while_the_sink_is_down_delivers_when_it_is_back(state: Path) -> None:
    port = free_port()
    with job(state, configured(state, hook("pager", f"http://127.0.0.1:{port}")), step_s=0.06) as run:
        eventually(lambda: run.directory.alerts.exists() and "alerts do not reach pager" in run.said(), what="a failed try")
        os.kill(run.control(), signal.SIGKILL)
        with Web(port=port) as web:
            finished_once_told(run, web)
    assert run.result() == expected_result(STEPS, 2)


def test_what_is_left_at_the_end_is_said_and_sent_by_the_next_run(state: Path) -> None:
    port = free_port()
    file = configured(state, hook("pager", f"http://127.0.0.1:{port}"))
    begin = time.monotonic()
    with hopeless(state, file) as run:
        assert run.wait() != 0
    assert time.monotonic() - begin < 60
    assert "1 notification for pager could not be delivered yet" in run.stderr.read_text()
    with Web(port=port) as web:
        with Job(state, verb="resume") as again:
            again.finished()
        # It fired when the job ended on it, and is over since the job runs again: one message tells both.
        assert heard(web.got)[-1] == ("job/1", "resolved")


def test_a_job_that_fails_for_good_is_told_as_firing(state: Path) -> None:
    with Web() as web:
        file = configured(state, hook("pager", web.url))
        with hopeless(state, file) as run:
            assert run.wait() != 0
        last = web.got[-1].json["alerts"][0]
        assert (last["status"], last["given_up"], last["severity"]) == ("firing", True, "critical")


def test_a_configuration_that_went_bad_stops_nobody(state: Path) -> None:
    with Web() as web:
        file = configured(state, hook("pager", web.url))
        with Job(state, options=["--nproc", 1, "--alerts", file], arguments=["--steps", 30, "--step-s", 0.01]) as run:
            run.finished()
        file.write_text("sinks: [oops\n")
        with Job(state, verb="resume") as again:
            again.finished()
        assert "nobody is told of incidents" in again.said()
