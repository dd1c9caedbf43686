"""What others have published: how often large trainings stop, of what, and how long parts of a recovery take at a size nobody has at home.

Each figure has its source. Where a source gives a range, both ends are kept, and the slower one is the one to plan with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from holdfast.simulate.reliability.goodput import Fault
from holdfast.simulate.reliability.rates import Seen

DAY_S = 86400.0


class Shows(StrEnum):
    """How a cause makes itself known."""

    EXIT = "exit"  # A process ends, its node stays good.
    NODE = "node"  # A process ends or a node falls silent, and the node must go.
    HANG = "hang"  # Nothing ends, and nobody gets on.
    NAN = "nan"  # All get on, with numbers that are no longer any.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    name: str
    count: int
    shows: Shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Seconds, as published."""

    best_s: float
    worst_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """GB a second, as published."""

    best: float
    worst: float
    source: str


RATES: dict[str, tuple[Seen, str]] = {
    "llama3": (Seen(failures=419, over_s=54 * DAY_S, gpus=16384), "Llama 3 405B: 419 unexpected stops in 54 days on 16,384 H100 (arXiv 2407.21783)"),
    "rsc1": (Seen(failures=6.50, over_s=1000 * DAY_S, gpus=8, counted=False), "Meta RSC-1: 6.50 failures in 1,000 node-days, A100 (arXiv 2410.21680)"),
    "rsc2": (Seen(failures=2.34, over_s=1000 * DAY_S, gpus=8, counted=False), "Meta RSC-2: 2.34 failures in 1,000 node-days, A100 (arXiv 2410.21680)"),
}

# Llama 3, table 5, by counts: the percentages printed beside them do not fit. How each shows is our reading, to the bad side: whatever is of the network hangs.
LLAMA3_CAUSES: tuple[Cause, ...] = (
    Cause(name="faulty GPU", count=148, shows=Shows.NODE), Cause(name="GPU HBM3 memory", count=72, shows=Shows.NODE),
    Cause(name="software", count=54, shows=Shows.EXIT), Cause(name="network switch or cable", count=35, shows=Shows.HANG),
    Cause(name="host maintenance", count=32, shows=Shows.NODE), Cause(name="GPU SRAM memory", count=19, shows=Shows.NODE),
    Cause(name="GPU system processor", count=17, shows=Shows.NODE), Cause(name="NIC", count=7, shows=Shows.HANG),
    Cause(name="NCCL watchdog timeout", count=7, shows=Shows.HANG), Cause(name="silent data corruption", count=6, shows=Shows.NAN),
    Cause(name="GPU thermal interface, sensor", count=6, shows=Shows.NODE), Cause(name="SSD", count=3, shows=Shows.NODE),
    Cause(name="power supply", count=3, shows=Shows.NODE), Cause(name="server chassis", count=2, shows=Shows.NODE),
    Cause(name="IO expansion board", count=2, shows=Shows.NODE), Cause(name="dependency", count=2, shows=Shows.EXIT),
    Cause(name="CPU", count=2, shows=Shows.NODE), Cause(name="system memory", count=2, shows=Shows.NODE),
)  # fmt: skip

GROUP_BUILD = Range(best_s=5.0, worst_s=30.0, source="MegaScale (NSDI'24): under 5 s on 2,048 GPUs, under 30 s on more than 10,000")
REPLACEMENT = Range(
    best_s=454.0 / 10.87, worst_s=768.0 / 10.87,
    source="ByteRobust (SOSP'25): requeue takes 454 to 768 s, warm standby machines are 10.87 times faster: divided",
)  # fmt: skip
# Of state, from a GPU to one on another node, while all GPUs of both nodes do the same, each over a link of its own. Worst: torchft #329 says "20ish" seconds
# for Llama 3 8B over InfiniBand by HTTP; weights and moments in fp32, 12 bytes a parameter, over the 4 GPUs of a replica are 24.1 GB each.
_TORCHFT_GB = 8.03 * 12 / 4
PEER_GB_PER_S = Speed(
    best=46.0, worst=_TORCHFT_GB / 20, source="torchft #329: Llama 3 8B, 4 GPUs a replica, some 20 s over InfiniBand: 24.1 GB a GPU divided by that"
)
PEER_SPEEDS: tuple[tuple[str, float], ...] = (
    ("torchft #329 before its fix, 800 s over the wrong network", _TORCHFT_GB / 800), ("15 Gb/s a node of 8 GPUs, which nobody reports", 15 / 8 / 8),
    ("15 Gb/s a GPU, a cloud machine with one (PCcheck, ASPLOS'25)", 15 / 8),
    ("48 GB in 18.5 s through a process group on one host (torchft #119)", 48 / 18.5), ("400 Gb/s a node of 8 GPUs", 50 / 8),
    ("NCCL send and receive that stayed far below 400 Gb/s RoCE (nccl #2409)", 6.99),
    ("what NVIDIA expects of NCCL on 400 Gb/s a GPU, as Llama 3 had (nccl-tests #290)", 46.0),
)  # fmt: skip
STATE_OVER_NETWORK = Range(best_s=1.0, worst_s=5.4, source="torchft: under 1 s for a replica over Gloo; Google's elastic training demo (2026-07): 5.4 s")
FIRST_STEP = Range(best_s=6.0, worst_s=12.7, source="Google's elastic training demo (2026-07): first step 12.7 s; 6 s is a step of Llama 3 405B")
SAVE_STALL = Range(best_s=0.01, worst_s=0.04, source="ByteRobust (SOSP'25): 0.01 to 0.04 s a step for copies in memory")
NAN_FOUND = Range(best_s=4289.0, worst_s=7200.0, source="ByteRobust (SOSP'25): NaN localised after 4,289 s in the mean, 7,200 s at most")
HANG_NOTICED = Range(best_s=60.0, worst_s=600.0, source="NVRx: 60 to 90 s; PyTorch's collective timeout: 600 s")
REMOTE_LOAD = Range(best_s=51.0, worst_s=129.0, source="ByteCheckpoint (NSDI'25): 405B on 8,960 GPUs is saved in 51 s and loaded in 129 s")
STEP_S = 6.0  # Llama 3 405B: 16 M tokens × 6 × 405e9 FLOP / (16,384 × 400 TFLOP/s).


def shares(causes: Sequence[Cause]) -> dict[Shows, float]:
    whole = sum(cause.count for cause in causes)
    return {shows: sum(cause.count for cause in causes if cause.shows is shows) / whole for shows in Shows}


def explicit_only(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """The same rate without hangs and NaN: their share goes to the others."""
    kept = [fault for fault in faults if fault.name in (Shows.EXIT, Shows.NODE)]
    whole = sum(fault.share for fault in kept)
    return tuple(replace(fault, share=fault.share / whole) for fault in kept)
