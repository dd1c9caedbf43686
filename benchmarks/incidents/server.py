"""A server on the loopback that answers as it is asked to: /500, /404, /slow, /reset, /short, /flaky?times=2, /ok. In a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_asked: Counter[str] = Counter()


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        what = asked.path.strip("/").split("/")[0]
        if what == "slow":
            time.sleep(6)
        elif what == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        elif what == "short":
            self.send_response(200)
            self.send_header("Content-Length", "5000")
            self.end_headers()
            self.wfile.write(b'{"weights": [1, 2')
            return
        elif what == "hang_up":
            return
        elif what == "html":
            self._say(200, b"<html><body>captive portal</body></html>")
            return
        elif what == "flaky":
            _asked[self.path] += 1
            if _asked[self.path] <= int(parse_qs(asked.query).get("times", ["1"])[0]):
                self._say(503, b"try again")
                return
        elif what.isdigit():
            self._say(int(what), b"error")
            return
        self._say(200, json.dumps({"weights": [1, 2, 3]}).encode())

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Its address, while it runs."""
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            listening.handle_error = lambda *_: None  # type: ignore[method-assign,assignment]
            listening.serve_forever()
        finally:
            os._exit(0)
    address = f"http://127.0.0.1:{listening.server_address[1]}"
    listening.socket.close()
    try:
        yield address
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
