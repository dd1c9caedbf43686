"""Networks: packets that come to a node are lost, its link is narrow, or what it sends arrives late. For nodes with a network of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from signal import SIGTERM

from holdfast.chaos.ground import Ground
from holdfast.chaos.undo import InNetwork, Send, identity, in_network_of, network_of
from holdfast.errors import HoldfastError
from holdfast.launch.namespaces import INTERFACE

_WITHIN_S = 20.0


def lose_packets(ground: Ground, rank: int, percent: int) -> None:
    _put_right_by(ground, rank, "qdisc", "del", "dev", INTERFACE, "clsact")
    _tc(ground, rank, "qdisc", "add", "dev", INTERFACE, "clsact")
    _tc(ground, rank, "filter", "add", "dev", INTERFACE, "ingress", "bpf", "direct-action", "bytecode", dropping(percent))


def dropping(percent: int) -> str:
    """Drops so many of a hundred packets, as a classic BPF program: neither nft nor netem is in every kernel. Each line is `code yes no value`."""
    program = (
        "32 0 0 4294963256",  # A random number: SKF_AD_OFF + SKF_AD_RANDOM (linux/filter.h).
        "148 0 0 100",  # Modulo 100.
        f"53 1 0 {percent}",  # At least so much: skip one.
        "6 0 0 2",  # TC_ACT_SHOT.
        "6 0 0 0",  # TC_ACT_OK.
    )
    return ",".join((str(len(program)), *program))


def narrow(ground: Ground, rank: int, kbit: int) -> None:
    _put_right_by(ground, rank, "qdisc", "del", "dev", INTERFACE, "root")
    _tc(ground, rank, "qdisc", "add", "dev", INTERFACE, "root", "tbf", "rate", f"{kbit}kbit", "burst", "8kb", "latency", "2s")


def delay(ground: Ground, rank: int, milliseconds: int) -> None:
    """By a process that puts things right itself when it is asked to end, or when we are gone. What a terminal says to us is not said to it."""
    line = [sys.executable, str(Path(__file__).with_name("delay_line.py")), INTERFACE, str(milliseconds), str(os.getpid())]
    started = subprocess.Popen(in_network_of(ground.agent(rank), *line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    ground.undoing.add(Send(process=identity(started.pid), signal=SIGTERM, ends=True))
    assert started.stdout is not None
    if started.stdout.readline() != b"ready\n":
        _, complaint = started.communicate(timeout=_WITHIN_S)
        raise HoldfastError(f"packets from {ground.node(rank)} cannot be delayed here: {_last(complaint)}")


def _put_right_by(ground: Ground, rank: int, *words: str) -> None:
    ground.undoing.add(InNetwork(network=network_of(ground.agent(rank)), argv=("tc", *words)))


def _tc(ground: Ground, rank: int, *words: str) -> None:
    done = subprocess.run(in_network_of(ground.agent(rank), "tc", *words), check=False, timeout=_WITHIN_S, capture_output=True)
    if done.returncode:
        raise HoldfastError(f"`tc {' '.join(words)}` in the network of {ground.node(rank)} was refused: {_last(done.stderr)}")


def _last(said: bytes) -> str:
    return (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
