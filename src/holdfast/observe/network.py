"""Network: traffic, errors and links of each interface, InfiniBand ports among them, and TCP's repeated segments.

Sees        /proc/net/dev, /proc/net/snmp, /sys/class/net, /sys/class/infiniband.
Says        network_received_bytes_total, network_sent_bytes_total, network_errors_total, network_drops_total, network_up, network_link_downs_total of each
            interface; host_segments_total, host_retransmits_total. The event `link_down` when a link that was up is down.
Is wrong    in a namespace of its own: it sees that one. RDMA does not pass through the interface of its card; it is counted at the port ("mlx5_0/1").
            Interfaces that container engines make, and the loop back, are left out, and so is all beyond the first 32.
Costs       two reads, 35 µs; links and ports are looked at every 5 s, 25 µs each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal
from holdfast.observe.probe import Seen
from holdfast.observe.reread import Reread, read_once, whole_number

LINKS_EVERY_S: Final = 5.0
_INTERFACES_MAX: Final = 32
_COLUMNS: Final = 16  # Of an interface in /proc/net/dev.
_NOT_OURS: Final = (
    "lo", "veth", "docker", "br-", "virbr", "cali", "cni", "flannel", "lxc", "tap", "vnet", "ifb", "dummy", "tunl", "sit", "gre", "erspan", "ip6tnl",
)  # fmt: skip
_WORD_BYTES: Final = 4  # InfiniBand counts data in words of four bytes (IBTA, PortXmitData).


class Network:
    name = "network"
    every_s = 1.0
    timeout_s = 5.0
    doing = ""

    def __init__(
        self, proc: Path = Path("/proc"), sys: Path = Path("/sys"), monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        # Of the process, and not "net" alone: that is a link which depends on the thread that opens it.
        self._dev = Reread(proc / "self" / "net" / "dev")
        self._snmp = Reread(proc / "self" / "net" / "snmp")
        self._sys = sys
        self._monotonic = monotonic
        self._wall = wall
        self._links_at = -LINKS_EVERY_S
        self._up: dict[str, bool] = {}

    def look(self) -> list[Seen]:
        traffic = _traffic(self._dev.read_all())
        found: list[Seen] = [*_signals(traffic), *_segments(self._snmp.read_all())]
        now = self._monotonic()
        if now - self._links_at >= LINKS_EVERY_S:
            self._links_at = now
            found += self._links(list(traffic))
            found += self._ports()
        return found

    def _links(self, names: list[str]) -> list[Seen]:
        found: list[Seen] = []
        for name in names:
            state = read_once(self._sys / "class" / "net" / name / "operstate")
            if state is not None and state.strip() in (b"up", b"down", b"lowerlayerdown", b"dormant"):  # "unknown" says nothing.
                found += self._link(name, state.strip() == b"up")
            downs = whole_number(read_once(self._sys / "class" / "net" / name / "carrier_down_count"))
            if downs is not None:
                found.append(Signal("network_link_downs_total", float(downs), name))
        return found

    def _link(self, name: str, up: bool) -> list[Seen]:
        was, self._up[name] = self._up.get(name), up
        found: list[Seen] = [Signal("network_up", float(up), name)]
        if was and not up:
            found.append(KernelEvent(kind="link_down", message=f"the link of {name} is down", at=self._wall(), of=name))
        return found

    def _ports(self) -> list[Seen]:
        found: list[Seen] = []
        for port in sorted((self._sys / "class" / "infiniband").glob("*/ports/*"))[:_INTERFACES_MAX]:
            name = f"{port.parts[-3]}/{port.name}"
            if (read_once(port / "link_layer") or b"").strip() == b"Ethernet" and not (port / "hw_counters").is_dir():
                continue  # Not a port RDMA runs over.
            state = read_once(port / "state")  # "4: ACTIVE"
            if state is not None:
                found += self._link(name, state.startswith(b"4"))
            found += _port_counts(port / "counters", name)
        return found


def _traffic(text: bytes | None) -> dict[str, list[int]]:
    """Interface to its sixteen columns."""
    found: dict[str, list[int]] = {}
    for line in (text or b"").decode(errors="replace").splitlines()[2:]:
        name, _, text_columns = line.partition(":")
        columns = text_columns.split()
        if len(columns) >= _COLUMNS and not name.strip().startswith(_NOT_OURS) and len(found) < _INTERFACES_MAX:
            found[name.strip()] = [int(column) for column in columns]
    return found


def _signals(traffic: dict[str, list[int]]) -> list[Signal]:
    return [
        Signal(metric, float(value), name)
        for name, columns in traffic.items()
        for metric, value in (
            ("network_received_bytes_total", columns[0]),
            ("network_sent_bytes_total", columns[8]),
            ("network_errors_total", columns[2] + columns[10]),
            ("network_drops_total", columns[3] + columns[11]),
        )
    ]


def _segments(text: bytes | None) -> list[Signal]:
    lines = [line.split() for line in (text or b"").splitlines() if line.startswith(b"Tcp:")]
    if len(lines) != 2:
        return []
    columns = dict(zip(*lines, strict=False))
    wanted = (("host_segments_total", b"OutSegs"), ("host_retransmits_total", b"RetransSegs"))
    return [Signal(metric, float(columns[column])) for metric, column in wanted if column in columns]


def _port_counts(directory: Path, name: str) -> list[Signal]:
    wanted = {
        "network_received_bytes_total": (("port_rcv_data",), _WORD_BYTES),
        "network_sent_bytes_total": (("port_xmit_data",), _WORD_BYTES),
        "network_errors_total": (("symbol_error", "port_rcv_errors", "local_link_integrity_errors"), 1),
        "network_drops_total": (("port_xmit_discards",), 1),
        "network_link_downs_total": (("link_downed",), 1),
    }
    found = []
    for metric, (files, unit) in wanted.items():
        counts = [count for file in files if (count := whole_number(read_once(directory / file))) is not None]
        if counts:
            found.append(Signal(metric, float(sum(counts) * unit), name))
    return found
