"""`holdfast alerts`: whether a configuration is good and arrives where it should, what of a job was sent and what waits, and silences."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.alerts_shown import alerts_json, alerts_tables
from holdfast.cli.checkpoints.drawing import print_json, when_text
from holdfast.cli.common import AsJson, Name, NameOrNewest, State
from holdfast.cli.job import hold, is_held, known_job, spec_of
from holdfast.cli.screen import Screen
from holdfast.cli.words import count, one_line
from holdfast.control.alerts.answer import Answer, Verdict
from holdfast.control.alerts.delivery import Sender
from holdfast.control.alerts.loading import load, missing_secrets, read_file
from holdfast.control.alerts.matching import BadMatcher, Matcher, matcher
from holdfast.control.alerts.notification import Notification
from holdfast.control.alerts.outbox import Outbox
from holdfast.control.alerts.reading import Configuration
from holdfast.control.alerts.routes import Route, Silence
from holdfast.detect.rules.document import nearest
from holdfast.detect.rules.units import BadNumber, duration_s, short_duration
from holdfast.domain.alert import Alert, AlertStatus
from holdfast.domain.finding import Severity
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory
from holdfast.settings import state_root

File = Annotated[Path, typer.Argument(metavar="FILE", help="The configuration: see docs/alerts.md.")]
_SILENCE_S_MAX = 30 * 86400.0

app = typer.Typer()


@app.command("check")
def check(file: File, as_json: AsJson = False) -> None:
    """Read a configuration and say what is wrong with it. Exit code 1 when something is."""
    read = read_file(file)
    missing = missing_secrets(read.configuration) if read.configuration is not None else []
    if as_json:
        problems = [{"file": one.file, "line": one.line, "what": one.what} for one in read.problems]
        print_json({"ok": not problems, "problems": problems, "missing": missing, **(_shape(read.configuration) if read.configuration else {})})
    else:
        for problem in read.problems:
            print(one_line(str(problem)))
        for line in missing:
            print(f"not here now, and needed to send: {one_line(line)}")
        shape = read.configuration
        print(f"{count(len(shape.sinks), 'sink')} and {count(len(shape.routes.routes), 'route')} good" if shape else count(len(read.problems), "problem"))
    raise typer.Exit(1 if read.problems else 0)


@app.command("test")
def test(
    file: File,
    route: Annotated[str, typer.Option(metavar="NAME", help="Through this route.", show_default="the one the alert takes")] = "",
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label of the alert, such as severity=critical. May be given often.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send an alert that says it is a test, and say what each sink answered. Exit code 1 when one did not take it."""
    configuration = load(file)
    alert = _test_alert(label or [])
    routes = (_named(configuration, route),) if route else configuration.routes.of(alert)
    names = list(dict.fromkeys(name for one in routes for name in one.to))
    answers = dict(zip(names, _send_to(configuration, names, alert, routes[0].name), strict=True))
    if as_json:
        print_json({"routes": [one.name for one in routes], "ok": all(one.verdict is Verdict.DELIVERED for one in answers.values()),
                    "answers": [{"sink": name, "verdict": one.verdict.value, "said": one.said} for name, one in answers.items()]})  # fmt: skip
    else:
        print(f"by {', '.join(one.name for one in routes)}: " + (count(len(names), "sink") if names else "nowhere, as `to: []` says"))
        for name, one in answers.items():
            print(f"{name} ({configuration.sinks[name].kind}): {one.verdict}: {one_line(one.said)}")
    raise typer.Exit(0 if all(one.verdict is Verdict.DELIVERED for one in answers.values()) else 1)


@app.command("list")
def list_(job: NameOrNewest = "", state: State = None, as_json: AsJson = False) -> None:
    """Show what fires, what waits to be delivered and why, and what was sent, refused or dropped."""
    with_outbox = _outbox(known_job(state_root(state), job, newest=True), read_only=True)
    try:
        print_json(alerts_json(with_outbox, time.time())) if as_json else Screen().print(alerts_tables(with_outbox, time.time()))
    finally:
        with_outbox.close()


