"""A file of settings, YAML or JSON, read field by field. What is wrong is told with file, line and field, what was seen, and what was expected."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from holdfast.detect.rules.document import Problem, Value, documents, nearest
from holdfast.errors import UserError

_MOST = 1e15  # Of any number, either way: what is added up and multiplied is still a number.


class FileRefused(UserError):
    """A file that does not say what it should."""


def document_of(path: Path, expected: str) -> Value:
    """What is in this file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileRefused(f"{path} cannot be read: {error}; expected YAML or JSON with {expected}") from error
    found = documents(text, str(path))
    if isinstance(found, Problem):
        raise FileRefused(f"{str(found).rstrip('.')}; expected YAML or JSON with {expected}")
    return found


class Fields:
    def __init__(self, file: str) -> None:
        self.file = file

    @contextmanager
    def at_line(self, line: int) -> Iterator[None]:
        """What is refused in here is refused there."""
        try:
            yield
        except UserError as error:
            raise FileRefused(f"{self.file}:{line}: {error}") from error

    def refuse(self, line: int, what: str) -> NoReturn:
        raise FileRefused(f"{self.file}:{line}: {what}")

    def fields(self, value: Value, known: Collection[str], what: str) -> dict[str, Value]:
        if value.fields is None:
            self.refuse(value.line, f"{what} is {value.kind}; expected a mapping with {', '.join(known)}")
        for key, line in value.twice.items():
            self.refuse(line, f"the key {key!r} is written twice; leave one out")
        for key, one in (value.fields or {}).items():
            if key not in known:
                self.refuse(one.line, f"{what} has the unknown key {key!r}{nearest(key, known) or '; expected one of ' + ', '.join(known)}")
        return value.fields or {}

    def items(self, value: Value | None, name: str) -> list[Value]:
        if value is not None and value.items is None:
            self.refuse(value.line, f"{name} is {value.kind}; expected a list")
        return (value.items or []) if value is not None else []

    def text(self, fields: dict[str, Value], key: str, needed: Value | None) -> str:
        value = fields.get(key)
        if value is None and needed is None:
            return ""
        text = (value.text or "").strip() if value is not None else ""
        if not text or not text.isprintable():
            line = value.line if value is not None else needed.line if needed is not None else 1
            self.refuse(line, f"{key} is {'missing' if value is None else repr(value.text) if value.text is not None else value.kind}; expected a name")
        return text

    def number(self, value: Value, key: str, *, least: float = -_MOST, most: float = _MOST) -> float:
        try:
            number = float(value.text or "")
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            bound = f" of {most:,.0f} or less" if number > most else f" of {least:g} or more" if least > -_MOST or number < least else ""
            self.refuse(value.line, f"{key} is {value.text if value.text is not None else value.kind!r}; expected a number{bound}")
        return number

    def whole(self, fields: dict[str, Value], key: str, default: int | None, *, least: int = 0, most: int = int(_MOST), where: Value | None = None) -> int:
        value = fields.get(key)
        if value is None:
            if default is None:
                self.refuse(where.line if where is not None else 1, f"{key} is missing; expected a whole number of {least} or more")
            return default or 0
        number = self.number(value, key)
        if number != int(number) or not least <= number <= most:
            bound = f"from {least} to {most:,}" if number > most else f"of {least} or more"
            self.refuse(value.line, f"{key} is {value.text}; expected a whole number {bound}")
        return int(number)

    def yes(self, fields: dict[str, Value], key: str, default: bool) -> bool:
        return self.choice(fields, key, str(default).lower(), ("true", "false")) == "true"

    def choice(self, fields: dict[str, Value], key: str, default: str, known: tuple[str, ...]) -> str:
        value = fields.get(key)
        text = default if value is None else (value.text or "").strip().lower()
        if text not in known:
            self.refuse(value.line if value is not None else 1, f"{key} is {text!r}; expected {' or '.join(known)}")
        return text
