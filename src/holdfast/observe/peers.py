"""Peers: how long other nodes' agents take to answer.

Sees        TCP connections to the addresses it is given, opened and closed again, all at once.
Says        peer_latency_seconds of those that answered, peer_lost_ratio over the last 20 questions to each.
Is wrong    about the network when the other agent does not listen: a refusal is no answer. A name that must be looked up first delays all; give numbers.
Costs       80 µs for each peer every 5 s, here and as much there.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Final

from holdfast.domain.signal import Signal

_REMEMBERED: Final = 20


class Peers:
    name = "peers"
    every_s = 5.0

    def __init__(self, addresses: Mapping[str, tuple[str, int]] | None = None, answer_s: float = 2.0) -> None:
        self.timeout_s = 2 * answer_s + 5.0  # Looking up names has no limit of its own.
        self.doing = ""
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._addresses = dict(addresses or {})
        self._lost: dict[str, deque[bool]] = {}

    def set(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        """Whom to ask from now on: node to host and port."""
        with self._lock:
            self._addresses = dict(addresses)

    def look(self) -> list[Signal]:
        with self._lock:
            addresses = dict(self._addresses)
        answered_s = self._ask(addresses)
        self._lost = {node: self._lost.get(node, deque(maxlen=_REMEMBERED)) for node in addresses}
        found = []
        for node in sorted(addresses):
            lost = self._lost[node]
            lost.append(node not in answered_s)
            if node in answered_s:
                found.append(Signal("peer_latency_seconds", answered_s[node], node))
            found.append(Signal("peer_lost_ratio", sum(lost) / len(lost), node))
        return found

    def _ask(self, addresses: Mapping[str, tuple[str, int]]) -> dict[str, float]:
        """Seconds until each connection stood; nothing of those that did not in time."""
        opened: list[socket.socket] = []
        asked: dict[int, tuple[str, socket.socket, float]] = {}
        answered_s: dict[str, float] = {}
        poll = select.poll()
        try:
            for node, (host, port) in addresses.items():
                self.doing = f"connecting to {node} at {host}:{port}"
                with contextlib.suppress(OSError):
                    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
                    one = socket.socket(family, kind, protocol)
                    opened.append(one)
                    one.setblocking(False)
                    began = time.perf_counter()
                    if one.connect_ex(address) in (0, errno.EINPROGRESS):  # All else is a refusal already: no way there, no port left.
                        asked[one.fileno()] = (node, one, began)
                        poll.register(one, select.POLLOUT)
            self.doing = f"waiting for {len(asked)} peers"
            deadline = time.perf_counter() + self._answer_s
            waiting = set(asked)
            while waiting and (left_s := deadline - time.perf_counter()) > 0:
                for fd, _ in poll.poll(1000 * left_s):
                    node, one, began = asked[fd]
                    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                        answered_s[node] = time.perf_counter() - began
                    poll.unregister(fd)
                    waiting.discard(fd)
            return answered_s
        finally:
            self.doing = ""
            for one in opened:
                one.close()
