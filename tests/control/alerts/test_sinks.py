"""Sinks against real servers: what arrives, what each answer means, and that nothing secret is said."""

from __future__ import annotations

import email
import email.policy
import hashlib
import hmac
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from control.alerts.given import alert, notification, over, worse
from control.alerts.servers import Certificate, Reply, Smtp, Web, alertmanager, certificate, eventually, free_port, needs_alertmanager

from holdfast.control.alerts.answer import Answer, Verdict
from holdfast.control.alerts.posting import REPLY_BYTES_MAX
from holdfast.control.alerts.secret import Secret, redacted, shown_address
from holdfast.control.alerts.sinks.alertmanager import Alertmanager, labels_of
from holdfast.control.alerts.sinks.mail import Mail, Tls
from holdfast.control.alerts.sinks.slack import Slack
from holdfast.control.alerts.sinks.webhook import Webhook

KEY = "k3y-that-nobody-may-see"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as server:
        yield server


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_KEY", KEY)


def hook(url: str, **more: object) -> Webhook:
    return replace(Webhook(name="pager", url=Secret(plain=url), key=Secret(env="HOOK_KEY"), timeout_s=1.0), **more)  # type: ignore[arg-type]


# --- Webhook.


def test_a_webhook_is_signed_over_its_time_and_body(web: Web) -> None:
    sent = hook(f"{web.url}/hook").send(notification(worse(alert(1, node="a")), over(alert(2))), 1000.9)
    assert sent.verdict is Verdict.DELIVERED
    (got,) = web.got
    # As docs/alerts.md says a receiver does it.
    expected = hmac.new(KEY.encode(), got.headers["holdfast-timestamp"].encode() + b"." + got.body, hashlib.sha256).hexdigest()
    assert got.headers["holdfast-signature"] == f"v1={expected}"
    assert got.headers["holdfast-timestamp"] == "1000"
    assert got.headers["idempotency-key"] == got.json["id"] == "i-1"
    assert (got.json["status"], got.json["severity"], got.json["job"]) == ("firing", "critical", "train")
    first, second = got.json["alerts"]
    assert (first["id"], first["kind"], first["labels"]["node"], first["ends_at"]) == ("train/1", "slow_rank", "a", None)
    assert (second["status"], second["ends_at"], second["starts_at"]) == ("resolved", "1970-01-01T00:03:20.000Z", "1970-01-01T00:01:40.000Z")


def test_a_receiver_that_does_as_the_page_says_tells_ours_from_a_forgery(web: Web) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "alerts.md").read_text(), flags=re.DOTALL)
    page: dict[str, Any] = {}
    exec(code, page)
    hook(web.url).send(notification(), time.time())
    hook(web.url).send(notification(), time.time() - 3600)
    new, old = ({name.title(): value for name, value in got.headers.items()} for got in web.got)
    body = web.got[0].body
    assert page["is_genuine"](KEY, new, body)
    assert not page["is_genuine"](KEY, new, body.replace(b"train", b"other"))
    assert not page["is_genuine"]("another key", new, body)
    assert not page["is_genuine"](KEY, {**new, "Holdfast-Timestamp": old["Holdfast-Timestamp"]}, body)
    assert not page["is_genuine"](KEY, old, web.got[1].body), "one that was recorded an hour ago"


@pytest.mark.parametrize(
    ("reply", "verdict", "after_s"),
    [
        (Reply(200), Verdict.DELIVERED, None), (Reply(204), Verdict.DELIVERED, None), (Reply(500), Verdict.LATER, None), (Reply(502), Verdict.LATER, None),
        (Reply(503, {"Retry-After": "7"}), Verdict.LATER, 7.0), (Reply(429, {"Retry-After": "120"}), Verdict.LATER, 120.0), (Reply(429), Verdict.LATER, None),
        (Reply(408), Verdict.LATER, None), (Reply(400), Verdict.REFUSED, None), (Reply(401), Verdict.REFUSED, None), (Reply(404), Verdict.REFUSED, None),
        (Reply(410), Verdict.REFUSED, None), (Reply(503, {"Retry-After": "nonsense"}), Verdict.LATER, None),
    ],
)  # fmt: skip
def test_what_each_answer_means(web: Web, reply: Reply, verdict: Verdict, after_s: float | None) -> None:
    web.replies = [reply]
    answer = hook(web.url).send(notification(), 0.0)
    assert (answer.verdict, answer.after_s) == (verdict, after_s)
    assert str(reply.status) in answer.said


