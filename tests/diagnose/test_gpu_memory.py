"""Out of memory on a GPU: the job's own size, pieces, a neighbour, a card too small, and no card at all are told apart."""

from __future__ import annotations

import pytest

from holdfast.diagnose.first_cause import diagnose
from holdfast.diagnose.gpu_memory import Shortage, gpu_missing, gpu_shortage
from holdfast.domain.diagnosis import Cause
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.gpu_holder import GpuHolder

GIB = 2**30


def words(*, tried: str = "2.00 GiB", free: str = "1.00 GiB", own: str = "77.00 GiB", unused: str = "200.00 MiB", others: str = "", allowed: str = "") -> str:
    """As torch 2.13 puts it."""
    return (
        f"CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of 79.10 GiB of which {free} is free. {others}Including non-PyTorch "
        f"memory, this process has {own} memory in use. {allowed}Of the allocated memory {own} is allocated by PyTorch, and {unused} is reserved by PyTorch "
        "but unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )


@pytest.mark.parametrize(
    ("message", "kind", "said"),
    [
        (words(), Shortage.SIZE, "2.0 GiB more, with 77.0 GiB of 79.1 GiB in its own hands"),
        (words(unused="12.00 GiB"), Shortage.FRAGMENTED, "12.0 GiB lay unused in its own segments"),
        (words(own="20.00 GiB", others="Process 4711 has 58.00 GiB memory in use. "), Shortage.HELD, "held by others: process 4711 (58.0 GiB)"),
        (words(others="Process 4711 has 500.00 MiB memory in use. "), Shortage.SIZE, "in its own hands"),
        (words(tried="96.00 GiB"), Shortage.TOO_SMALL, "96.0 GiB at once, and may have 79.1 GiB"),
        (words(own="19.00 GiB", free="58.00 GiB", allowed="20.00 GiB allowed; "), Shortage.SIZE, "19.0 GiB of 20.0 GiB"),
        (words(tried="30.00 GiB", allowed="20.00 GiB allowed; "), Shortage.TOO_SMALL, "may have 20.0 GiB in all"),
    ],
)
def test_what_is_short_and_whose_fault_it_is(message: str, kind: Shortage, said: str) -> None:
    found = gpu_shortage(message)
    assert found is not None
    assert found.kind is kind
    assert said in found.because


def test_who_holds_it_is_named_with_the_user_where_somebody_looked() -> None:
    holders = [GpuHolder(pid=9, user="mallory", held_bytes=50 * GIB), GpuHolder(pid=8, user="alice", held_bytes=20 * GIB, ours=True)]
    found = gpu_shortage(words(own="20.00 GiB"), holders)
    assert found is not None
    assert found.kind is Shortage.HELD
    assert "process 9 of mallory (50.0 GiB)" in found.because
    assert "alice" not in found.because
    named = gpu_shortage(words(own="20.00 GiB", others="Process 9 has 58.00 GiB memory in use. "), holders)
    assert named is not None
    assert "process 9 of mallory (58.0 GiB)" in named.because


def test_no_gpu_hidden_gpus_and_busy_ones_are_told_apart() -> None:
    assert gpu_missing("RuntimeError: No CUDA GPUs are available", 0) == "there is no GPU on the node"
    assert "the node has 8, and the process may see none" in gpu_missing("No CUDA GPUs are available", 8)
    assert "could not be asked" in gpu_missing("CUDA driver initialization failed, you might not have a CUDA gpu.", -1)
    assert "built without CUDA" in gpu_missing("AssertionError: Torch not compiled with CUDA enabled", 8)
    busy = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    assert gpu_missing(busy, 1, [GpuHolder(pid=9, user="mallory", held_bytes=GIB)]) == "the GPU is in the hands of process 9 of mallory (1.0 GiB)"
    assert "no process is seen" in gpu_missing(busy, 1)
    assert gpu_missing("shape mismatch", 0) == ""
    assert gpu_shortage("shape mismatch") is None


def test_an_out_of_memory_of_torch_is_diagnosed_as_one_with_what_it_came_from() -> None:
    exit = Exit(rank=1, pid=7, kind=ExitKind.EXCEPTION, because="rank 1 raised", code=1, exception="torch.OutOfMemoryError", message=words(), micro_batch=16)
    diagnosis = diagnose([exit], [], {})
    assert (diagnosis.cause, diagnosis.memory, diagnosis.micro_batch, diagnosis.permanent) == (Cause.OUT_OF_MEMORY, "size", 16, False)
    assert any("in its own hands" in line for line in diagnosis.evidence)
