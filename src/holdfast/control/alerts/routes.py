"""Who is told what, how often, and what mutes what: the part of a person's configuration that `routing` decides by. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.control.alerts.matching import Matcher, all_match
from holdfast.domain.alert import Alert


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    group_by: tuple[str, ...] = ("kind",)
    group_wait_s: float = 10.0  # From the first news of a group: what belongs together comes within seconds.
    group_interval_s: float = 60.0  # Between two messages of one group, when there is news.
    repeat_interval_s: float = 4 * 3600.0  # The same, when there is none and something still fires.


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    name: str
    to: tuple[str, ...]  # Names of sinks.
    match: tuple[Matcher, ...] = ()
    pace: Pace = Pace()
    go_on: bool = False  # The routes below are asked too.


@dataclass(frozen=True, slots=True, kw_only=True)
class Inhibition:
    """While an alert of `when` fires, those of `mute` say nothing, if both have the labels of `equal` and they are the same."""

    when: tuple[Matcher, ...]
    mute: tuple[Matcher, ...]
    equal: tuple[str, ...] = ()

    def mutes(self, source: Alert, target: Alert) -> bool:
        # What explains others is not muted as one of them, or two lost nodes would mute each other.
        if not source.fires or all_match(self.when, target.labels) or not all_match(self.mute, target.labels):
            return False
        return all_match(self.when, source.labels) and all(source.labels.get(name, "") == target.labels.get(name) for name in self.equal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    match: tuple[Matcher, ...]
    until: float
    because: str = ""
    id: int = 0  # 0: it stands in the configuration.

    def mutes(self, alert: Alert, now: float) -> bool:
        return now < self.until and all_match(self.match, alert.labels)

    def __str__(self) -> str:
        return ", ".join(map(str, self.match))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """A sink, as far as routing has to know it."""

    name: str
    send_resolved: bool = True
    resend_s: float | None = None  # It wants to be told all that fires, this often, and does the rest itself: Alertmanager.


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    outlets: Mapping[str, Outlet]
    routes: tuple[Route, ...]
    inhibitions: tuple[Inhibition, ...] = ()
    silences: tuple[Silence, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)  # Put on every alert.

    def of(self, alert: Alert) -> tuple[Route, ...]:
        """The routes an alert takes: the one its rule names, if there is one of that name, else the first that matches; and on, where a route says so."""
        named = [route for route in self.routes if route.name == alert.labels.get("route")]
        taken: list[Route] = []
        for route in (*named, *(route for route in self.routes if route not in named)):
            if route in named or all_match(route.match, alert.labels):
                taken.append(route)
                if not route.go_on:
                    break
        return tuple(taken)
