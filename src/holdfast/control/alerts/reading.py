"""Text to configuration. Whatever is wrong is said with file, line, what was seen, what is expected and the nearest valid name; all of it at once.

No value is repeated that may be a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from holdfast.control.alerts.matching import LABEL, BadMatcher, Matcher, matcher
from holdfast.control.alerts.routes import Inhibition, Outlet, Pace, Route, Routes, Silence
from holdfast.control.alerts.sinks import Sink
from holdfast.control.alerts.written import Bad, Written
from holdfast.control.alerts.written_sinks import KINDS, read_sink
from holdfast.detect.rules.document import Problem, Value, documents, nearest

_FILE: Final = ("sinks", "routes", "inhibit", "silences", "labels", "link", "give_up_after")
_ROUTE: Final = ("name", "match", "to", "group_by", "group_wait", "group_interval", "repeat_interval", "continue")
_INHIBIT: Final = ("when", "mute", "equal")
_SILENCE: Final = ("match", "until", "because")
_OURS: Final = frozenset({"job", "incident", "kind", "severity", "node", "rank", "of", "cause", "stands", "route", "alertname", "holdfast_job"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    routes: Routes
    sinks: Mapping[str, Sink]
    give_up_after_s: float = 86400.0  # What could not be delivered for so long is no longer of use.


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a file says. There is a configuration only when there are no problems."""

    configuration: Configuration | None = None
    problems: tuple[Problem, ...] = ()


def read_alerts(text: str, file: str) -> Read:
    document = documents(text, file)
    if isinstance(document, Problem):
        return Read(problems=(document,))
    written = Written(file)
    try:
        configuration = _Reader(written).configuration(document)
    except Bad as bad:
        written.say(bad.line, bad.what)
        configuration = None
    problems = tuple(sorted(written.problems, key=lambda one: one.line))
    return Read(configuration=configuration if not problems else None, problems=problems)


