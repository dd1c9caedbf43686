"""The training of struck_ddp.py as one writes it for Ray Train, and a Ray of its own to run it: `ray_ddp.py SCRATCH N TEMPORARY`."""

import os
import sys
import tempfile
import time
from pathlib import Path

import ray
import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

from holdfast.chaos.listen import Listener

SILENCE_S = 5  # Of a collective, after which a rank is given up.


def train(given: dict[str, str]) -> None:
    scratch, rank = Path(given["scratch"]), ray.train.get_context().get_world_rank()
    orders = Listener(scratch, rank=rank)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)))
    optimizer = torch.optim.AdamW(model.parameters())
    log = os.open(scratch / f"steps-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    first, saved = 0, ray.train.get_checkpoint()
    if saved is not None:
        with saved.as_directory() as place:
            state = torch.load(Path(place) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, 1_000_000):
        orders.listen(step)
        x = torch.randn(8, 64)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        os.write(log, f"{step + 1} {time.monotonic()} {os.getpid()}\n".encode())
        if (step + 1) % 10 == 0:
            with tempfile.TemporaryDirectory(dir=scratch) as place:  # Not where it would stay if we are killed here.
                if rank == 0:
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, Path(place) / "state.pt")
                ray.train.report({"loss": loss.item()}, checkpoint=Checkpoint.from_directory(place) if rank == 0 else None)


if __name__ == "__main__":
    scratch, count, temporary = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    # Not one that happens to run here: a fresh one, with little memory.
    ray.init("local", num_cpus=count, num_gpus=0, object_store_memory=100 << 20, include_dashboard=False, _temp_dir=temporary)
    TorchTrainer(
        train,
        train_loop_config={"scratch": scratch},
        scaling_config=ScalingConfig(num_workers=count),
        torch_config=TorchConfig(backend="gloo", timeout_s=SILENCE_S),
        run_config=RunConfig(
            storage_path=str(Path(scratch) / "results"), checkpoint_config=CheckpointConfig(num_to_keep=1), failure_config=FailureConfig(max_failures=-1)
        ),
    ).fit()
