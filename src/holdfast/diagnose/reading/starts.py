"""Where a run starts: a file in append mode holds several, and only the last of them is being asked about."""

from __future__ import annotations

import re
from typing import Final

from holdfast.diagnose.reading.line import Line

_BANNER: Final = re.compile(
    r"Setting OMP_NUM_THREADS environment variable|\*{3,} Running training|\bNamespace\(|^cmd = |using world size: \d+|SLURM_JOB_ID ?[=:]"
    r"|\bStarting (?:training|run|job|elastic_operator|worker|distributed|new run)\b(?!.*epoch)|\bTraining (?:is )?(?:started|starting|begins)\b"
    r"|will restart worker group|\bRestarting (?:training|worker|workers|job|from|all)\b|starting workers for entrypoint|Launching (?:training|job|command)"
    r"|^\$ |^\+ (?:python|torchrun|srun|accelerate|deepspeed)\b|Initializing distributed: GLOBAL_RANK|\blaunch\.py:\d+:main\b|WORLD INFO DICT"
    r"|wandb: Tracking run|wandb: Run data is saved|^Job (?:started|starting)|^={3,} ?(?:job|run|attempt) (?:start|\d)",
    re.IGNORECASE,
)
_PER_FILE_MAX: Final = 200
_ALL_MAX: Final = 20_000


class Starts:
    def __init__(self) -> None:
        self._found: list[tuple[str, int]] = []
        self._path = ""
        self._quiet = True
        self._in_file = 0

    def file(self, path: str) -> None:
        """A file is a run from its first line on."""
        self._path, self._quiet, self._in_file = path, True, 0
        self._add(1)

    def happened(self) -> None:
        """Progress or an error: what starts after it is another run."""
        self._quiet = False

    def see(self, line: Line) -> None:
        """Of the several lines a start prints the first one counts."""
        if not self._quiet and _BANNER.search(line.text):
            self._quiet = True
            self._add(line.number)

    def all(self) -> tuple[tuple[str, int], ...]:
        return tuple(self._found)

    def _add(self, number: int) -> None:
        self._in_file += 1
        if self._in_file > _PER_FILE_MAX and self._found[-1][0] == self._path:
            self._found[-1] = (self._path, number)
        elif len(self._found) < _ALL_MAX:
            self._found.append((self._path, number))
