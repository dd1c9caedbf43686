"""Matchers: `severity>=warning`, `node=gpu-7`, `kind=~"slow_.*"`. As Alertmanager writes them, with an order for severities. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.domain.alert import rank_of
from holdfast.domain.finding import Severity

LABEL: Final = re.compile(r"[a-z_][a-z0-9_]*")
_MATCHER: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*(=~|!~|!=|>=|<=|=|>|<)\s*(.*)", re.DOTALL)
_ORDERED: Final = frozenset({">=", "<=", ">", "<"})


class BadMatcher(ValueError):
    """What was written is no matcher; the message says what was seen and what is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    label: str
    operator: str
    value: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        """A label that is not there is taken to be empty."""
        seen = labels.get(self.label, "")
        match self.operator:
            case "=":
                return seen == self.value
            case "!=":
                return seen != self.value
            case "=~":
                return re.fullmatch(self.value, seen) is not None
            case "!~":
                return re.fullmatch(self.value, seen) is None
            case _:
                return seen in list(Severity) and self._holds(rank_of(Severity(seen)), rank_of(Severity(self.value)))

    def _holds(self, seen: int, limit: int) -> bool:
        match self.operator:
            case ">=":
                return seen >= limit
            case "<=":
                return seen <= limit
            case ">":
                return seen > limit
            case _:
                return seen < limit

    def __str__(self) -> str:
        return f"{self.label}{self.operator}{self.value}"


def all_match(matchers: Iterable[Matcher], labels: Mapping[str, str]) -> bool:
    return all(matcher.matches(labels) for matcher in matchers)


def matcher(text: str) -> Matcher:
    found = _MATCHER.fullmatch(text.strip())
    if found is None:
        raise BadMatcher(f"{text!r} is no matcher; expected a label, an operator and a value, such as severity>=warning, node=gpu-7 or kind=~slow_.*")
    label, operator, value = found[1], found[2], _bare(found[3].strip())
    if not LABEL.fullmatch(label):
        raise BadMatcher(f"{label!r} cannot be a label: expected small letters, digits and _")
    if operator in _ORDERED and label != "severity":
        raise BadMatcher(f"{text!r}: only severity has an order; use =, !=, =~ or !~ for {label}")
    if label == "severity" and operator not in ("=~", "!~") and value not in list(Severity):
        raise BadMatcher(f"there is no severity {value!r}; expected one of {', '.join(Severity)}")
    if operator in ("=~", "!~"):
        try:
            re.compile(value)
        except re.error as error:
            raise BadMatcher(f"{value!r} is no regular expression: {error}") from error
    return Matcher(label=label, operator=operator, value=value)


def _bare(value: str) -> str:
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" else value
