"""Ends that no other try would pass, by what a worker said last; and those that might."""

from __future__ import annotations

import pytest

from holdfast.diagnose.never_passes import Refusal, never_passes
from holdfast.domain.exit import Exit, ExitKind


def raised(exception: str, message: str) -> Exit:
    return Exit(rank=0, pid=1, kind=ExitKind.EXCEPTION, because="it raised", code=1, exception=exception, message=message)


def left(code: int, *lines: str) -> Exit:
    return Exit(rank=0, pid=1, kind=ExitKind.CODE, because="it left", code=code, tail="\n".join(lines) + "\n")


NEVER = {
    "an argument that is not known": (left(2, "usage: train.py [-h] [--lr LR]", "train.py: error: unrecognized arguments: --nosuch"), "config_error"),
    "an option that is not known": (left(2, "Usage: train.py [OPTIONS]", "", "Error: No such option: --nosuch"), "config_error"),
    "Holdfast's own refusal": (raised("holdfast.errors.UserError", "ema is an EMA, and nothing is known about its state"), "config_error"),
    "a checkpoint of another shape": (raised("holdfast.checkpoint.errors.CheckpointMismatch", "the checkpoint holds model, ema"), "checkpoint_mismatch"),
    "a checkpoint of another model": (raised("RuntimeError", "Error(s) in loading state_dict for Net:\n\tMissing key(s)"), "checkpoint_mismatch"),
    "sizes that do not divide": (raised("AssertionError", "world size (6) is not divisible by tensor parallel size (4)"), "config_error"),
    "a licence that was not accepted": (raised("huggingface_hub.errors.GatedRepoError", "401 Client Error. Cannot access gated repo"), "remote_service_error"),
}
MAY_PASS = {
    "a service that is not there": raised("ConnectionRefusedError", "[Errno 111] Connection refused"),
    "a service that is overloaded": raised("requests.exceptions.HTTPError", "503 Server Error: Service Unavailable for url: https://hub.example.org"),
    "a name that is not resolved": raised("socket.gaierror", "[Errno -3] Temporary failure in name resolution"),
    "memory of the GPU": raised("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"),
    "an error of CUDA": raised("RuntimeError", "CUDA error: an illegal memory access was encountered"),
    "a card that is busy": raised("RuntimeError", "CUDA error: all CUDA-capable devices are busy or unavailable"),
    "a peer that is gone": raised("RuntimeError", "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:29500"),
    "a disk that is full": raised("OSError", "[Errno 28] No space left on device: '/out/x'"),
    "a mount that is gone": raised("OSError", "[Errno 116] Stale file handle: '/mnt/x'"),
    "a port that is taken": raised("OSError", "[Errno 98] Address already in use"),
    "a slip of the program, or an empty answer": raised("TypeError", "'NoneType' object is not subscriptable"),
    "what nobody knows": raised("ValueError", "bad sample"),
    "a code and no word": left(3, "step 1", "step 2"),
    "an old complaint, and then more": left(1, "prepare.py: error: unrecognized arguments: --x", "a", "b", "c", "d"),
    "a signal": Exit(rank=0, pid=1, kind=ExitKind.SIGNAL, because="killed", signal=9, tail="train.py: error: unrecognized arguments: --nosuch"),
}


@pytest.mark.parametrize(("exit", "cause"), NEVER.values(), ids=NEVER)
def test_what_every_further_start_would_meet_is_named(exit: Exit, cause: str) -> None:
    assert never_passes(exit) == Refusal(cause=cause)


@pytest.mark.parametrize("exit", MAY_PASS.values(), ids=MAY_PASS)
def test_what_may_pass_is_left_to_the_ladder(exit: Exit) -> None:
    assert never_passes(exit) is None


def test_a_missing_file_is_named_for_its_node_to_look_at() -> None:
    data = raised("FileNotFoundError", "[Errno 2] No such file or directory: 'data/train.bin'")
    assert never_passes(data) == Refusal(cause="file_not_found", path="data/train.bin")
    script = left(2, "python: can't open file '/w/trian.py': [Errno 2] No such file or directory")
    assert never_passes(script) == Refusal(cause="file_not_found", path="/w/trian.py")
