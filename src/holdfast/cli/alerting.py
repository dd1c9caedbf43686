"""The alerts of a job that is about to start: what cannot work is told before anything is started."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import UserError


def checked_alerts(file: str) -> str:
    """The file as it is kept with the job; nothing for nothing."""
    if not file:
        return ""
    from holdfast.control.alerts.loading import load, missing_secrets

    path = Path(file).absolute()
    missing = missing_secrets(load(path))
    if missing:
        raise UserError(f"the alerts of {file} cannot be sent:\n" + "\n".join(f"  {line}" for line in missing))
    return str(path)
