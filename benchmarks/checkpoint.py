"""Checkpoints: how fast state gets to the disk and back, beside the disk itself and torch.distributed.checkpoint.

Save: a state of CPU tensors, all of it changed since the last save, written and durable when the call returns: by Holdfast, by DCP (`dcp.save`, its
defaults), and the same number of bytes by `dd oflag=direct`, which is as fast as one writer can be here. They take turns. Verify: every byte of the
checkpoint read and checked; counted in CPU time, since what the disk gives is not ours. Frozen: a model nine tenths of which do not train; what the second save
writes. Restore: into the same tensors, read from the page cache and from the disk (its pages dropped first).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from harness.jobs import scratch_directory
from harness.measure import Report, arguments, median, say

from holdfast.checkpoint.commit import Shard
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import newest_complete, verify
from holdfast.checkpoint.read import restore
from holdfast.checkpoint.remove import Retention, prune
from holdfast.checkpoint.write import save

TENSOR_MIB = 64
DD_BLOCK_MIB = 16


def main() -> None:
    chosen = arguments(
        __doc__ or "",
        mib=(2048, 1024, "MiB of state"),
        rounds=(9, 7, "saves each way"),
    )
    report = Report("Checkpoints: state to the disk and back")
    with scratch_directory(keep=chosen.keep) as scratch:
        throughput(report, scratch, chosen.mib, chosen.rounds)
        frozen(report, scratch)
    report.finish(chosen)


def throughput(report: Report, scratch: Path, mib: int, rounds: int) -> None:
    state = {f"layer-{number}": torch.randn(TENSOR_MIB << 18) for number in range(mib // TENSOR_MIB)}
    size = sum(tensor.nbytes for tensor in state.values())
    ours, dcp, disk = scratch / "ours", scratch / "dcp", scratch / "dd"
    ours.mkdir()
    ways: dict[str, Callable[[int], None]] = {
        "holdfast": lambda step: save_ours(ours, state, step),
        "DCP": lambda step: save_dcp(dcp, state),
        "dd oflag=direct": lambda step: save_dd(disk, size),
    }
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for step in range(1, rounds + 1):
        for way, write in ways.items():
            for tensor in state.values():
                tensor.add_(1.0)
            began = time.perf_counter()
            write(step)
            speeds[way].append(size / (time.perf_counter() - began) / 1e9)
            prune(Disk(), ours, Retention(last=2), generation=1, now=0.0)  # Like the others' remains: not counted.
            shutil.rmtree(dcp, ignore_errors=True)
            disk.unlink(missing_ok=True)
        say(f"round {step} of {rounds}: {', '.join(f'{way} {values[-1]:.2f} GB/s' for way, values in speeds.items())}")
    for way, values in speeds.items():
        report.series(f"save, {way}", "GB/s", values)
    ratio = {way: [one / other for one, other in zip(speeds["holdfast"], speeds[way], strict=True)] for way in ways}
    report.bar("save: share of dd oflag=direct, median of the rounds", median(ratio["dd oflag=direct"]), "times", at_least=0.9)
    report.bar("save: faster than DCP, median of the rounds", median(ratio["DCP"]), "times", at_least=2.0)
    read_back(report, ours, state, size)


def save_ours(directory: Path, state: dict[str, torch.Tensor], step: int) -> None:
    save(directory, Shard(step=step, generation=1, world_size=1, rank=0), {"state": state}, {}, Retention(last=1000))


def save_dcp(directory: Path, state: dict[str, torch.Tensor]) -> None:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That there is one process is meant.
        dcp.save({"state": state}, checkpoint_id=directory)  # type: ignore[attr-defined]


def save_dd(file: Path, size: int) -> None:
    blocks = size // (DD_BLOCK_MIB << 20)
    command = ["dd", "if=/dev/zero", f"of={file}", f"bs={DD_BLOCK_MIB}M", f"count={blocks}", "oflag=direct", "conv=fsync"]
    subprocess.run(command, check=True, capture_output=True)


def read_back(report: Report, directory: Path, state: dict[str, torch.Tensor], size: int) -> None:
    newest = newest_complete(directory)
    assert newest is not None, "nothing was saved"
    checked, warm, cold = [], [], []
    for _ in range(5):
        used = time.process_time()
        verify(newest.path)
        checked.append(size / (time.process_time() - used) / 1e9)
        warm.append(size / timed(lambda: restore(newest.path, {"state": state}, rank=0, world_size=1)) / 1e9)
        for chunk in newest.manifest.chunks:
            drop_pages(directory / chunk.path)
        cold.append(size / timed(lambda: restore(newest.path, {"state": state}, rank=0, world_size=1)) / 1e9)
    report.series("verify, by CPU time", "GB/s", checked)
    report.series("restore to CPU tensors, from the page cache", "GB/s", warm)
    report.series("restore to CPU tensors, from the disk", "GB/s", cold)
    report.bar("verify: on one core", median(checked), "GB/s", at_least=2.0)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def drop_pages(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def frozen(report: Report, scratch: Path) -> None:
    """Ten blocks of which one trains; the optimizer has state for that one alone."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(10)))
    for block in list(model)[1:]:
        block.requires_grad_(False)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    directory = scratch / "frozen"
    written = []
    for step in (1, 2, 3):
        model(torch.randn(4, 1024)).square().mean().backward()
        optimizer.step()
        manifest = save(directory, Shard(step=step, generation=1, world_size=1, rank=0), {"model": model, "optimizer": optimizer}, {}, Retention())
        assert manifest is not None, "one rank completes its own checkpoint"
        written.append((manifest.own_bytes, manifest.size_bytes))
    share = max(100 * own / whole for own, whole in written[1:])
    report.series("nine tenths frozen: bytes written", "MB", [own / 1e6 for own, _ in written], "first save, then two more")
    report.bar("nine tenths frozen: written of a full save", share, "%", at_most=12.0)


if __name__ == "__main__":
    main()
