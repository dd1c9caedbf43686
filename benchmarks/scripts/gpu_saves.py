"""Training on one GPU in blocks of steps, without a save and with one by each way; then it dies twice and comes back, from memory and from the disk.

gpu_saves.py SCRATCH ROUNDS BLOCK_STEPS WAY...   under `holdfast run`, where WAY is holdfast, floor or nvrx. Writes SCRATCH/results.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_model import BATCH, WIDTH, Residual, timing
from torch import nn

import holdfast

BLOCKS = 12


class Training:
    """The loop, one step at a time."""

    def __init__(self, block_steps: int) -> None:
        torch.manual_seed(os.getpid())  # What is restored must not be there by chance.
        self.block_steps = block_steps
        self.model = nn.Sequential(*(Residual() for _ in range(BLOCKS))).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(BATCH, WIDTH, device="cuda")
        torch.cuda.synchronize()
        self.run = holdfast.guard(model=self.model, optimizer=self.optimizer, save_every=0, keep=2)
        self._steps = self.run.steps(10**9)

    def step(self) -> None:
        next(self._steps)
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.model(self.x).float().square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.run.report(loss=loss)

    def block(self, save: Callable[[], None] | None = None) -> float:
        """Seconds for a block. The save is asked for after its first step, so that all of what it costs lies within."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for number in range(self.block_steps):
            self.step()
            if save is not None and number == 0:
                save()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def tensors(self) -> list[torch.Tensor]:
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*self.model.state_dict().values(), *states]

    def checksum(self) -> list[int]:
        return [int(tensor.view(torch.int32).sum(dtype=torch.int64)) for tensor in self.tensors()]


class Ours:
    def __init__(self, training: Training) -> None:
        self._training = training
        self._step = -1

    def save(self) -> None:
        self._training.run.save()
        self._step = self._training.run.step + 1  # It is taken when this step is done.

    def settle(self) -> None:
        deadline = time.monotonic() + 60.0
        while _durable_step() < self._step:
            if time.monotonic() > deadline:
                sys.exit(f"step {self._step} is not durable after 60 s; was it skipped?")
            time.sleep(0.002)


def _durable_step() -> int:
    names = [path.parent.name for path in Path(os.environ["HOLDFAST_CHECKPOINTS"]).glob("step-*/manifest.json")]
    return max((int(name.split("-")[1].split(".")[0]) for name in names), default=-1)


