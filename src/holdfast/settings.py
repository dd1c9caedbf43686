"""Settings: the one module that reads the environment of Holdfast itself. Explicit beats environment beats default."""

from __future__ import annotations

import os
from pathlib import Path

STATE_VARIABLE = "HOLDFAST_STATE"
REMOTE_VARIABLE = "HOLDFAST_REMOTE"
ALERTS_VARIABLE = "HOLDFAST_ALERTS"
HANG_LIMIT_VARIABLE = "HOLDFAST_HANG_LIMIT"


def state_root(explicit: Path | None = None) -> Path:
    """Where jobs are kept: `--state`, `HOLDFAST_STATE`, or `holdfast` under the XDG state directory."""
    if explicit is not None:
        return explicit.absolute()
    if os.environ.get(STATE_VARIABLE):
        return Path(os.environ[STATE_VARIABLE]).absolute()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "holdfast"


def remote_root(explicit: str | None = None) -> str:
    """Below which address jobs keep their checkpoints a second time: `--remote`, which may be empty, `HOLDFAST_REMOTE`, or nowhere."""
    return os.environ.get(REMOTE_VARIABLE, "") if explicit is None else explicit


def alerts_file(explicit: str | None = None) -> str:
    """The file that says who is told of incidents: `--alerts`, which may be empty, `HOLDFAST_ALERTS`, or nobody is."""
    return os.environ.get(ALERTS_VARIABLE, "") if explicit is None else explicit


def hang_limit_text(explicit: str | None = None) -> str:
    """How long a rank may stand still before it is taken for hung: `--hang-limit`, `HOLDFAST_HANG_LIMIT`, or as it is learned."""
    return os.environ.get(HANG_LIMIT_VARIABLE, "") if explicit is None else explicit
