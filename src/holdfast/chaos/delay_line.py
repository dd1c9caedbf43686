"""A long cable: what leaves this network namespace by one interface does so some milliseconds later. `delay_line.py INTERFACE MILLISECONDS PARENT`, as
root, in it; PARENT is the process that started it.

Not every kernel has netem. So packets are routed into a tunnel, wait in this process, and go out by a raw socket that is bound to the interface. Connections
that exist already are delayed too. With SIGTERM, or when whoever started it is gone, all is as it was, and what still waits goes out at once.
"""

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

TUNNEL = "delay0"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=10).stdout


def main(interface: str, delay_s: float, parent: int) -> None:
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))  # Before anything is done, all of which must be undone.
    tunnel = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tunnel, TUNSETIFF, struct.pack("16sH22x", TUNNEL.encode(), IFF_TUN | IFF_NO_PI))
    out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    # Answers come in by the interface although the way back leads through the tunnel.
    filters = [Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter") for name in ("all", interface)]
    filtered = [path.read_text() for path in filters]
    (route,) = [line.split() for line in ip("-4", "route", "show", "dev", interface, "scope", "link").splitlines()]
    network, own = route[0], route[route.index("src") + 1]
    waiting: deque[tuple[float, bytes]] = deque()
    try:
        for path in filters:
            path.write_text("0")
        ip("link", "set", TUNNEL, "up")
        ip("route", "add", network, "dev", interface, "src", own, "metric", "1000")  # For the raw socket, which may use no other interface.
        ip("route", "del", network, "dev", interface, "metric", "0")
        ip("route", "add", network, "dev", TUNNEL, "src", own)
        print("ready", flush=True)
        while not ending and os.getppid() == parent:
            left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
            readable, _, _ = select.select([tunnel], [], [], left)
            while readable:
                try:
                    waiting.append((time.monotonic() + delay_s, os.read(tunnel, 65536)))
                except BlockingIOError:
                    break
            send(out, waiting, time.monotonic())
    finally:
        ip("route", "replace", *route, "dev", interface)
        with contextlib.suppress(subprocess.CalledProcessError):  # It was not come to.
            ip("route", "del", network, "dev", interface, "metric", "1000")
        for path, value in zip(filters, filtered, strict=True):
            path.write_text(value)
        send(out, waiting, float("inf"))


def send(out: socket.socket, waiting: deque[tuple[float, bytes]], now: float) -> None:
    while waiting and waiting[0][0] <= now:
        packet = waiting.popleft()[1]
        if packet[0] >> 4 == 4:
            out.sendto(packet, (socket.inet_ntoa(packet[16:20]), 0))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) / 1000, int(sys.argv[3]))
