"""A record: a file to which each result is added as soon as it is there, one line of JSON each, so that a later run does only the rest."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """Of one section; without a path nothing is kept."""

    path: str
    section: str

    def read(self) -> list[dict[str, Any]]:
        path = Path(self.path) if self.path else None
        lines = [json.loads(line, object_pairs_hook=with_tuples) for line in path.read_text().splitlines()] if path and path.exists() else []
        return [line for line in lines if line.pop("section") == self.section]

    def add(self, result: Any) -> None:
        if self.path:
            with open(self.path, "a") as file:  # One short write at the end of it: lanes do not mix.
                file.write(json.dumps({"section": self.section, **asdict(result)}) + "\n")


def with_tuples(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON has lists alone; results hold tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in pairs}
