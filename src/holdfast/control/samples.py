"""Samples: where the job was, over time, for pictures. Not part of the truth: losing the last second of them loses a pixel.

One line a second; when there are too many, every second one is dropped and the pace halves, so that the file stays small however long the job runs.
"""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.wire.messages import View

SAMPLES_MAX = 8000


class Samples:
    def __init__(self, path: Path, *, every_s: float = 0.5) -> None:
        self._path = path
        self._every_s = every_s
        self._last_at = 0.0
        self._last_step = -1
        self._count = len(path.read_bytes().splitlines()) if path.exists() else 0

    def add(self, view: View) -> None:
        if view.at - self._last_at < self._every_s or (view.step == self._last_step and view.at - self._last_at < 5.0):
            return
        self._last_at, self._last_step = view.at, view.step
        row = {"at": view.at, "step": view.step, "loss": view.loss, "steps_per_s": view.steps_per_s, "generation": view.generation}
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self._count += 1
            if self._count > SAMPLES_MAX:
                self._thin()
        except OSError:
            return  # A full disk costs pictures, not the job.

    def _thin(self) -> None:
        kept = self._path.read_bytes().splitlines(keepends=True)[::2]
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(b"".join(kept))
        fresh.replace(self._path)
        self._count, self._every_s = len(kept), self._every_s * 2
