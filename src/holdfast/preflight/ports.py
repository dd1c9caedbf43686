"""Ports: those the job will listen at are free, and so are enough of the ones the kernel gives out."""

from __future__ import annotations

import socket
from pathlib import Path

from holdfast.preflight.check import Check, Place, bad, ok, warn

_FREE_MIN, _EACH_RANK = 1000, 50


def look(place: Place) -> list[Check]:
    taken = [port for port in place.ports if not _is_free(place.host, port)]
    if taken:
        who = ", ".join(f"port {port}" for port in taken)
        return [bad("ports", f"{who} is taken", f"see by whom: `ss -tlnp 'sport = :{taken[0]}'`; or choose another", culprit=who)]
    if not _is_free(place.host, 0):
        return [bad("ports", f"no port can be opened at {place.host}", "see `ip address`, and whether listening is permitted here", culprit=place.host)]
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    free = high - low + 1 - _in_use(low, high)
    said = f"{free:,} of the ports {low}-{high} are free"
    if free < max(_FREE_MIN, place.ranks * _EACH_RANK):
        return [warn("ports", said, "see who holds them: `ss -s`; or widen net.ipv4.ip_local_port_range", free=free)]
    return [ok("ports", said, free=free)]


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
            one.listen()
        except OSError:
            return False
    return True


def _in_use(low: int, high: int) -> int:
    used = set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/net/{table}")
        if path.exists():
            used |= {int(line.split()[1].rpartition(":")[2], 16) for line in path.read_text().splitlines()[1:]}
    return sum(low <= port <= high for port in used)