def test_a_date_may_say_when_to_come_again(web: Web) -> None:
    web.replies = [Reply(503, {"Retry-After": email.utils.formatdate(time.time() + 100, usegmt=True)})]
    after_s = hook(web.url).send(notification(), 0.0).after_s
    assert after_s is not None
    assert 90 < after_s <= 101


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(web: Web, status: int) -> None:
    with Web() as other:
        web.replies = [Reply(status, {"Location": f"{other.url}/stolen?key={KEY}"})]
        answer = hook(web.url).send(notification(), 0.0)
        assert answer.verdict is Verdict.REFUSED
        assert not other.got
    assert f"127.0.0.1:{other.port}" in answer.said
    assert KEY not in answer.said


def test_nobody_there_silence_and_a_broken_answer_are_tried_again(web: Web) -> None:
    answer = hook(f"http://127.0.0.1:{free_port()}").send(notification(), 0.0)
    assert answer.verdict is Verdict.LATER
    assert "Connection refused" in answer.said
    web.hang = threading.Event()
    begin = time.monotonic()
    answer = hook(web.url, timeout_s=0.3).send(notification(), 0.0)
    assert answer.verdict is Verdict.LATER
    assert "did not answer in time" in answer.said
    assert time.monotonic() - begin < 3
    answer = hook("http://does-not-exist.invalid/x").send(notification(), 0.0)
    assert answer.verdict is Verdict.LATER


def test_a_reply_without_end_is_read_only_so_far(web: Web) -> None:
    web.replies = [Reply(200, body=b"x" * (REPLY_BYTES_MAX * 4))]
    answer = hook(web.url).send(notification(), 0.0)
    assert answer.verdict is Verdict.DELIVERED
    assert len(answer.said) < 400


def test_what_a_server_repeats_of_a_secret_is_not_said(web: Web) -> None:
    web.replies = [Reply(403, body=f"no hook /services/T000/B000/Xy12 for {KEY}\x1b[31m".encode())]
    answer = hook(f"{web.url}/services/T000/B000/Xy12").send(notification(), 0.0)
    assert KEY not in answer.said
    assert "Xy12" not in answer.said
    assert "\x1b" not in answer.said
    assert "403" in answer.said


def test_only_http_and_https_are_spoken_and_certificates_are_verified(trusted: Certificate) -> None:
    for url in ("ftp://127.0.0.1/x", "gopher://x", "http://u:p@127.0.0.1/", "http://"):
        assert hook(url).send(notification(), 0.0).verdict is Verdict.REFUSED
    with Web(context=trusted.context()) as server:
        answer = hook(server.url).send(notification(), 0.0)
        assert answer.verdict is Verdict.LATER
        assert "certificate that is not trusted" in answer.said
        assert not server.got
        assert hook(server.url, ca_file=str(trusted.cert)).send(notification(), 0.0).verdict is Verdict.DELIVERED


