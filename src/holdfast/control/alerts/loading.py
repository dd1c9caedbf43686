"""The configuration in force: the file a job was given. It is opened here; what it says is read in `reading`."""

from __future__ import annotations

from pathlib import Path

from holdfast.control.alerts.reading import Configuration, Read, read_alerts
from holdfast.control.alerts.secret import SecretMissing
from holdfast.control.rulebook import text_of
from holdfast.errors import UserError


def read_file(path: Path) -> Read:
    return read_alerts(text_of(path), str(path))


def load(path: Path) -> Configuration:
    read = read_file(path)
    if read.configuration is None:
        raise UserError("the alerts cannot be used:\n" + "\n".join(f"  {problem}" for problem in read.problems))
    return read.configuration


def missing_secrets(configuration: Configuration) -> list[str]:
    """A sentence for each that is not where the configuration says."""
    said: list[str] = []
    for name, sink in configuration.sinks.items():
        for secret in sink.secrets:
            try:
                secret.read()
            except SecretMissing as error:
                said.append(f"{name}: {error}")
    return said
