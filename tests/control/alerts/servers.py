"""Real servers on loopback, each on a free port: a web server that answers as told, a mail server with STARTTLS, and Debian's Alertmanager."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
needs_alertmanager = pytest.mark.skipif(ALERTMANAGER is None, reason="needs prometheus-alertmanager (make packages)")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def eventually(look: Callable[[], Any], within_s: float = 20.0) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"did not come true within {within_s:g} s; the last answer was {found!r}"
        time.sleep(0.02)
    return found


@dataclass(frozen=True, slots=True)
class Got:
    path: str
    headers: dict[str, str]  # Names in small letters.
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Reply:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"ok"


class Web:
    """Every POST is kept and answered with the next of `replies`, the last of them for ever; `hang` holds the answer back until it is set."""

    def __init__(self, *replies: Reply, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        self.got: list[Got] = []
        self.replies = list(replies) or [Reply()]
        self.hang: threading.Event | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                reply = outer.replies.pop(0) if len(outer.replies) > 1 else outer.replies[0]
                outer.got.append(Got(self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                if outer.hang is not None:
                    outer.hang.wait(60)
                with contextlib.suppress(OSError):
                    self.send_response(reply.status)
                    for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(reply.body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # Whoever hung up in the middle is what some tests are about.

        self._server = Server(("127.0.0.1", port), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Web:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.hang is not None:
            self.hang.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@dataclass(slots=True)
class Mail:
    sender: str
    to: list[str]
    data: bytes
    tls: bool
    user: str


class Smtp:
    """A mail server: EHLO, STARTTLS, AUTH PLAIN, MAIL, RCPT, DATA, QUIT. It takes mail only after STARTTLS and the right password, if one is set."""

    def __init__(
        self, context: ssl.SSLContext | None = None, *, user: str = "", password: str = "", refuse: dict[str, int] | None = None, at_once: bool = False
    ) -> None:
        self.got: list[Mail] = []
        self.codes: dict[str, int] = {}  # By verb: what to answer instead.
        self._context, self._user, self._password, self._refuse, self._at_once = context, user, password, refuse or {}, at_once
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def __enter__(self) -> Smtp:
        ready = threading.Event()

        async def begin() -> None:
            implicit = self._context if self._at_once else None
            self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0, ssl=implicit)
            self.port = self._server.sockets[0].getsockname()[1]
            ready.set()

        def work() -> None:
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(begin())
            self._loop.run_forever()

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()
        assert ready.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._session(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls, user, sender, to = self._at_once, "", "", list[str]()
        writer.write(b"220 test\r\n")
        while line := (await reader.readline()).decode().strip():
            verb, _, rest = line.partition(" ")
            verb = verb.upper()
            if verb in self.codes:
                writer.write(f"{self.codes[verb]} as told\r\n".encode())
                continue
            match verb:
                case "EHLO" | "HELO":
                    offers = [*(["STARTTLS"] if self._context and not tls else []), *(["AUTH PLAIN"] if self._user else []), "8BITMIME"]
                    writer.write("".join(f"250-{offer}\r\n" for offer in ("test", *offers)).encode() + b"250 HELP\r\n")
                case "STARTTLS":
                    writer.write(b"220 go on\r\n")
                    await writer.drain()
                    assert self._context is not None
                    await writer.start_tls(self._context)
                    tls = True
                case "AUTH":
                    _, name, password = base64.b64decode(rest.split()[-1]).decode().split("\0")
                    user = name if (name, password) == (self._user, self._password) else ""
                    writer.write(b"235 welcome\r\n" if user else b"535 no: " + password.encode() + b"\r\n")
                case "MAIL" if (self._context and not tls) or (self._user and not user):
                    writer.write(b"530 not yet\r\n")
                case "MAIL":
                    sender, to = rest.partition(":")[2].split()[0].strip("<>"), []
                    writer.write(b"250 OK\r\n")
                case "RCPT":
                    address = rest.partition(":")[2].strip("<>")
                    code = self._refuse.get(address, 250)
                    to += [address] if code == 250 else []
                    writer.write(f"{code} as told\r\n".encode())
                case "DATA":
                    writer.write(b"354 go on\r\n")
                    data = await reader.readuntil(b"\r\n.\r\n")
                    self.got.append(Mail(sender, to, data[:-5], tls, user))
                    writer.write(b"250 OK\r\n")
                case "RSET":
                    writer.write(b"250 OK\r\n")
                case "QUIT":
                    writer.write(b"221 bye\r\n")
                    await writer.drain()
                    return
                case _:
                    writer.write(b"502 what\r\n")
            await writer.drain()


@dataclass(frozen=True, slots=True)
class Certificate:
    cert: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self.cert, self.key)
        return made


def certificate(directory: Path) -> Certificate:
    """For 127.0.0.1, trusted by whoever is given it as `ca_file`."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    made = Certificate(directory / "cert.pem", directory / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(made.key), "-out", str(made.cert)], check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    return made


class AlertmanagerProcess:
    def __init__(self, url: str) -> None:
        self.url = url

    def alerts(self, *, active: bool = True) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts?active={str(active).lower()}", timeout=5) as answer:
            return json.loads(answer.read())  # type: ignore[no-any-return]


@contextlib.contextmanager
def alertmanager(directory: Path, *, webhook: str = "http://127.0.0.1:9/") -> Iterator[AlertmanagerProcess]:
    """Debian's Alertmanager, which passes on what it is told to `webhook` at once."""
    assert ALERTMANAGER is not None
    port = free_port()
    config = directory / "alertmanager.yml"
    config.write_text(
        "route: {receiver: hook, group_by: ['...'], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}\n"
        f"receivers: [{{name: hook, webhook_configs: [{{url: '{webhook}', send_resolved: true}}]}}]\n"
    )
    command = [ALERTMANAGER, f"--config.file={config}", f"--storage.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
               "--cluster.listen-address=", "--log.level=error"]  # fmt: skip
    with (directory / "alertmanager.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        server = AlertmanagerProcess(f"http://127.0.0.1:{port}")

        def is_ready() -> bool:
            assert process.poll() is None, (directory / "alertmanager.log").read_text()
            try:
                with urllib.request.urlopen(f"{server.url}/-/ready", timeout=2) as answer:
                    return bool(answer.status == 200)
            except (OSError, urllib.error.URLError):
                return False

        eventually(is_ready)
        yield server
    finally:
        process.terminate()
        process.wait(10)
