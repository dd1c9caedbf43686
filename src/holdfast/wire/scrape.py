"""The door for scrapers: one page, `GET /metrics`, over HTTP or HTTPS, and nothing else.

    request line and headers   within 5 s and 8 KiB           else 408, 431
    method, path               GET /metrics                   else 405, 404
    Host, Origin               an address or a name of ours;  else 421, 403: a page of another site, also one whose name was made to point here,
                               no origin                      is not answered
    Authorization              Bearer, when there is a token  else 401
    the page                   piece by piece, within 20 s    else cut off; whoever reads slowly waits alone
    connections                16 at a time                   else 503

What asks must not harm what is asked about: nothing here raises into its caller, and between two pieces others have their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from holdfast.domain.job import MetricsAt
from holdfast.errors import UserError
from holdfast.wire.exposition import OPENMETRICS, TEXT, wants_openmetrics

PATH: Final = "/metrics"
HEADER_BYTES_MAX: Final = 8 << 10
HEADERS_WITHIN_S: Final = 5.0
SENT_WITHIN_S: Final = 20.0
CONNECTIONS_MAX: Final = 16
TOKEN_LETTERS_MIN: Final = 16
_TRY_AGAIN_S: Final = 5.0
_REASONS: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout",
    421: "Misdirected Request", 431: "Request Header Fields Too Large", 503: "Service Unavailable",
}  # fmt: skip

Page = Callable[[bool], Iterator[str]]  # Whether as OpenMetrics, to its pieces.


async def keep_open(at: MetricsAt, port: int, page: Page, *, say: Callable[[str], None], url_file: Path | None = None) -> None:
    """Answer until cancelled. What is in the way, such as a port that somebody else has, is told once and tried again: a job is not ended for it.

    With a `url_file` a free port is kept for the next process that opens the same door, as far as it is still free then.
    """
    before, told = _port_in(url_file) if url_file is not None and not port else 0, False
    while True:
        try:
            server, url = await Door(at, page).open(before or port)
        except (OSError, UserError) as error:
            if before:
                before = 0
                continue
            if not told:
                say(f"nobody answers at {at.host} port {port} for metrics: {error} The job goes on, and it is tried again")
                told = True
            await asyncio.sleep(_TRY_AGAIN_S)
            continue
        say(f"metrics at {url}")
        if url_file is not None:
            with contextlib.suppress(OSError):
                url_file.write_text(url)
        async with server:
            await server.serve_forever()


def _port_in(url_file: Path) -> int:
    try:
        return int(url_file.read_text().removesuffix(PATH).rpartition(":")[2])
    except (OSError, ValueError):
        return 0


class _Refused(Exception):
    def __init__(self, status: int, because: str) -> None:
        super().__init__(because)
        self.status = status


class Door:
    """Answers with `page`. The files of `at` are read here, and raise a `UserError` when they are no good."""

    def __init__(self, at: MetricsAt, page: Page) -> None:
        self._at, self._page = at, page
        self._token = token_in(at.token_file) if at.token_file else ""
        self._tls = tls_from(at.cert_file, at.key_file) if at.cert_file else None
        name = socket.gethostname().lower()
        self._names = {"localhost", name, name.partition(".")[0]}
        self._open = 0

    async def open(self, port: int) -> tuple[asyncio.Server, str]:
        """Listen; the address to give to Prometheus comes back. Raises OSError when the port is taken."""
        server = await asyncio.start_server(
            self._accepted, self._at.host, port, limit=HEADER_BYTES_MAX, ssl=self._tls, ssl_handshake_timeout=HEADERS_WITHIN_S if self._tls else None
        )
        host = f"[{self._at.host}]" if ":" in self._at.host else self._at.host
        return server, f"{'https' if self._tls else 'http'}://{host}:{server.sockets[0].getsockname()[1]}{PATH}"

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(HEADERS_WITHIN_S + SENT_WITHIN_S):
                await self._answer(reader, writer)
        except (OSError, TimeoutError):
            writer.transport.abort()  # What it has not taken by now is not kept for it.
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._open > CONNECTIONS_MAX:
                raise _Refused(503, f"more than {CONNECTIONS_MAX} connections at a time")
            version, headers = self._checked(await _request(reader))
        except _Refused as refused:
            text = f"{refused}\n".encode()
            more = {401: "WWW-Authenticate: Bearer\r\n", 405: "Allow: GET\r\n"}.get(refused.status, "")
            writer.write(_head(refused.status, f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}\r\n{more}") + text)
            await writer.drain()
            if refused.status == 431:
                await _rest(reader)
            return
        openmetrics, chunked = wants_openmetrics(headers.get("accept", "")), version == "HTTP/1.1"
        kind = OPENMETRICS if openmetrics else TEXT
        writer.write(_head(200, f"Content-Type: {kind}\r\n" + ("Transfer-Encoding: chunked\r\n" if chunked else "")))
        for piece in self._page(openmetrics):
            data = piece.encode(errors="replace")  # A path may hold what is not text.
            writer.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n" if chunked else b"")
        await writer.drain()

    def _checked(self, request: tuple[str, str, str, dict[str, str]]) -> tuple[str, dict[str, str]]:
        method, path, version, headers = request
        if "origin" in headers:
            raise _Refused(403, "a page of another site has no business here")
        if not self._is_ours(headers.get("host", "")):
            raise _Refused(421, f"this is not {headers.get('host', '')[:100]!r}; ask by address, or as localhost")
        given = headers.get("authorization", "").encode()
        if self._token and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise _Refused(401, "the token is missing or wrong; send Authorization: Bearer and the content of the token file")
        if method != "GET":
            raise _Refused(405, f"only GET, not {method[:20]}")
        if path.partition("?")[0] != PATH:
            raise _Refused(404, f"there is only {PATH}")
        return version, headers

    def _is_ours(self, host: str) -> bool:
        """An address cannot be somebody else's name for us. Whoever has the token may use any name."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").lower()
        if self._token or name in self._names:
            return True
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return False


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, str, dict[str, str]]:
    """Method, path, version, headers by lower-case name."""
    try:
        async with asyncio.timeout(HEADERS_WITHIN_S):
            raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Refused(431, f"the headers are longer than {HEADER_BYTES_MAX} bytes") from None
    except TimeoutError:
        raise _Refused(408, f"no whole request within {HEADERS_WITHIN_S:g} s") from None
    except asyncio.IncompleteReadError:
        raise ConnectionResetError from None
    first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise _Refused(400, "this is not HTTP/1.0 or HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or (name.lower() == "host" and "host" in headers):
            raise _Refused(400, "a header cannot be read")
        headers[name.lower()] = value.strip()
    return words[0], words[1], words[2], headers


async def _rest(reader: asyncio.StreamReader) -> None:
    """What is still on its way is taken for a moment: closing on it would take the answer back."""
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(1.0):
            while await reader.read(HEADER_BYTES_MAX):
                pass


def _head(status: int, lines: str) -> bytes:
    return f"HTTP/1.1 {status} {_REASONS[status]}\r\n{lines}Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n".encode()


def token_in(file: str) -> str:
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the token file {file} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}.") from error
    if len(token) < TOKEN_LETTERS_MIN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(f"the token in {file} is no good: expected a word of at least {TOKEN_LETTERS_MIN} letters. `openssl rand -hex 32 > {file}` makes one.")
    return token


def tls_from(cert_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"the certificate {cert_file} and the key {key_file} cannot be used: {error.strerror or error}. Expected both in PEM.") from error
    return context
