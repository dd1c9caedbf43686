"""The network: counters that really move, a link that really goes down, and peers that answer, refuse or keep silent."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from observe.seeing import Hands, events, machine, values

from holdfast.observe.network import Network
from holdfast.observe.peers import Peers

needs_ip = pytest.mark.skipif(shutil.which("ip") is None, reason="needs the `ip` command (Debian: apt install iproute2)")
DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 9 9 9 9 0 0 0 0 9 9 9 9 0 0 0 0
  eth0: 1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0
veth12: 9 9 9 9 0 0 0 0 9 9 9 9 0 0 0 0
"""
SNMP = "Ip: A\nIp: 1\nTcp: RtoAlgorithm OutSegs RetransSegs\nTcp: 1 500 5\n"


def test_interfaces_are_counted_both_ways_and_those_of_containers_left_out(tmp_path: Path) -> None:
    seen = Network(machine(tmp_path, self__net__dev=DEV, self__net__snmp=SNMP), tmp_path).look()
    assert {one.of for one in seen} == {"", "eth0"}
    assert values(seen, "eth0") == {
        "network_received_bytes_total": 1000, "network_sent_bytes_total": 2000, "network_errors_total": 4, "network_drops_total": 6,
    }  # fmt: skip
    assert values(seen) == {"host_segments_total": 500, "host_retransmits_total": 5}


def test_hundreds_of_interfaces_do_not_become_hundreds_of_series(tmp_path: Path) -> None:
    dev = "\n\n" + "".join(f"enp{number}: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n" for number in range(500))
    seen = Network(machine(tmp_path, self__net__dev=dev), tmp_path).look()
    assert len({one.of for one in seen}) == 32


def test_a_port_that_rdma_runs_over_is_counted_in_bytes(tmp_path: Path) -> None:
    port = "class/infiniband/mlx5_0/ports/1/"
    files = {"link_layer": "InfiniBand", "state": "4: ACTIVE", "counters/port_rcv_data": "100", "counters/port_xmit_data": "50", "counters/link_downed": "2"}
    sys = machine(tmp_path / "sys", **{port + name: text + "\n" for name, text in files.items()})
    clock = Hands()
    network = Network(tmp_path, sys, clock)
    assert values(network.look(), "mlx5_0/1") == {
        "network_received_bytes_total": 400, "network_sent_bytes_total": 200, "network_link_downs_total": 2, "network_up": 1,
    }  # fmt: skip
    (sys / port / "state").write_text("1: DOWN\n")
    assert network.look() == [], "links are looked at every 5 s"
    clock.now += 5
    seen = network.look()
    assert values(seen, "mlx5_0/1")["network_up"] == 0
    assert [event.of for event in events(seen, "link_down")] == ["mlx5_0/1"]


LOOK = """
import socket, subprocess
from holdfast.observe.network import Network
clock = iter(range(0, 10**6, 10))
network = Network(monotonic=lambda: next(clock))
def seen():
    return {(one.metric, one.of): one.value for one in network.look() if hasattr(one, "metric")}
before = seen()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
    while (after := seen())["network_sent_bytes_total", "hf0"] < before["network_sent_bytes_total", "hf0"] + 3000:
        try:
            out.sendto(bytes(1000), ("10.203.0.2", 9))
        except ConnectionError:
            pass
print(after["network_sent_bytes_total", "hf0"] - before["network_sent_bytes_total", "hf0"], after["network_up", "hf0"])
subprocess.run(["ip", "link", "set", "hf0", "down"], check=True)
found = network.look()
print([one.value for one in found if getattr(one, "metric", "") == "network_up" and one.of == "hf0"], [one.kind for one in found if hasattr(one, "kind")])
"""


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network with an interface, hf0, whose other end answers."""
    name = f"hf-observe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"may not make a network here: {made.stderr.strip()}")
    try:
        inside = ["ip", "-n", name]
        for command in (
            ["ip", "netns", "add", f"{name}-b"],
            [*inside, "link", "add", "hf0", "type", "veth", "peer", "name", "hf1", "netns", f"{name}-b"],
            [*inside, "addr", "add", "10.203.0.1/24", "dev", "hf0"],
            [*inside, "link", "set", "hf0", "up"],
            ["ip", "-n", f"{name}-b", "addr", "add", "10.203.0.2/24", "dev", "hf1"],
            ["ip", "-n", f"{name}-b", "link", "set", "hf1", "up"],
        ):
            subprocess.run(command, check=True, capture_output=True)
        yield name
    finally:
        for one in (name, f"{name}-b"):
            subprocess.run(["ip", "netns", "delete", one], check=False, capture_output=True)


@pytest.mark.root
@needs_ip
def test_real_traffic_moves_the_counters_and_a_real_link_that_goes_down_is_an_event(namespace: str) -> None:
    done = subprocess.run(["ip", "netns", "exec", namespace, sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, timeout=60)
    sent, link = done.stdout.splitlines()
    assert float(sent.split()[0]) >= 3 * 1000
    assert sent.split()[1] == "1.0"
    assert link == "[0.0] ['link_down']"


def test_peers_that_answer_have_a_latency_and_those_that_do_not_are_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        address, refused = there.getsockname(), gone.getsockname()
        gone.close()
        peers = Peers({"a": address, "b": refused, "c": ("256.256.256.256", 1)}, answer_s=1.0)
        seen = peers.look()
        assert 0 < values(seen, "a")["peer_latency_seconds"] < 1
        assert values(seen, "a")["peer_lost_ratio"] == 0
        assert values(seen, "b") == {"peer_lost_ratio": 1}
        assert values(seen, "c") == {"peer_lost_ratio": 1}, "a name that cannot be looked up is no answer either"
        peers.set({"b": address})
        assert values(peers.look(), "b")["peer_lost_ratio"] == 0.5, "one of two"
        peers.set({})
        assert peers.look() == []


def test_a_peer_that_swallows_everything_costs_its_time_and_not_that_of_the_others() -> None:
    """A full queue of connections drops what comes, as a lossy network does."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, socket.create_server(("127.0.0.1", 0)) as there:
        held = []
        try:
            for _ in range(3):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(deaf.getsockname())
                held.append(one)
            peers = Peers({"deaf": deaf.getsockname(), "there": there.getsockname()}, answer_s=0.3)
            seen = peers.look()
        finally:
            for one in held:
                one.close()
    assert values(seen, "deaf") == {"peer_lost_ratio": 1}
    assert values(seen, "there")["peer_latency_seconds"] < 0.3
