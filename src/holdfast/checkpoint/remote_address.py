"""The address of a remote store: `open_remote(url)` gives the store there, `redacted` what may be shown of the address."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.remote import Remote
from holdfast.checkpoint.remote_files import CONNECT_S, Asker, Directory, Limits, Objects, Renamed
from holdfast.errors import UserError

_INSTALL: Final = "pip install 'holdfast[remote]'"
_S3: Final = ("s3", "s3a")
_PACKAGES: Final = {"s3": "s3fs", "webhdfs": "requests"}


def open_remote(url: str, *, limits: Limits | None = None, environ: Mapping[str, str] | None = None) -> Remote:
    """The store at `url`: s3://bucket/path, webhdfs://host:port/path, a path with or without file://, or another that fsspec knows.

    Nothing is asked of it yet. Credentials come from where they always do: the AWS variables and files, HADOOP_USER_NAME, fsspec's own configuration.
    """
    environ = os.environ if environ is None else environ
    limits = limits or limits_from(environ)
    shown = redacted(url)
    ask = Asker(shown, limits)
    scheme, has_scheme, rest = url.partition("://")
    if not has_scheme or scheme in ("file", "local"):
        path = Path(rest if has_scheme else url)
        if not path.is_absolute():
            raise UserError(f"the remote store {shown!r} is no address and no absolute path; expected s3://bucket/path, webhdfs://host:port/path or /a/path.")
        return Remote(Directory(path, ask), shown, limits)
    if scheme in _S3:
        return Remote(_open_s3(rest, shown, ask), shown, limits)
    return Remote(_open_other(url, scheme, shown, ask, environ), shown, limits)


def limits_from(environ: Mapping[str, str]) -> Limits:
    """HOLDFAST_REMOTE_BYTES_PER_S and HOLDFAST_REMOTE_DEADLINE_S; each may be left out."""
    plain = Limits()
    return Limits(
        bytes_per_s=_number(environ, "HOLDFAST_REMOTE_BYTES_PER_S", plain.bytes_per_s),
        deadline_s=_number(environ, "HOLDFAST_REMOTE_DEADLINE_S", plain.deadline_s),
    )


def _number(environ: Mapping[str, str], variable: str, otherwise: float) -> float:
    text = environ.get(variable, "")
    with contextlib.suppress(ValueError):
        if not text or 0 < float(text) < math.inf:
            return float(text) if text else otherwise
    raise UserError(f"{variable} is {text!r}; expected a number above 0, such as 60, or nothing.")


def redacted(url: str) -> str:
    """The address for showing: without parameters, and without anything before the last @, since a password may hold any character."""
    if url.startswith("/"):
        return url
    scheme, separator, rest = url.partition("://")
    _, at, place = (rest if separator else url).rpartition("@")
    return f"{scheme + separator if separator else ''}{'***@' if at else ''}{place.partition('?')[0].partition('#')[0]}"


def _open_s3(rest: str, shown: str, ask: Asker) -> Objects:
    bucket = rest.partition("/")[0]
    if not re.fullmatch(r"[\w.-]+", bucket) or "?" in rest:
        raise UserError(
            f"the remote store {shown} is no address of a bucket; expected s3://bucket/path. Credentials go into AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY or the AWS configuration, another server than Amazon's into AWS_ENDPOINT_URL."
        )
    fs = _make(
        "s3", shown, use_listings_cache=False,
        config_kwargs={
            "connect_timeout": min(CONNECT_S, ask.limits.deadline_s), "read_timeout": ask.limits.deadline_s, "max_pool_connections": 2 * ask.limits.at_a_time,
            "retries": {"max_attempts": 0},  # We try again ourselves, where it can be counted and stopped.
            # Every byte has a checksum of ours; and stores that are not Amazon's often do not know the newer ones of theirs.
            "request_checksum_calculation": "when_required", "response_checksum_validation": "when_required",
        },
    )  # fmt: skip
    fs.retries = 1
    return Objects(fs, rest, ask)


def _open_other(url: str, scheme: str, shown: str, ask: Asker, environ: Mapping[str, str]) -> Renamed:
    given: dict[str, Any] = {}
    if set(url) & set("*?["):
        raise UserError(f"the remote store {shown} has one of * ? [ in its address, which fsspec takes for a pattern; expected none.")
    if scheme in ("webhdfs", "webHDFS"):
        try:
            parts = urlsplit(url)
            user, password = (unquote(text) if text else None for text in (parts.username, parts.password))
            given = {"host": parts.hostname, "port": parts.port or 9870, "user": user or environ.get("HADOOP_USER_NAME"), "password": password}
            if not parts.hostname or not parts.path.strip("/"):
                raise ValueError
        except ValueError:
            raise UserError(f"the remote store {shown} is no address of a WebHDFS directory; expected webhdfs://host:port/path.") from None
        fs = _make(scheme, shown, use_listings_cache=False, **given)
        fs.session.request = _careful(fs.session.request, (min(CONNECT_S, ask.limits.deadline_s), ask.limits.deadline_s))
        return Renamed(fs, parts.path, ask)
    fs = _make(scheme, shown, url=url)
    return Renamed(fs, fs._strip_protocol(url), ask)


def _careful(request: Callable[..., Any], timeout: tuple[float, float]) -> Callable[..., Any]:
    """fsspec sets no timeout, and would wait for a silent server for ever; and it takes what a data node in trouble answers for the file."""

    def careful(*given: Any, **named: Any) -> Any:
        answer = request(*given, **{"timeout": timeout, **named})
        if answer.status_code >= 500:
            answer.raise_for_status()
        return answer

    return careful


def _make(scheme: str, shown: str, *, url: str = "", **given: Any) -> Any:
    """fsspec's file system for this scheme, one of our own; a failure is told without the library's words, which may quote the whole address."""
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(scheme)
        return kind(**(kind._get_kwargs_from_urls(url) if url else {}), **given, skip_instance_cache=True)
    except ImportError as error:
        missing = error.name or _PACKAGES.get(scheme, f"that fsspec asks for with {scheme}://")
        problem = f"needs the package {missing}, which is not installed here. Install it with: {_INSTALL}"
    except ValueError:
        problem = "is of a kind that fsspec does not know; expected s3://bucket/path, webhdfs://host:port/path or a path."
    except Exception as error:
        problem = f"cannot be opened: {type(error).__name__}. Look at its address and at fsspec's configuration for {scheme}."
    raise UserError(f"the remote store {shown} {problem}")