class Floor:
    """The least that can be done: one pinned buffer, a side stream, and an optimizer whose next step waits for it on the GPU."""

    def __init__(self, training: Training) -> None:
        self._tensors = [tensor for tensor in training.tensors() if tensor.is_cuda]
        self._buffer = torch.empty(sum(tensor.nbytes for tensor in self._tensors), dtype=torch.uint8, pin_memory=True)
        self._stream = torch.cuda.Stream()
        self._done: Any = None
        training.optimizer.register_step_pre_hook(self._wait)

    def _wait(self, *_: object) -> None:
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)
            self._done = None

    def save(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        offset = 0
        with torch.cuda.stream(self._stream):
            for tensor in self._tensors:
                place = self._buffer[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                place.copy_(tensor.detach(), non_blocking=True)
                offset += tensor.nbytes
            self._done = torch.cuda.Event()
            self._done.record(self._stream)

    def settle(self) -> None:
        torch.cuda.synchronize()


class Nvrx:
    """NVIDIA resiliency-ext's TorchAsyncCheckpoint, as its documentation uses it."""

    def __init__(self, training: Training) -> None:
        from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self._training, self._checkpoint = training, TorchAsyncCheckpoint()

    def save(self) -> None:
        state = {"model": self._training.model.state_dict(), "optimizer": self._training.optimizer.state_dict()}
        self._checkpoint.async_save(state, Path(sys.argv[1]) / "nvrx.pt")

    def settle(self) -> None:
        self._checkpoint.finalize_async_save(blocking=True)
        (Path(sys.argv[1]) / "nvrx.pt").unlink(missing_ok=True)


def measure_saves(training: Training, rounds: int, ways: list[str]) -> dict[str, Any]:
    for _ in range(5):
        training.step()
    making = [training.block() for _ in range(5)]  # Memory is made and pinned meanwhile.
    found: dict[str, Any] = {"state_bytes": sum(tensor.nbytes for tensor in training.tensors()), "while_memory_is_made_s": making}
    made: dict[str, Any] = {}
    for way in ways:
        try:
            made[way] = {"holdfast": Ours, "floor": Floor, "nvrx": Nvrx}[way](training)
        except ImportError as error:
            found["nvrx_is_missing"] = repr(error)
    found["first_s"] = {}
    for way, one in made.items():
        before = training.block()
        found["first_s"][way] = training.block(one.save) - before
        one.settle()
        training.block(one.save)  # The second buffer, or whatever a way does the second time.
        one.settle()
        print(f"{way}: the first save cost {found['first_s'][way]:.3f} s", flush=True)
    extra: dict[str, list[float]] = {way: [] for way in made}
    before = training.block()
    for _ in range(rounds):
        for way, one in made.items():
            with_save = training.block(one.save)
            one.settle()
            after = training.block()
            extra[way].append(with_save - (before + after) / 2)
            before = after
            print(f"{way}: {extra[way][-1]:.4f} s more than without", flush=True)
    return {**found, "extra_s": extra, "plain_block_s": before, "durable_s": _durable(training, made["holdfast"])}


def _durable(training: Training, ours: Ours) -> list[float]:
    """From the end of the step after which it is taken until its manifest is there, while nothing trains."""
    times = []
    for _ in range(5):
        training.step()
        ours.save()
        torch.cuda.synchronize()
        began = time.perf_counter()
        training.step()  # It begins with the save.
        ours.settle()
        times.append(time.perf_counter() - began)
    return times


def timed_restore(block_steps: int) -> tuple[Training, dict[str, float]]:
    """A training whose guard restores; what each part of that took."""
    from holdfast.checkpoint import read
    from holdfast.trainer import beginning, snapshots

    took: dict[str, float] = {}
    torch.zeros(1, device="cuda")
    timing(took, snapshots.Snapshots, "find", "waited_for_verification")
    timing(took, snapshots.Snapshots, "pin", "registered")
    timing(took, read, "_recall_section", "copied")
    timing(took, read, "_wait_for_gpu", "copied")
    timing(took, beginning, "recall", "memory")
    timing(took, beginning, "restore", "disk")
    return Training(block_steps), took


def copy_floor(training: Training) -> list[float]:
    """The same bytes from one pinned buffer to the GPU."""
    tensors = [tensor for tensor in training.tensors() if tensor.is_cuda]
    pinned = torch.empty(sum(tensor.nbytes for tensor in tensors), dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(pinned, device="cuda")
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times


def drop_pages() -> None:
    for path in Path(os.environ["HOLDFAST_CHECKPOINTS"]).glob("step-*/chunks/*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def snapshots_here() -> list[Path]:
    return [path for path in Path(os.environ["HOLDFAST_SNAPSHOTS"]).glob("snapshot-*") if path.suffix != ".index"]


def main() -> None:
    scratch, rounds, block_steps, ways = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    generation, notes = int(os.environ["HOLDFAST_GENERATION"]), scratch / "so-far.json"
    if generation == 1:
        training = Training(block_steps)
        found = measure_saves(training, rounds, ways)
        found["host_memory_bytes"] = sum(path.stat().st_size for path in snapshots_here())
        notes.write_text(json.dumps({**found, "checksum": last_save(training)}))
        os.kill(os.getpid(), signal.SIGKILL)
    found = json.loads(notes.read_text())
    training, took = timed_restore(block_steps)
    came_back = training.checksum() == found["checksum"]
    if generation == 2:
        notes.write_text(json.dumps({**found, "from_memory": took, "from_memory_is_equal": came_back, "copy_floor_s": copy_floor(training)}))
        for path in snapshots_here():
            path.unlink()
        drop_pages()
        os.kill(os.getpid(), signal.SIGKILL)
    (scratch / "results.json").write_text(json.dumps({**found, "from_disk": took, "from_disk_is_equal": came_back}))
    os._exit(0)  # Without the last save, which nobody needs.


def last_save(training: Training) -> list[int]:
    """Save once more, and say what was saved."""
    ours = Ours(training)
    training.step()
    ours.save()
    torch.cuda.synchronize()
    checksum = training.checksum()
    training.step()
    ours.settle()
    return checksum


if __name__ == "__main__":  # A peer starts processes that import this file.
    main()