class _Reader:
    def __init__(self, written: Written) -> None:
        self._written = written

    def configuration(self, document: Value) -> Configuration:
        written = self._written
        fields = written.fields(document, _FILE, "the file is a mapping with `sinks` and `routes`")
        link = written.text(fields["link"]) if "link" in fields else ""
        if link and not link.startswith(("http://", "https://")):
            written.say(fields["link"].line, "`link` is an address of http or https, in which {job} and {incident} are replaced")
        for needed in ("sinks", "routes"):
            if needed not in fields:
                raise Bad(document.line, f"`{needed}` is missing")
        sinks = self._sinks(fields["sinks"], link)
        routes = Routes(
            outlets={name: Outlet(name=name, send_resolved=sink.send_resolved, resend_s=sink.resend_s) for name, sink in sinks.items()},
            routes=self._routes(fields["routes"], self._names(fields["sinks"])), labels=self._labels(fields.get("labels")),
            inhibitions=self._each(fields.get("inhibit"), self._inhibition),
            silences=self._each(fields.get("silences"), self._silence),
        )  # fmt: skip
        return Configuration(routes=routes, sinks=sinks, give_up_after_s=written.span(fields.get("give_up_after"), 86400.0, least_s=60.0))

    # Sinks.

    def _names(self, value: Value) -> tuple[str, ...]:
        return tuple(value.fields or ())

    def _sinks(self, value: Value, link: str) -> dict[str, Sink]:
        if not value.fields:
            raise Bad(value.line, f"`sinks` is a mapping of names to sinks, each with a `kind` of {', '.join(KINDS)}; seen {value.kind}")
        found: dict[str, Sink] = {}
        for name, one in self._written.entries(value).items():
            try:
                found[name] = read_sink(self._written, name, one, link)
            except Bad as bad:
                self._written.say(bad.line, f"{name}: {bad.what}")
        return found

    # Routes.

    def _routes(self, value: Value, sinks: tuple[str, ...]) -> tuple[Route, ...]:
        if not value.items:
            raise Bad(value.line, f"`routes` is a list of routes, each with `to`; seen {value.kind}")
        found: list[Route] = []
        for number, one in enumerate(value.items, 1):
            try:
                found.append(self._route(one, number, sinks))
            except Bad as bad:
                self._written.say(bad.line, bad.what)
        names = [route.name for route in found]
        for twice in sorted({name for name in names if names.count(name) > 1}):
            self._written.say(value.line, f"the name {twice!r} is used by two routes")
        self._check_order(value.items, found)
        return tuple(found)

    def _route(self, value: Value, number: int, sinks: tuple[str, ...]) -> Route:
        written = self._written
        fields = written.fields(value, _ROUTE, "a route is a mapping with `to` and mostly `match`")
        if "to" not in fields:
            raise Bad(value.line, "the route has no `to`: the names of sinks, or [] for nowhere")
        to = written.texts(fields["to"])
        for name in to:
            if name not in sinks:
                written.say(fields["to"].line, f"there is no sink {name!r}{nearest(name, sinks) or '; there are ' + ', '.join(sinks)}")
        plain = Pace()
        group_by = written.texts(fields["group_by"]) if "group_by" in fields else plain.group_by
        for label in group_by:
            if not LABEL.fullmatch(label):
                written.say(fields["group_by"].line, f"{label!r} cannot be a label: expected small letters, digits and _")
        pace = Pace(
            group_by=group_by, group_wait_s=written.span(fields.get("group_wait"), plain.group_wait_s),
            group_interval_s=written.span(fields.get("group_interval"), plain.group_interval_s, least_s=1.0),
            repeat_interval_s=written.span(fields.get("repeat_interval"), plain.repeat_interval_s, least_s=1.0),
        )  # fmt: skip
        if pace.repeat_interval_s < pace.group_interval_s:
            line = fields.get("repeat_interval", value).line
            written.say(line, "`repeat_interval` is shorter than `group_interval`: what is old would be told before what is new")
        name = written.text(fields["name"]) if "name" in fields else f"route-{number}"
        go_on = written.yes(fields["continue"]) if "continue" in fields else False
        return Route(name=name, to=to, match=self._matchers(fields.get("match")), pace=pace, go_on=go_on)

    def _check_order(self, items: list[Value], found: list[Route]) -> None:
        """No alert may fall through, and no route may stand where nothing comes by."""
        if len(found) != len(items):
            return  # What could not be read may be the one that is missed.
        last = next((place for place, route in enumerate(found) if not route.match and not route.go_on), None)
        if last is None:
            what = "an alert that matches no route would be sent nowhere: end with a route without `match` (and `to: []`, if nowhere is meant)"
            self._written.say(items[-1].line, what)
        elif last < len(found) - 1:
            self._written.say(items[last + 1].line, f"nothing comes this far: {found[last].name!r} above has no `match` and does not `continue`")

    # What mutes.

    def _each(self, value: Value | None, read: Callable[[Value], T]) -> tuple[T, ...]:
        if value is None:
            return ()
        if value.items is None:
            raise Bad(value.line, f"expected a list; seen {value.kind}")
        found: list[T] = []
        for one in value.items:
            try:
                found.append(read(one))
            except Bad as bad:
                self._written.say(bad.line, bad.what)
        return tuple(found)

    def _inhibition(self, value: Value) -> Inhibition:
        written = self._written
        fields = written.fields(value, _INHIBIT, "an inhibition is a mapping with `when`, `mute` and `equal`")
        for needed in ("when", "mute"):
            if needed not in fields:
                raise Bad(value.line, f"`{needed}` is missing: while an alert of `when` fires, those of `mute` say nothing")
        equal = written.texts(fields["equal"]) if "equal" in fields else ()
        return Inhibition(when=self._matchers(fields["when"]), mute=self._matchers(fields["mute"]), equal=equal)

    def _silence(self, value: Value) -> Silence:
        written = self._written
        fields = written.fields(value, _SILENCE, "a silence is a mapping with `match` and `until`")
        for needed in ("match", "until"):
            if needed not in fields:
                raise Bad(value.line, f"`{needed}` is missing: a silence says what it is about, and when it ends")
        match = self._matchers(fields["match"])
        if not match:
            raise Bad(fields["match"].line, "a silence of everything is not taken for meant; to send nothing, leave the file away")
        return Silence(match=match, until=self._when(fields["until"]), because=written.text(fields["because"]) if "because" in fields else "")

    def _when(self, value: Value) -> float:
        text = self._written.text(value)
        try:
            return datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            raise Bad(value.line, f"{text!r} is no time; expected one such as 2026-03-01T08:00:00Z") from None

    # Small values.

    def _matchers(self, value: Value | None) -> tuple[Matcher, ...]:
        found = []
        for text in self._written.texts(value) if value is not None else ():
            try:
                found.append(matcher(text))
            except BadMatcher as error:
                assert value is not None
                self._written.say(value.line, str(error))
        return tuple(found)

    def _labels(self, value: Value | None) -> dict[str, str]:
        if value is None:
            return {}
        if value.fields is None:
            raise Bad(value.line, f"`labels` is a mapping of names to text; seen {value.kind}")
        for name, one in value.fields.items():
            if not LABEL.fullmatch(name) or name in _OURS:
                raise Bad(one.line, f"{name!r} cannot be a label: expected small letters, digits and _, and none of {', '.join(sorted(_OURS))}")
        return {name: self._written.text(one) for name, one in value.fields.items()}