@app.command("silence")
def silence(
    job: Name,
    match: Annotated[list[str] | None, typer.Option(metavar="MATCHER", help="What to be silent about, such as node=gpu-7. Of several, all must match.")] = None,
    span: Annotated[str, typer.Option("--for", metavar="TIME", help="How long: 30m, 2h, 1d.")] = "",
    because: Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever wonders.")] = "",
    end: Annotated[int | None, typer.Option(metavar="ID", help="End this silence instead.")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Send nothing of what matches, for a while. What still fires afterwards is told then."""
    directory, now = _job(state, job), time.time()
    job = directory.job
    if end is None:
        made = Silence(match=_matchers(match or []), until=now + _span(span), because=because)
    outbox = _outbox(directory)
    try:
        if end is not None:
            if not outbox.end_silence(end, now):
                raise UserError(f"job {job!r} has no silence {end} that still holds; `holdfast alerts list {job}` lists them")
            print_json({"job": job, "ended": end}) if as_json else print(f"silence {end} is ended")
            return
        id = outbox.silence(made)
    finally:
        outbox.close()
    if as_json:
        print_json({"job": job, "silence": id, "match": [str(one) for one in made.match], "until": made.until, "because": because})
    else:
        ends = f"`holdfast alerts silence {job} --end {id}` ends it before"
        print(f"silence {id}: nothing is sent of {one_line(str(made))} until {when_text(made.until)}; {ends}")


@app.command("send")
def send(
    job: Name,
    wait: Annotated[str, typer.Option("--within", metavar="TIME", help="How long to try.")] = "30s",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Deliver what a job that ended could not. Exit code 1 when something is left."""
    directory, within_s = _job(state, job), _span(wait)
    job = directory.job
    if is_held(directory):
        raise UserError(f"job {job!r} is running, and sends by itself; `holdfast alerts list {job}` shows what waits")
    spec = spec_of(directory)
    if not spec.alerts:
        raise UserError(f"job {job!r} was run without --alerts and HOLDFAST_ALERTS: nothing says where to send")
    configuration = load(Path(spec.alerts))
    with hold(directory):
        said, left = _deliver(directory, configuration, within_s)
    if as_json:
        print_json({"job": job, "left": left, "said": said})
    else:
        print("\n".join([*map(one_line, said), f"{job}: " + (f"{count(left, 'notification')} left" if left else "nothing is left")]))
    raise typer.Exit(1 if left else 0)


def _deliver(directory: JobDirectory, configuration: Configuration, within_s: float) -> tuple[list[str], int]:
    outbox, said = _outbox(directory), list[str]()
    senders = [Sender(sink, outbox, note=said.append, give_up_after_s=configuration.give_up_after_s) for sink in configuration.sinks.values()]
    for sender in senders:
        sender.hurry()
        sender.start()
    deadline = time.monotonic() + within_s
    while outbox.waiting() and time.monotonic() < deadline:
        time.sleep(0.05)
    for sender in senders:
        sender.stop()
    return said, len(outbox.waiting())


def _send_to(configuration: Configuration, names: list[str], alert: Alert, route: str) -> list[Answer]:
    """All at once: a sink that hangs does not keep the others' answers from being seen."""
    now = time.time()

    def one(name: str) -> Answer:
        made = Notification(id=f"test-{secrets.token_hex(8)}", job=alert.job, sink=name, route=route, group="test", at=now, alerts=(alert,), test=True)
        return configuration.sinks[name].send(made, now)

    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        return list(pool.map(one, names))


def _test_alert(given: list[str]) -> Alert:
    own = dict(_label(text) for text in given)
    severity = own.get("severity", Severity.WARNING)
    if severity not in list(Severity):
        raise UserError(f"there is no severity {severity!r}; expected one of {', '.join(Severity)}")
    labels = {"job": "holdfast-test", "kind": "test", "severity": severity, "test": "true", **own}
    return Alert(
        fingerprint=secrets.token_hex(8), job=labels["job"], incident=0, status=AlertStatus.FIRING, severity=Severity(severity), kind=labels["kind"],
        starts_at=time.time(), labels=labels, summary="This is a test of alerts by `holdfast alerts test`: nothing is wrong.",
    )  # fmt: skip


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier() or not value.isprintable():
        raise UserError(f"--label is a name and a value such as severity=critical; seen {text!r}")
    return name, value


def _named(configuration: Configuration, name: str) -> Route:
    routes = {one.name: one for one in configuration.routes.routes}
    if name not in routes:
        raise UserError(f"there is no route {name!r}{nearest(name, routes) or '; there are ' + ', '.join(routes)}")
    return routes[name]


def _matchers(texts: list[str]) -> tuple[Matcher, ...]:
    if not texts:
        raise UserError("--match is missing: say what to be silent about, such as --match node=gpu-7")
    try:
        return tuple(matcher(text) for text in texts)
    except BadMatcher as error:
        raise UserError(f"--match: {error}") from error


def _span(text: str) -> float:
    if not text:
        raise UserError("--for is missing: a silence has an end, such as --for 2h")
    try:
        seconds = duration_s(text)
    except BadNumber as error:
        raise UserError(str(error)) from error
    if not 0 < seconds <= _SILENCE_S_MAX:
        raise UserError(f"expected a time up to {short_duration(_SILENCE_S_MAX)}; seen {text}")
    return seconds


def _job(state: Path | None, job: str) -> JobDirectory:
    return known_job(state_root(state), job)


def _outbox(directory: JobDirectory, *, read_only: bool = False) -> Outbox:
    if not directory.alerts.exists():
        raise UserError(f"job {directory.job!r} tells nobody of incidents: it was run without --alerts and HOLDFAST_ALERTS")
    return Outbox(directory.alerts, read_only=read_only)


def _shape(configuration: Configuration) -> dict[str, Any]:
    routes = [{"name": one.name, "match": [str(each) for each in one.match], "to": list(one.to), "continue": one.go_on} for one in configuration.routes.routes]
    return {"sinks": [{"name": one.name, "kind": one.kind} for one in configuration.sinks.values()], "routes": routes}
