"""Links: how long a word takes to a process at an address and back, and how much goes through in a second. On one machine the address is loopback.

    python -m holdfast.preflight.links serve HOST      prints its port, answers one caller, and leaves
    python -m holdfast.preflight.links call HOST PORT  prints what it measured, as JSON

Two processes, so that each can be put where its node is: `measure` takes the commands that lead there.
"""

from __future__ import annotations

import fcntl
import json
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from holdfast.preflight.check import Check, Place, bad, looking, ok, warn

WITHIN_S = 8.0
_PROGRAM = (sys.executable, "-m", "holdfast.preflight.links")
_SIOCGIFFLAGS, _SIOCGIFMTU = 0x8913, 0x8921
_ROUNDS, _BLOCK, _SEND_S = 200, bytes(1 << 20), 0.4
_MTU_MIN = 1280  # IPv6 needs that much, and so does every tunnel that works.
_SLOW_S, _SLOW_BYTES_PER_S = 0.005, 100e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    round_trip_s: float  # Median.
    worst_s: float
    bytes_per_s: float


def look(place: Place) -> list[Check]:
    looking(place.host)
    try:
        seen = measure(place.host)
    except OSError as error:
        do = "see `ip address`, `ip route` and the firewall: ranks on this machine must reach each other there"
        return [bad("links", f"{place.host} does not reach itself: {error}", do, culprit=place.host)]
    return [judge(f"{place.host} to itself", seen), *_interfaces()]


def judge(what: str, seen: Measured) -> Check:
    told = f"{what}: {1e6 * seen.round_trip_s:.0f} µs there and back, {seen.bytes_per_s / 1e9:.2f} GB/s"
    figures = asdict(seen)
    if seen.round_trip_s > _SLOW_S or seen.bytes_per_s < _SLOW_BYTES_PER_S:
        return warn("links", told, "see for losses (`ip -s link`, `nstat | grep Retrans`), a wrong route, or a tunnel", culprit=what, **figures)
    return ok("links", told, **figures)


def _interfaces() -> list[Check]:
    up = {name: _asked(_SIOCGIFMTU, name, "i") for _, name in socket.if_nameindex() if _asked(_SIOCGIFFLAGS, name, "h") & 1}
    small = [name for name, mtu in up.items() if mtu < _MTU_MIN]
    if small:
        who = ", ".join(small)
        return [warn("links", f"{who} passes packets of {min(up.values())} bytes at most", f"raise its MTU: `ip link set {small[0]} mtu 1500`", culprit=who)]
    return [ok("links", "interfaces up: " + (", ".join(f"{name} (MTU {mtu})" for name, mtu in up.items()) or "none"))]


def _asked(request: int, interface: str, kind: str) -> int:
    """Of the kernel, in the network this process is in: /sys shows that of whoever mounted it. See netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, request, struct.pack("16s24x", interface.encode()))
    return int(struct.unpack_from(kind, answer, 16)[0])


def measure(host: str, *, serve: Sequence[str] = (), call: Sequence[str] = ()) -> Measured:
    """Between a process started behind `serve`, which listens at `host`, and one behind `call`. OSError when they do not reach each other in time."""
    server, port = listen(host, prefix=serve)
    try:
        return reach(host, port, prefix=call)
    finally:
        server.kill()
        server.communicate()


def listen(host: str, *, prefix: Sequence[str] = ()) -> tuple[subprocess.Popen[bytes], int]:
    """A process that answers one caller and leaves, or leaves when none came in time; and its port. OSError when it cannot listen."""
    server = subprocess.Popen([*prefix, *_PROGRAM, "serve", host], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdout is not None
    spoke, _, _ = select.select([server.stdout], [], [], WITHIN_S)
    port = server.stdout.readline().decode().strip() if spoke else ""
    if not port:
        server.kill()
        server.communicate()
        raise OSError(f"nobody can listen at {host}{'' if spoke else f': no answer within {WITHIN_S:.0f} s'}")
    return server, int(port)


def reach(host: str, port: int, *, prefix: Sequence[str] = ()) -> Measured:
    """Call who listens there. OSError when that does not answer in time."""
    command = [*prefix, *_PROGRAM, "call", host, str(port)]
    try:
        caller = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=WITHIN_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"no answer within {WITHIN_S:.0f} s") from error
    if caller.returncode:
        raise OSError(caller.stderr.decode(errors="replace").strip().splitlines()[-1])
    return Measured(**json.loads(caller.stdout))


def _serve(host: str) -> None:
    with socket.create_server((host, 0)) as listening:
        listening.settimeout(WITHIN_S)
        print(listening.getsockname()[1], flush=True)
        connection, _ = listening.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(_ROUNDS):
                connection.sendall(connection.recv(1))
            got = 0
            while data := connection.recv(len(_BLOCK)):
                got += len(data)
            connection.sendall(str(got).encode())


def _call(host: str, port: int) -> Measured:
    with socket.create_connection((host, port), timeout=WITHIN_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            connection.sendall(b".")
            connection.recv(1)
            trips.append(time.perf_counter() - began)
        began = time.perf_counter()
        while time.perf_counter() - began < _SEND_S:
            connection.sendall(_BLOCK)
        connection.shutdown(socket.SHUT_WR)
        got = int(connection.recv(32))
        took_s = time.perf_counter() - began
    return Measured(round_trip_s=statistics.median(trips), worst_s=max(trips), bytes_per_s=got / took_s)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        print(json.dumps(asdict(_call(sys.argv[2], int(sys.argv[3])))))
