"""Processes: killed, stopped, or taken away with their node."""

from __future__ import annotations

import os
import shutil
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals

from holdfast.agent import tree
from holdfast.chaos.ground import Ground, Missed
from holdfast.chaos.undo import Send, identity
from holdfast.errors import HoldfastError
from holdfast.launch.layout import JobDirectory
from holdfast.launch.processes import CONTROL


def kill_worker(ground: Ground, rank: int) -> None:
    send(ground.pid(rank), SIGKILL)


def stop_worker(ground: Ground, rank: int) -> None:
    pid = ground.pid(rank)
    ground.undoing.add(Send(process=identity(pid), signal=SIGCONT))
    send(pid, SIGSTOP)


def kill_agent(ground: Ground, rank: int) -> None:
    send(ground.agent(rank), SIGKILL)


def kill_control(ground: Ground, rank: int) -> None:
    send(ground.process(CONTROL), SIGKILL)


def lose_node(ground: Ground, rank: int) -> None:
    take_away(ground.scene.directory, ground.node(rank), ground.agent(rank))


def take_away(directory: JobDirectory, node: str, agent: int) -> None:
    """Take a local node away as a power cut would. Its description goes first, because a node without one is not started again."""
    directory.node_spec(node).unlink()
    left = tree.end_tree([agent], grace_s=0.0) + tree.end_marked(directory.job, directory.node_shared_memory(node).name)
    if left:
        raise HoldfastError(f"{node} cannot be lost: its processes {left} survived SIGKILL")
    for path in (directory.node_state(node), directory.node_scratch(node), directory.node_shared_memory(node)):
        shutil.rmtree(path)


def send(pid: int, number: Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise Missed(f"process {pid} is gone already") from None
