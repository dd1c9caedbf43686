"""`holdfast alerts`, as it is typed, with real servers behind it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from control.alerts.given import alert, notification
from control.alerts.servers import Reply, Smtp, Web, alertmanager, certificate, free_port, needs_alertmanager
from end_to_end.jobs import command
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.control.alerts.outbox import Outbox
from holdfast.control.alerts.routing import Memory
from holdfast.control.journal import Journal
from holdfast.domain.job import JobSpec
from holdfast.errors import HoldfastError
from holdfast.launch.layout import JobDirectory

KEY = "k3y-that-nobody-may-see"


@pytest.fixture
def directory(state: Path) -> JobDirectory:
    """A job that ended with a notification left."""
    made = JobDirectory(state / "jobs" / "train")
    made.path.mkdir(parents=True)
    Journal(made.journal).close()
    made.spec.write_bytes(msgspec.json.encode(JobSpec(job="train", argv=("train.py",))))
    outbox = Outbox(made.alerts)
    told = alert(1, node="gpu-7")
    memory = Memory(instance="i", alerts={"f1": told}, muted={"f1": "silenced (node=gpu-7)"})
    outbox.commit(msgspec.json.encode(memory), [notification(told, id="left", sink="pager", at=time.time())], time.time())
    outbox.close()
    return made


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_KEY", KEY)


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["alerts", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, (HoldfastError, SystemExit)):
        raise done.exception
    err = str(done.exception) if isinstance(done.exception, HoldfastError) else ""
    assert KEY not in done.output + err, "a secret was shown"
    return done.exception.exit_code if isinstance(done.exception, HoldfastError) else done.exit_code, done.stdout, err


def as_json(*arguments: object, code: int = 0) -> Any:
    got, out, err = run(*arguments, "--json")
    assert got == code, out + err
    return json.loads(out)


def written(path: Path, *sinks: str, routes: str = "") -> Path:
    names = ", ".join(line.partition(":")[0] for line in sinks)
    file = path / "alerts.yaml"
    file.write_text("sinks:\n" + "".join(f"  {line}\n" for line in sinks) + f"routes:\n{routes}  - {{name: rest, to: [{names}]}}\n")
    return file


def hook(name: str, url: str) -> str:
    return f"{name}: {{kind: webhook, url: '{url}', key_env: HOOK_KEY, timeout: 2s}}"


def test_check_says_what_is_wrong_and_what_is_good(tmp_path: Path) -> None:
    good = written(tmp_path, hook("pager", "https://example.org/x"), "chat: {kind: slack, url_env: NOT_SET_HERE}")
    code, out, _ = run("check", good)
    assert code == 0
    assert "2 sinks and 1 route good" in out
    assert "chat: the environment variable NOT_SET_HERE is not set" in out
    told = as_json("check", good)
    assert told["ok"]
    assert [one["kind"] for one in told["sinks"]] == ["webhook", "slack"]
    assert len(told["missing"]) == 1
    bad = written(tmp_path, hook("pager", "https://example.org/x"), routes="  - {to: [pagr], match: [severity=critical]}\n")
    code, out, _ = run("check", bad)
    assert code == 1
    assert f"{bad}:4: there is no sink 'pagr'; did you mean 'pager'?" in out
    assert as_json("check", bad, code=1)["problems"][0]["line"] == 4
    code, _, err = run("check", tmp_path / "nothing.yaml")
    assert code == 2
    assert "cannot be read" in err


def test_a_test_alert_goes_the_way_of_its_labels_and_every_answer_is_said(tmp_path: Path) -> None:
    with Web() as web, Web(Reply(403, body=KEY.encode())) as no:
        file = written(tmp_path, hook("good", web.url), hook("no", no.url), hook("gone", f"http://127.0.0.1:{free_port()}"),
                       routes="  - {name: night, match: [severity=critical], to: [good]}\n")  # fmt: skip
        told = as_json("test", file, "--label", "severity=critical", "--label", "node=gpu-7")
        assert told["routes"] == ["night"]
        assert [one["verdict"] for one in told["answers"]] == ["delivered"]
        assert web.got[0].json["test"]
        assert web.got[0].json["alerts"][0]["labels"]["node"] == "gpu-7"
        assert web.got[0].json["title"].startswith("[test, firing]")
        code, out, _ = run("test", file, "--route", "rest")
        assert code == 1
        assert "good (webhook): delivered" in out
        assert "no (webhook): refused" in out
        assert "gone (webhook): later" in out
        code, _, err = run("test", file, "--route", "nigt")
        assert code == 2
        assert "did you mean 'night'?" in err


@needs_alertmanager
def test_a_test_alert_reaches_a_real_alertmanager_and_a_mail_server(tmp_path: Path) -> None:
    trusted = certificate(tmp_path)
    with alertmanager(tmp_path) as server, Smtp(trusted.context(), user="me", password=KEY) as smtp:
        mail = f"kind: email, server: '127.0.0.1:{smtp.port}', from: a@b.org, to: b@example.org, user: me, password_env: HOOK_KEY, ca_file: {trusted.cert}"
        file = written(tmp_path, f"am: {{kind: alertmanager, url: '{server.url}'}}", f"mail: {{{mail}}}")
        told = as_json("test", file)
        assert [one["verdict"] for one in told["answers"]] == ["delivered", "delivered"], told
        assert [one["labels"]["alertname"] for one in server.alerts()] == ["Test"]
        assert b"[test, firing]" in smtp.got[0].data


def test_list_shows_what_fires_what_waits_and_what_was_sent(directory: JobDirectory) -> None:
    code, out, _ = run("list", "train")
    assert code == 0
    assert "train/1" in out
    assert "pager" in out
    assert "silenced" in out
    told = as_json("list", "train")
    assert (told["firing"][0]["id"], told["waiting"][0]["sink"], told["done"], told["silences"]) == ("train/1", "pager", [], [])
    code, _, err = run("list", "trian")
    assert code == 2
    assert "did you mean 'train'?" in err
    directory.alerts.unlink()
    code, _, err = run("list", "train")
    assert code == 2
    assert "run without --alerts" in err


def test_a_silence_is_made_listed_and_ended(directory: JobDirectory) -> None:
    told = as_json("silence", "train", "--match", "node=gpu-7", "--match", "severity<=warning", "--for", "2h", "--because", "being repaired")
    assert told["match"] == ["node=gpu-7", "severity<=warning"]
    assert 7100 < told["until"] - time.time() <= 7200
    assert [one["because"] for one in as_json("list", "train")["silences"]] == ["being repaired"]
    assert as_json("silence", "train", "--end", told["silence"])["ended"] == told["silence"]
    assert as_json("list", "train")["silences"] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--for", "2h"], "--match is missing"),
        (["--match", "node=a"], "--for is missing"),
        (["--match", "node", "--for", "2h"], "'node' is no matcher"),
        (["--match", "node=a", "--for", "soon"], "'soon' is not a duration"),
        (["--match", "node=a", "--for", "400d"], "expected a time up to 30d"),
        (["--end", "99"], "has no silence 99"),
    ],
)
def test_a_silence_that_cannot_be_meant_is_refused(directory: JobDirectory, given: list[str], said: str) -> None:
    code, _, err = run("silence", "train", *given)
    assert code == 2
    assert said in err


def test_send_delivers_what_is_left(directory: JobDirectory, tmp_path: Path) -> None:
    code, _, err = run("send", "train")
    assert code == 2
    assert "was run without --alerts" in err
    port = free_port()
    file = written(tmp_path, hook("pager", f"http://127.0.0.1:{port}"))
    directory.spec.write_bytes(msgspec.json.encode(JobSpec(job="train", argv=("train.py",), alerts=str(file))))
    code, out, _ = run("send", "train", "--within", "1s")
    assert code == 1
    assert "alerts do not reach pager" in out
    assert "1 notification left" in out
    with Web(port=port) as web:
        assert as_json("send", "train")["left"] == 0
        assert web.got[0].headers["idempotency-key"] == "left"
    assert as_json("list", "train")["done"][0]["verdict"] == "delivered"


def test_run_refuses_alerts_that_cannot_work_before_anything_is_started(state: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('started')")
    bad = written(tmp_path, "chat: {kind: slack, url_env: NOT_SET_HERE}")
    for options, more in ((["--alerts", bad], {}), ([], {"HOLDFAST_ALERTS": str(bad)})):
        done = command("run", *options, "--name", "job", script, **more)
        assert done.returncode == 2
        assert "NOT_SET_HERE is not set" in done.stderr
        assert "started" not in done.stdout
    bad.write_text("sinks: {}\n")
    done = command("run", "--alerts", bad, script)
    assert done.returncode == 2
    assert f"{bad}:1: `routes` is missing" in done.stderr
