"""Configurations: what a person writes becomes what is meant, or a line that says what to change. Secrets are named and never repeated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.alerts.loading import missing_secrets
from holdfast.control.alerts.reading import Configuration, read_alerts
from holdfast.control.alerts.sinks.alertmanager import Alertmanager
from holdfast.control.alerts.sinks.mail import Mail, Tls

ROOT = Path(__file__).resolve().parents[3]
GOOD = """\
sinks:
  pager: {kind: webhook, url: "https://example.org/hook", key_env: PAGER_KEY}
  chat: {kind: slack, url_env: SLACK_URL}
  mail: {kind: email, server: "smtp.example.org", from: holdfast@example.org, to: [a@example.org, "Night <night@example.org>"], user: me, password_file: pass}
  am: {kind: alertmanager, url: "http://127.0.0.1:9093/", resend: 30s}
routes:
  - {name: night, match: [severity=critical, "node!=test-1"], to: [pager, mail], continue: true, group_by: [node], group_wait: 5s, repeat_interval: 1h}
  - {to: [chat, am]}
inhibit:
  - {when: kind=silent_node, mute: [kind!=silent_node], equal: [node]}
silences:
  - {match: [node=old-1], until: 2026-03-01T08:00:00Z, because: being repaired}
labels: {cluster: a}
link: https://dash.example.org/{job}/{incident}
give_up_after: 12h
"""


def good(text: str) -> Configuration:
    read = read_alerts(text, "alerts.yaml")
    assert read.configuration is not None, [str(problem) for problem in read.problems]
    return read.configuration


def problems(text: str) -> list[str]:
    read = read_alerts(text, "alerts.yaml")
    assert read.configuration is None
    return [str(problem) for problem in read.problems]


def changed(before: str, after: str) -> str:
    assert before in GOOD
    return GOOD.replace(before, after)


def test_a_good_one_says_what_is_meant() -> None:
    made = good(GOOD)
    night, rest = made.routes.routes
    assert (night.name, night.to, night.go_on, [str(one) for one in night.match]) == ("night", ("pager", "mail"), True, ["severity=critical", "node!=test-1"])
    assert (night.pace.group_by, night.pace.group_wait_s, night.pace.group_interval_s, night.pace.repeat_interval_s) == (("node",), 5.0, 60.0, 3600.0)
    assert (rest.name, rest.match, rest.pace.group_by) == ("route-2", (), ("kind",))
    mail, am = made.sinks["mail"], made.sinks["am"]
    assert isinstance(mail, Mail)
    assert (mail.host, mail.port, mail.tls) == ("smtp.example.org", 587, Tls.STARTTLS)
    assert isinstance(am, Alertmanager)
    assert made.routes.outlets["am"].resend_s == 30.0
    assert made.routes.outlets["chat"].resend_s is None
    assert made.routes.silences[0].until == 1772352000.0
    assert made.give_up_after_s == 43200.0
    assert made.routes.labels == {"cluster": "a"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "alerts.yaml:1: the file is empty"),
        ("- a", "alerts.yaml:1: the file is a mapping with `sinks` and `routes`; seen a list"),
        ("sinks: {a: {kind: slack, url_env: X}}", "alerts.yaml:1: `routes` is missing"),
        (changed("kind: slack", "kind: slak"), "alerts.yaml:3: chat: unknown kind of sink 'slak'; did you mean 'slack'?"),
        (changed("url_env: SLACK_URL", "url: https://hooks.example.org/T0/HIDDEN"), "chat: a secret is not written here: name an environment variable with"),
        (changed(", key_env: PAGER_KEY", ""), "alerts.yaml:2: pager: a webhook is signed"),
        (changed("key_env: PAGER_KEY", "key: HIDDEN"), "alerts.yaml:2: pager: a secret is not written here: name an environment variable with `key_env`"),
        (changed("key_env: PAGER_KEY", "key_env: K, key_file: F"), "only one of `key_env` and `key_file` can be meant"),
        (changed("https://example.org/hook", "https://me:HIDDEN@example.org/hook"), "pager: `url` has a user or password before the @"),
        (changed("https://example.org/hook", "ftp://example.org/hook"), "pager: `url` is no address of http or https"),
        (changed("password_file: pass", "password: HIDDEN"), "alerts.yaml:4: mail: a secret is not written here"),
        (changed(", password_file: pass", ""), "mail: `user` and `password_env` or `password_file` go together"),
        (changed("from: holdfast@example.org", "from: holdfast"), "mail: 'holdfast' is no address; expected one such as oncall@example.org"),
        (changed('"smtp.example.org"', '"smtp.example.org:smtp"'), "mail: `server` is a host, or a host and a port"),
        (changed("user: me", "tls: none, user: me"), "with `tls: none` the password would travel in the clear"),
        (changed("user: me", "tls: ssl, user: me"), "unknown tls 'ssl'; expected one of starttls, tls, none"),
        (changed('url: "http://127.0.0.1:9093/"', 'url: "http://am.example.org", token_env: T'), "am: `url` is of http, over which a secret would travel"),
        (changed("resend: 30s", "resend: 30"), "am: '30' is not a duration such as 30s, 5m or 1h"),
        (changed("to: [pager, mail]", "to: [pagr]"), "alerts.yaml:7: there is no sink 'pagr'; did you mean 'pager'?"),
        (changed("severity=critical", "severity=criticl"), "there is no severity 'criticl'; expected one of info, warning, critical"),
        (changed("severity=critical", "critical"), "'critical' is no matcher; expected a label, an operator and a value"),
        (changed("severity=critical", "node>=3"), "only severity has an order"),
        (changed("severity=critical", "kind=~(slow"), "'(slow' is no regular expression"),
        (changed("group_wait: 5s", "group_wiat: 5s"), "alerts.yaml:7: unknown key 'group_wiat'; did you mean 'group_wait'?"),
        (changed("repeat_interval: 1h", "repeat_interval: 10s"), "`repeat_interval` is shorter than `group_interval`"),
        (changed("group_by: [node]", "group_by: [Node]"), "'Node' cannot be a label"),
        (changed("{to: [chat, am]}", "{to: [chat, am], match: kind=x}"), "an alert that matches no route would be sent nowhere"),
        (changed("  - {to: [chat, am]}", "  - {to: [chat, am]}\n  - {to: [chat], match: kind=x}"), "alerts.yaml:9: nothing comes this far: 'route-2'"),
        (changed("name: night", "name: route-2"), "the name 'route-2' is used by two routes"),
        (changed("until: 2026-03-01T08:00:00Z", "until: soon"), "'soon' is no time; expected one such as 2026-03-01T08:00:00Z"),
        (changed("match: [node=old-1]", "match: []"), "a silence of everything is not taken for meant"),
        (changed("mute: [kind!=silent_node], ", ""), "`mute` is missing"),
        (changed("cluster: a", "job: a"), "'job' cannot be a label"),
        (changed("link: https", "link: gopher"), "`link` is an address of http or https"),
        (changed("labels: {cluster: a}", "sinks: {}"), "the key 'sinks' is written twice"),
        (changed("give_up_after: 12h", "give_up_after: 1s"), "expected a time from 1m to 30d; seen 1s"),
        ("sinks: [a", "not YAML"),
        ("sinks: &a {x: *a}", "an alias (*a) is not understood"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    found = problems(text)
    assert any(said in one for one in found), found
    assert not any("HIDDEN" in one for one in found), "a secret was repeated"


def test_all_that_is_wrong_is_said_at_once() -> None:
    text = GOOD.replace("kind: slack", "kind: slak").replace("to: [pager, mail]", "to: [nobody]").replace("until: 2026-03-01T08:00:00Z", "until: x")
    assert len(problems(text)) == 3


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_written_is_read_or_told_of(data: st.DataObject) -> None:
    """A word of a good file in the place of another, a line too few, something odd: an answer, and no surprise."""
    lines = GOOD.splitlines()
    words = [word for line in lines for word in re.split(r"([,:{}\[\]\s]+)", line) if word.strip()]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(lines) - 1))
        odd = data.draw(st.sampled_from([*words, "", "[]", "{}", "- ", "~", "0001-01-01", "\u0000", "é", "=", "99999999999999999999d"]) | st.text(max_size=8))
        seen = data.draw(st.sampled_from(words))
        lines[place] = data.draw(st.sampled_from(["", odd, lines[place].replace(seen, odd), "  " + lines[place], lines[place] + odd]))
    read = read_alerts("\n".join(lines), "alerts.yaml")
    assert (read.configuration is None) == bool(read.problems)
    assert all(str(problem).startswith("alerts.yaml:") and "\n" not in str(problem) for problem in read.problems)


def test_secrets_that_are_not_there_are_told_of_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLACK_URL", raising=False)
    monkeypatch.setenv("PAGER_KEY", "HIDDEN")
    made = good(GOOD.replace("password_file: pass", f"password_file: {tmp_path / 'pass'}"))
    assert missing_secrets(made) == [
        "chat: the environment variable SLACK_URL is not set",
        f"mail: the file {tmp_path / 'pass'} cannot be read: No such file or directory",
    ]
    (tmp_path / "pass").write_text("HIDDEN\n")
    monkeypatch.setenv("SLACK_URL", "https://hooks.example.org/HIDDEN")
    assert missing_secrets(made) == []
    assert "HIDDEN" not in repr(made)


def test_the_configuration_of_the_page_is_good() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert blocks, "docs/alerts.md has no configuration to copy"
    good(blocks[0])
