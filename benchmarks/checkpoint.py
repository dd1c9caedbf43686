"""Checkpoints: how fast state gets to the disk and back, beside the disk itself and torch.distributed.checkpoint.

Save: a state of CPU tensors, all of it changed since the last save, written and durable when the call returns: by Holdfast, by DCP (`dcp.save`, its
defaults), and the same number of bytes by `dd oflag=direct`, which is as fast as one writer can be here. They take turns. Verify: every byte of the
checkpoint read and checked; counted in CPU time, since what the disk gives is not ours. Frozen: a model nine tenths of which do not train; what the second save
writes. Restore: into the same tensors, read from the page cache and from the disk (its pages dropped first).

On a GPU, where there is one: what a save costs the training. 12 residual blocks (629 M parameters, 7.55 GB with AdamW's moments), blocks of 20 steps
with one save each between blocks without; what a block takes longer than its neighbours is what a save costs. Beside it the floor, the least that can
be done (one pinned buffer, a side stream), and with `--peers` and nvidia-resiliency-ext installed its TorchAsyncCheckpoint. Then the training is killed
and comes back from memory, is killed with its memory gone and comes back from the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, median, say
from harness.processes import wait_until

from holdfast.checkpoint.commit import Shard
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import newest_complete, verify
from holdfast.checkpoint.read import restore
from holdfast.checkpoint.remove import Retention, prune
from holdfast.checkpoint.write import save

TENSOR_MIB = 64
DD_BLOCK_MIB = 16
BLOCK_STEPS = 20


def main() -> None:
    chosen = arguments(
        __doc__ or "",
        flags={"peers": "also measure the peers that are installed, on a GPU"},
        mib=(2048, 1024, "MiB of state"),
        rounds=(9, 7, "saves each way"),
        gpu_rounds=(10, 5, "saves each way on a GPU"),
    )
    report = Report("Checkpoints: state to the disk and back")
    with scratch_directory(keep=chosen.keep) as scratch:
        throughput(report, scratch, chosen.mib, chosen.rounds)
        frozen(report, scratch)
        if Path("/dev/nvidia0").exists():
            on_gpu(report, scratch, chosen.gpu_rounds, peers=chosen.peers)
        else:
            report.note("No NVIDIA GPU is here, so what a save costs the training was left out.")
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


def on_gpu(report: Report, scratch: Path, rounds: int, *, peers: bool) -> None:
    ways = ["holdfast", "floor", *(["nvrx"] if peers else [])]
    with Job(scratch, "gpu", "gpu_saves.py", str(rounds), str(BLOCK_STEPS), *ways) as job:
        results = job.scratch / "results.json"
        wait_until(lambda: results.exists() or job.process.poll() is not None, within_s=540, what="the results of the job on the GPU", every_s=0.5)
        if not results.exists():
            raise RuntimeError(f"the job on the GPU ended without results; it said:\n{job.last_words()}")
        found = json.loads(results.read_text())
        job.process.wait(60)
    size = found["state_bytes"]
    write_s = [timed(lambda: save_dd(scratch / "dd", size)) for _ in range(3)]
    read_s = [timed(lambda: read_dd(scratch / "dd")) for _ in range(3)]
    names = {"holdfast": "holdfast", "floor": "the floor", "nvrx": "NVRx TorchAsyncCheckpoint"}
    for way, extra in found["extra_s"].items():
        report.series(f"GPU, {size / 1e9:.2f} GB: a save costs, {names[way]}", "s", extra, f"the first one {found['first_s'][way]:.2f} s")
    report.series("GPU: a save is durable after", "s", found["durable_s"])
    report.series("GPU: the same bytes written by dd oflag=direct", "s", write_s)
    report.series("GPU: the same bytes read by dd iflag=direct", "s", read_s)
    report.series("GPU: the same bytes from one pinned buffer to the GPU", "s", found["copy_floor_s"])
    making, later_s = found["while_memory_is_made_s"], found["plain_block_s"]
    said = ", ".join(f"{one:.2f}" for one in making)
    report.note(f"GPU: the first {len(making)} blocks of {BLOCK_STEPS} steps, while memory was made and pinned, took {said} s; one later {later_s:.2f} s.")
    for where in ("memory", "disk"):
        parts = ", ".join(f"{name.replace('_', ' ')} {seconds:.3f} s" for name, seconds in found[f"from_{where}"].items())
        report.note(f"GPU: restored from {where}, bit for bit equal: {found[f'from_{where}_is_equal']}; {parts}.")
    report.raw["gpu"] = found
    ours, floor = _median(found["extra_s"]["holdfast"]), _median(found["extra_s"]["floor"])
    report.bar("GPU: cost of a save over the floor", ours / floor, "times", at_most=1.25)
    if "nvrx" in found["extra_s"]:
        report.bar("GPU: cost of a save over NVRx's", ours / _median(found["extra_s"]["nvrx"]), "times", at_most=0.3)
    else:
        report.note(f"NVRx was left out: {found.get('nvrx_is_missing', 'it was not asked for (--peers)')}.")
    report.bar("GPU: cost of the first save", found["first_s"]["holdfast"], "s", at_most=0.3)
    report.bar("GPU: durable, over what dd takes", _median(found["durable_s"]) / _median(write_s), "times", at_most=1.2)
    copied_s = found["from_memory"].get("copied", 1e9)
    report.bar("GPU: restore from memory, the copy over its floor", copied_s / _median(found["copy_floor_s"]), "times", at_most=1.3)
    report.bar("GPU: restore from the disk over what dd takes", found["from_disk"].get("disk", 1e9) / _median(read_s), "times", at_most=1.3)
    report.bar("GPU: host memory over the state", found["host_memory_bytes"] / size, "times", at_most=2.05)
    report.bar("GPU: restored bit for bit, from memory and disk", float(found["from_memory_is_equal"] and found["from_disk_is_equal"]), "yes", at_least=1.0)


def _median(values: list[float]) -> float:
    found = median(values)
    assert found is not None, "at least one was measured"
    return found


def read_dd(file: Path) -> None:
    subprocess.run(["dd", f"if={file}", "of=/dev/null", f"bs={DD_BLOCK_MIB}M", "iflag=direct"], check=True, capture_output=True)


if __name__ == "__main__":
    main()
