"""One HTTP POST, with everything that may go wrong turned into an answer.

http and https only, certificates verified, redirects not followed: an alert goes where its configuration says, and no key is handed on. Every wait has a limit
and at most so much of the reply is read. The proxy of the environment is used, but not for loopback.
"""

from __future__ import annotations

import email.utils
import http.client
import ipaddress
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlsplit

from holdfast.control.alerts.answer import Answer, Verdict
from holdfast.control.alerts.secret import redacted, shown_address

REPLY_BYTES_MAX = 64 * 1024
_SHOWN_CHARS = 200
_TRY_AGAIN = frozenset({408, 425, 429})  # Of 4xx, those that time alone may cure.


class BadAddress(ValueError):
    """What was given is no address to send to; the message does not repeat it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    text: str
    headers: Mapping[str, str]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def check_address(url: str, *, secret: bool = False) -> None:
    """`secret`: what is sent, or the address itself, must not be read by others on the way."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise BadAddress("is no address; expected one such as https://example.org/hook") from None
    if parts.scheme not in ("http", "https") or not host or any(letter.isspace() or not letter.isprintable() for letter in url):
        raise BadAddress("is no address of http or https; expected one such as https://example.org/hook")
    if parts.username is not None or parts.password is not None:
        raise BadAddress("has a user or password before the @; give them in fields of their own")
    if secret and parts.scheme == "http" and not is_loopback(host):
        raise BadAddress("is of http, over which a secret would travel in the clear; use https")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float, ca_file: str = "", secrets: Iterable[str] = (), secret: bool = False
) -> Answer:
    """Send, and say what became of it. `secrets` are taken out of what is said; `secret`: see `check_address`."""
    hidden = tuple(secrets)
    try:
        check_address(url, secret=secret)
        reply = _reply(url, body, headers, timeout_s, ca_file)
    except BadAddress as error:
        return Answer(verdict=Verdict.REFUSED, said=f"the address {error}")
    except (OSError, http.client.HTTPException) as error:
        return Answer(verdict=Verdict.LATER, said=f"{shown_address(url)} {redacted(_why(error), hidden)}")
    return _judged(reply, shown_address(url), hidden)


def _reply(url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, ca_file: str) -> Reply:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if url.startswith("https:"):  # It takes a while to read all certificates of the system, and they may change.
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file or None)))
    if is_loopback(urlsplit(url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))  # This machine is not reached through another.
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(url, data=body, method="POST", headers={"User-Agent": "holdfast", **headers})
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return Reply(status=response.status, text=_read(response, timeout_s), headers=dict(response.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Reply(status=error.code, text=_read(error, timeout_s), headers=dict(error.headers))


def _read(response: Any, timeout_s: float) -> str:
    """Some of it, and not for long: a reply that drips must not hold us. What was answered stands, whatever becomes of the rest."""
    deadline, read = time.monotonic() + timeout_s, b""
    try:
        while len(read) < REPLY_BYTES_MAX and time.monotonic() < deadline:
            more = response.read1(min(4096, REPLY_BYTES_MAX - len(read)))
            if not more:
                break
            read += more
    except (OSError, http.client.HTTPException, AttributeError):
        pass
    return read.decode(errors="replace")


def _judged(reply: Reply, where: str, hidden: tuple[str, ...]) -> Answer:
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in redacted(reply.text, hidden)).split())[:_SHOWN_CHARS]
    said = f"{where} answered {reply.status}" + (f": {text}" if text else "")
    if 200 <= reply.status < 300:
        return Answer(verdict=Verdict.DELIVERED, said=said)
    if 300 <= reply.status < 400:
        to = shown_address(next((value for name, value in reply.headers.items() if name.lower() == "location"), ""))
        said = f"{where} redirects ({reply.status}) to {to}, which is not followed: put the final address into the configuration"
        return Answer(verdict=Verdict.REFUSED, said=said)
    if reply.status >= 500 or reply.status in _TRY_AGAIN:
        return Answer(verdict=Verdict.LATER, said=said, after_s=_retry_after(reply.headers))
    return Answer(verdict=Verdict.REFUSED, said=said)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, or a date."""
    text = next((value for name, value in headers.items() if name.lower() == "retry-after"), "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _why(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception) else error
    if isinstance(reason, TimeoutError):
        return "did not answer in time"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted: {reason.verify_message}"
    if isinstance(reason, OSError) and reason.strerror:
        return f"cannot be reached: {reason.strerror}"
    return f"cannot be reached: {reason or type(reason).__name__}"
