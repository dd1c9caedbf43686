"""What a person wrote, value by value, each with the line to point at when it is wrong."""

from __future__ import annotations

from holdfast.control.alerts.secret import Secret
from holdfast.detect.rules.document import Problem, Value, nearest
from holdfast.detect.rules.units import BadNumber, duration_s, short_duration

_LONGEST_S = 30 * 86400.0


class Bad(Exception):
    """This part cannot be read; what is around it can."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line, self.what = line, what


class Written:
    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def say(self, line: int, what: str) -> None:
        self.problems.append(Problem(file=self.file, line=line, what=what))

    def fields(self, value: Value, known: tuple[str, ...], what: str) -> dict[str, Value]:
        """Of a mapping, those that are known; the others are told of."""
        if value.fields is None:
            raise Bad(value.line, f"{what}; seen {value.kind}")
        entries = self.entries(value)
        for key, one in entries.items():
            if key not in known:
                self.say(one.line, f"unknown key {key!r}{nearest(key, known) or '; expected one of ' + ', '.join(known)}")
        return {key: one for key, one in entries.items() if key in known}

    def entries(self, value: Value) -> dict[str, Value]:
        for key, line in value.twice.items():
            self.say(line, f"the key {key!r} is written twice")
        return value.fields or {}

    def text(self, value: Value) -> str:
        if value.text is None:
            raise Bad(value.line, f"expected text; seen {value.kind}")
        text = value.text.strip()
        if not text.isprintable():
            raise Bad(value.line, "expected one line of text; seen control characters in it")
        return text

    def texts(self, value: Value) -> tuple[str, ...]:
        """A list, or one of it."""
        if value.fields is not None:
            raise Bad(value.line, "expected a list; seen a mapping")
        return tuple(self.text(one) for one in value.items) if value.items is not None else (self.text(value),)

    def yes(self, value: Value) -> bool:
        text = self.text(value).lower()
        if text not in ("true", "false"):
            raise Bad(value.line, f"expected true or false; seen {text!r}")
        return text == "true"

    def one_of(self, value: Value, known: tuple[str, ...], what: str) -> str:
        text = self.text(value)
        if text not in known:
            raise Bad(value.line, f"unknown {what} {text!r}{nearest(text, known) or '; expected one of ' + ', '.join(known)}")
        return text

    def span(self, value: Value | None, default_s: float, *, least_s: float = 0.0) -> float:
        if value is None:
            return default_s
        try:
            seconds = duration_s(self.text(value))
        except BadNumber as bad:
            raise Bad(value.line, str(bad)) from bad
        if not least_s <= seconds <= _LONGEST_S:
            raise Bad(value.line, f"expected a time from {short_duration(least_s)} to {short_duration(_LONGEST_S)}; seen {self.text(value)}")
        return seconds

    def secret(self, fields: dict[str, Value], name: str, *, plain: bool = False) -> Secret | None:
        """`name_env` or `name_file`; with `plain`, `name` itself too. What was written in the place of one is not repeated."""
        ways = [way for way in (name, f"{name}_env", f"{name}_file") if way in fields]
        if not ways:
            return None
        value = fields[ways[-1]]
        if len(ways) > 1:
            raise Bad(value.line, f"only one of {' and '.join(f'`{way}`' for way in ways)} can be meant")
        if ways == [name]:
            if not plain:
                raise Bad(value.line, f"a secret is not written here: name an environment variable with `{name}_env`, or a file with `{name}_file`")
            return Secret(plain=self.text(value))
        text = self.text(value)
        if not text:
            raise Bad(value.line, f"`{ways[0]}` is empty; expected the name of {'an environment variable' if ways[0].endswith('_env') else 'a file'}")
        return Secret(env=text) if ways[0].endswith("_env") else Secret(file=text)
