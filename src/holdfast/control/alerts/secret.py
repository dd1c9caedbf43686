"""Secrets: keys, passwords and addresses that let whoever knows them in. They are named, read when they are used, and never shown."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_SHORTEST = 4  # What is shorter stands in too many words to be taken out of a sentence.


class SecretMissing(Exception):
    """It is not where the configuration says; the message says where that is."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a value is: in an environment variable, in a file, or, for what is no secret, right here."""

    env: str = ""
    file: str = ""
    plain: str = ""

    def read(self) -> str:
        if self.env:
            value = os.environ.get(self.env, "")
            if not value:
                raise SecretMissing(f"the environment variable {self.env} is not set")
            return value
        if self.file:
            try:
                value = Path(self.file).expanduser().read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SecretMissing(f"the file {self.file} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from error
            if not value:
                raise SecretMissing(f"the file {self.file} is empty")
            return value
        return self.plain


def shown_address(url: str) -> str:
    """Scheme and host: the rest of an address may be a key."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an address that cannot be read"
    return f"{parts.scheme}://{host}{port}" if host else "an address without a host"


def redacted(text: str, secrets: Iterable[str]) -> str:
    """What others say may quote what we sent them: that is taken out before it is written down or shown."""
    hidden: set[str] = set()
    for secret in secrets:
        hidden.add(secret)
        if "://" in secret:
            tail = secret.partition("://")[2].partition("/")[2]
            hidden |= {f"/{tail}", tail, *tail.split("/")} if len(tail) >= _SHORTEST else set()
    for one in sorted((one for one in hidden if len(one) >= _SHORTEST), key=len, reverse=True):
        text = text.replace(one, "…")
    return text