def test_a_missing_secret_is_said_by_its_name(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOOK_KEY")
    answer = hook(web.url).send(notification(), 0.0)
    assert answer == Answer(verdict=Verdict.LATER, said="the environment variable HOOK_KEY is not set")
    assert not web.got


def test_addresses_are_shown_without_what_may_be_a_key() -> None:
    assert shown_address("https://hooks.example.org:8443/services/T0/B0/XXX?a=b") == "https://hooks.example.org:8443"
    assert redacted("POST https://h.example.org/services/T0/SECRETPART failed", ["https://h.example.org/services/T0/SECRETPART"]) == "POST … failed"


# --- Slack.


def test_slack_gets_text_and_nobody_can_call_a_channel_through_a_log_line(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK", f"{web.url}/services/T0/B0/XXXX")
    bad = replace(alert(1, node="a"), summary="<!channel> & friends", evidence=("<http://x|click>",))
    sent = Slack(name="chat", url=Secret(env="SLACK"), link="https://d.example.org/{job}/{incident}").send(notification(bad, *map(alert, range(2, 30))), 0.0)
    assert sent.verdict is Verdict.DELIVERED
    assert "XXXX" not in sent.said
    (got,) = web.got
    assert got.path == "/services/T0/B0/XXXX"
    assert "<!channel>" not in got.body.decode()
    assert "<http" not in got.body.decode()
    assert got.json["text"].startswith("*[firing] train: slow_rank (warning), and 28 more")
    first, *_, last = got.json["attachments"]
    assert first["text"].startswith("&lt;!channel&gt; &amp; friends")
    assert first["title_link"] == "https://d.example.org/train/1"
    assert "19 more" in last["text"]


def test_the_address_of_slack_is_not_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK", "http://hooks.example.org/services/T0")
    answer = Slack(name="chat", url=Secret(env="SLACK")).send(notification(), 0.0)
    assert answer.verdict is Verdict.REFUSED
    assert "in the clear" in answer.said


# --- E-mail.


def mail(port: int, trusted: Certificate, **more: object) -> Mail:
    plain = Mail(name="mail", host="127.0.0.1", port=port, sender="Holdfast <holdfast@example.org>", to=("a@example.org", "b@example.org"), user="me",
                 password=Secret(env="HOOK_KEY"), ca_file=str(trusted.cert), timeout_s=2.0)  # fmt: skip
    return replace(plain, **more)  # type: ignore[arg-type]


def test_mail_goes_out_over_starttls_with_a_password(trusted: Certificate) -> None:
    with Smtp(trusted.context(), user="me", password=KEY) as server:
        told = replace(worse(alert(1, node="a")), summary="<b>bold</b> größer")
        assert mail(server.port, trusted).send(notification(told, over(alert(2))), 0.0).verdict is Verdict.DELIVERED
    (got,) = server.got
    assert (got.tls, got.user, got.sender, got.to) == (True, "me", "holdfast@example.org", ["a@example.org", "b@example.org"])
    message = email.message_from_bytes(got.data, policy=email.policy.default)
    assert message["Subject"] == "[firing] train: slow_rank (critical), and 1 more"
    assert message["Message-ID"] == "<i-1@holdfast.invalid>"
    plain, html = message.get_body(("plain",)), message.get_body(("html",))
    assert plain is not None
    assert "<b>bold</b> größer" in plain.get_content()
    assert "holdfast incidents train 1" in plain.get_content()
    assert html is not None
    assert "&lt;b&gt;bold" in html.get_content()
    assert "<b>" not in html.get_content()


def test_mail_over_tls_from_the_start_and_in_the_clear_to_loopback(trusted: Certificate) -> None:
    with Smtp(trusted.context(), user="me", password=KEY, at_once=True) as server:
        assert mail(server.port, trusted, tls=Tls.TLS).send(notification(), 0.0).verdict is Verdict.DELIVERED
    with Smtp() as server:
        assert mail(server.port, trusted, tls=Tls.NONE, user="", password=None).send(notification(), 0.0).verdict is Verdict.DELIVERED
        assert not server.got[0].tls


def test_a_mail_server_that_is_not_trusted_gets_neither_password_nor_mail(trusted: Certificate) -> None:
    with Smtp(trusted.context(), user="me", password=KEY) as server:
        answer = mail(server.port, trusted, ca_file="").send(notification(), 0.0)
        assert answer.verdict is Verdict.LATER
        assert "not trusted" in answer.said
        assert not server.got
    with Smtp(user="me", password=KEY) as server:
        answer = mail(server.port, trusted).send(notification(), 0.0)
        assert answer.verdict is Verdict.REFUSED
        assert "STARTTLS" in answer.said
        assert not server.got


def test_what_answers_of_a_mail_server_mean(trusted: Certificate) -> None:
    with Smtp(trusted.context(), user="me", password="other") as server:
        answer = mail(server.port, trusted).send(notification(), 0.0)
        assert answer.verdict is Verdict.REFUSED
        assert "535" in answer.said
        assert KEY not in answer.said
    with Smtp(trusted.context(), user="me", password=KEY, refuse={"a@example.org": 550}) as server:
        answer = mail(server.port, trusted).send(notification(), 0.0)
        assert answer.verdict is Verdict.DELIVERED
        assert "it refused a@example.org" in answer.said
        assert server.got[0].to == ["b@example.org"]
        assert mail(server.port, trusted, to=("a@example.org",)).send(notification(), 0.0).verdict is Verdict.REFUSED
        server.codes = {"MAIL": 451}
        assert mail(server.port, trusted).send(notification(), 0.0).verdict is Verdict.LATER
        server.codes = {"MAIL": 554}
        assert mail(server.port, trusted).send(notification(), 0.0).verdict is Verdict.REFUSED
    assert mail(free_port(), trusted).send(notification(), 0.0).verdict is Verdict.LATER


def test_a_mail_server_that_hangs_is_left(trusted: Certificate) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begin = time.monotonic()
        answer = mail(silent.getsockname()[1], trusted, timeout_s=0.3).send(notification(), 0.0)
    assert answer.verdict is Verdict.LATER
    assert time.monotonic() - begin < 3


# --- Alertmanager.


def test_what_alertmanager_is_sent(web: Web) -> None:
    told = notification(worse(alert(1, node="a")), over(alert(2, kind="rule:DiskNearlyFull"), at=900.0), before={"f1": alert(1, node="a").labels})
    sink = Alertmanager(name="am", url=Secret(plain=f"{web.url}/prefix/"), token=Secret(env="HOOK_KEY"), link="https://d.example.org/{job}")
    assert sink.send(told, 1000.0).verdict is Verdict.DELIVERED
    (got,) = web.got
    assert got.path == "/prefix/api/v2/alerts"
    assert got.headers["authorization"] == f"Bearer {KEY}"
    first, second, third = got.json
    assert first["labels"] == {"alertname": "SlowRank", "holdfast_job": "train", "incident": "1", "severity": "critical", "node": "a"}
    assert first["endsAt"] == "1970-01-01T00:20:40.000Z"
    assert first["generatorURL"] == "https://d.example.org/train"
    assert second["labels"]["alertname"] == "DiskNearlyFull"
    assert second["endsAt"] == "1970-01-01T00:15:00.000Z"
    assert (third["labels"]["severity"], third["endsAt"]) == ("warning", "1970-01-01T00:16:40.000Z"), "the alert with the old labels is ended"


def test_a_job_has_the_label_it_has_in_the_rules_for_prometheus() -> None:
    from holdfast.detect.rules import prometheus

    assert labels_of("slow_rank", {"job": "train"}) == {"alertname": "SlowRank", prometheus.JOB_LABEL: "train"}


@needs_alertmanager
def test_a_real_alertmanager_takes_holds_and_ends_them(tmp_path: Path) -> None:
    with Web() as hooked, alertmanager(tmp_path, webhook=f"{hooked.url}/am") as server:
        sink = Alertmanager(name="am", url=Secret(plain=server.url), resend_s=30.0)
        now = time.time()
        one, two = alert(1, node="a", at=now - 5), alert(2, kind="data_stall", node="b", at=now - 5)
        answer = sink.send(notification(one, two), now)
        assert answer.verdict is Verdict.DELIVERED, answer
        held = {each["labels"]["alertname"]: each for each in server.alerts()}
        assert held.keys() == {"SlowRank", "DataStall"}
        assert held["SlowRank"]["annotations"]["summary"] == "slow_rank of 1"
        assert held["SlowRank"]["labels"]["holdfast_job"] == "train"
        # It becomes critical: the one with the old labels goes, and is not told as a second alert.
        sink.send(notification(worse(one), two, before={"f1": one.labels}), time.time())
        eventually(lambda: [each["labels"]["severity"] for each in server.alerts() if each["labels"]["alertname"] == "SlowRank"] == ["critical"])
        sink.send(notification(over(worse(one), at=time.time()), over(two, at=time.time())), time.time())
        eventually(lambda: not server.alerts())
        statuses = eventually(lambda: [each["status"] for got in hooked.got for each in got.json["alerts"] if each["status"] == "resolved"])
        assert "resolved" in statuses
        bad = sink.send(notification(replace(alert(3), labels={"job": "train", "kind": "x", "no good": "\x00"})), time.time())
        assert bad.verdict is Verdict.REFUSED
        assert "400" in bad.said


@needs_alertmanager
def test_what_is_not_told_again_ends_by_itself_at_a_real_alertmanager(tmp_path: Path) -> None:
    with alertmanager(tmp_path) as server:
        sink = Alertmanager(name="am", url=Secret(plain=server.url), resend_s=0.5)
        sink.send(notification(alert(1, at=time.time())), time.time())
        assert len(server.alerts()) == 1
        eventually(lambda: not server.alerts(), within_s=10.0)
