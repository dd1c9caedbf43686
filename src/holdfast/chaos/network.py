"""Networks: packets that come to a node are lost, its link is narrow, or what it sends arrives late. For nodes with a network of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from signal import SIGTERM

from holdfast.chaos.ground import Ground
from holdfast.chaos.undo import InNetwork, Send, identity, in_network_of
from holdfast.launch.namespaces import INTERFACE

_WITHIN_S = 20.0


def lose_packets(ground: Ground, rank: int, percent: int) -> None:
    chain = "add table inet fault; add chain inet fault in { type filter hook input priority 0; }"
    some = f"numgen random mod 100 < {percent} " if percent < 100 else ""
    _put_right_by(ground, rank, "nft", "delete table inet fault")
    _call(ground, rank, "nft", f"{chain}; add rule inet fault in iif != lo {some}drop")


def narrow(ground: Ground, rank: int, kbit: int) -> None:
    _put_right_by(ground, rank, "tc", "qdisc", "del", "dev", INTERFACE, "root")
    _call(ground, rank, "tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", "rate", f"{kbit}kbit", "burst", "8kb", "latency", "2s")


def delay(ground: Ground, rank: int, milliseconds: int) -> None:
    line = [sys.executable, str(Path(__file__).with_name("delay_line.py")), INTERFACE, str(milliseconds)]
    started = subprocess.Popen(in_network_of(ground.agent(rank), *line), stdout=subprocess.PIPE)
    ground.undoing.add(Send(process=identity(started.pid), signal=SIGTERM, ends=True))
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"


def _put_right_by(ground: Ground, rank: int, *command: str) -> None:
    ground.undoing.add(InNetwork(directory=str(ground.scene.directory.path), node=ground.node(rank), argv=command))


def _call(ground: Ground, rank: int, *command: str) -> None:
    subprocess.run(in_network_of(ground.agent(rank), *command), check=True, timeout=_WITHIN_S, capture_output=True)
