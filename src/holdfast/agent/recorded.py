"""Effects, recorded before they are performed: so that one that is sent again is not performed again.

One line when an effect is begun, synced before anything is done; one more with its answer. An effect that was begun and has no answer is one during
which the agent died: the agent then looks at what really runs and answers from that.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from holdfast.domain.effect import Effect, StartGang


class Recorded:
    def __init__(self, path: Path) -> None:
        self._answers: dict[str, dict[str, Any] | None] = {}
        self._last_start: tuple[int, tuple[int, ...], str] = (0, (), "")
        self.rejoined = False  # Ranks of the generation before it lived on into that one, with what they held.
        if path.exists():
            for line in path.read_text().splitlines():
                self._take(line)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _take(self, line: str) -> None:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            return  # The last line of an agent that died while writing it: nothing was begun.
        self._answers[row["id"]] = row.get("answer", self._answers.get(row["id"]))
        if "ranks" in row:
            self._last_start = (row["generation"], tuple(row["ranks"]), row["restore"])
            self.rejoined = row.get("kept", False)

    def begin(self, effect: Effect) -> None:
        row = {"id": effect.id, "kind": type(effect).__name__, "generation": effect.generation}
        if isinstance(effect, StartGang):
            self._last_start, self.rejoined = (effect.generation, effect.ranks, effect.restore), effect.rejoin and bool(effect.kept)
            row |= {"ranks": list(effect.ranks), "restore": effect.restore, "kept": self.rejoined}
        self._write(row)
        os.fdatasync(self._fd)
        self._answers.setdefault(effect.id, None)

    def answer(self, id: str, answer: dict[str, Any]) -> None:
        """Not synced: it has to survive this process; after the loss of the machine nothing of what was started is left either."""
        self._write({"id": id, "answer": answer})
        self._answers[id] = answer

    def last_start(self) -> tuple[int, tuple[int, ...], str]:
        """The newest generation this node was told to start, its ranks, and what they restore."""
        return self._last_start

    def was_begun(self, id: str) -> bool:
        return id in self._answers

    def answer_of(self, id: str) -> dict[str, Any] | None:
        return self._answers.get(id)

    def _write(self, row: dict[str, Any]) -> None:
        os.write(self._fd, json.dumps(row).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)
