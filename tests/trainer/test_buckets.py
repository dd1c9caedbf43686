"""Four ranks and more than one bucket: sums of gradients come out the same after a resume."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

from trainer.gang import Gang, run_gang

RANKS = 4


def train_wide(result: str, steps: int, die_at: int = -1, hooks: bool = False) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import holdfast

    dist.init_process_group("gloo")
    torch.manual_seed(0)

    class Crossed(nn.Module):
        """More than the 1 MiB of DDP's first bucket, and used in another order than made, so that the second packing differs from the first."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(450, 450) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number in (2, 0, 3, 1):
                x = nn.functional.gelu(self.layers[number](x))
            return x

    layers = Crossed()
    if hooks:
        next(layers.parameters()).register_hook(lambda gradient: gradient)
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(dist.get_rank())  # Equal gradients would add up to the same in any order.
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=2)
    assert all(parameter.grad is None for parameter in model.parameters())
    Path(result, "resumed").write_text(str(run.step))
    for step in run.steps(steps):
        if step == die_at and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = model(torch.randn(8, 450)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        state = b"".join(tensor.numpy().tobytes() for tensor in layers.state_dict().values())
        Path(result, "digest").write_text(hashlib.blake2b(state).hexdigest())


def _env(directory: Path, generation: int) -> dict[str, str]:
    return {"HOLDFAST_GENERATION": f"{generation}", "HOLDFAST_CHECKPOINTS": str(directory / "checkpoints")}


def test_four_ranks_with_many_buckets_resume_bit_for_bit(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_gang(whole, train_wide, ranks=RANKS, env=_env(whole, 1), result=str(whole), steps=8)
    with Gang(broken / "1", train_wide, ranks=RANKS, env=_env(broken, 1), result=str(broken), steps=8, die_at=5) as gang:
        assert -signal.SIGKILL in gang.wait(), gang.log()
    run_gang(broken / "2", train_wide, ranks=RANKS, env=_env(broken, 2), result=str(broken), steps=8)
    assert (broken / "resumed").read_text() == "4"
    assert (broken / "digest").read_text() == (whole / "digest").read_text()


def test_a_model_with_hooks_on_its_gradients_is_left_alone_and_it_is_said(tmp_path: Path) -> None:
    with Gang(tmp_path, train_wide, ranks=2, env=_env(tmp_path, 1), result=str(tmp_path), steps=1, hooks=True) as gang:
        assert gang.wait() == [0, 0], gang.log()
    assert "hooks on their gradients" in gang.log()
