"""A small training, real in every part: data from files, a model, checkpoints, ranks, a tracker. What fails it is what it is given."""

from __future__ import annotations

import argparse
import json
import logging
import os
import pickle
import signal
import sys
import time
import urllib.request
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, args):
        self.width, self.classes, self.kind = args.width, args.classes, args.format
        self.files = sorted(Path(args.data).iterdir()) if args.data else None
        if args.data and not self.files:
            raise ValueError(f"no samples in {args.data}")

    def __len__(self):
        return 256 if self.files is None else len(self.files) * 8

    def __getitem__(self, index):
        if self.files is None:
            torch.manual_seed(index)
            return torch.randn(self.width), index % self.classes
        return READERS[self.kind](self.files[index % len(self.files)])


def read_json(path):
    row = json.loads(path.read_text())
    return torch.tensor(row["features"]), row["label"]


def read_image(path):
    import numpy
    from PIL import Image

    with Image.open(path) as image:
        pixels = numpy.asarray(image.convert("L").resize((4, 4)), dtype="float32").copy()
    return torch.from_numpy(pixels).flatten() / 255, 1


def read_pickle(path):
    with path.open("rb") as file:
        row = pickle.load(file)
    return torch.tensor(row[0]), row[1]


def read_numpy(path):
    import numpy

    row = numpy.load(path)
    return torch.from_numpy(row[:-1]).float(), int(row[-1])


def read_csv(path):
    values = [float(value) for value in path.read_text().strip().split(",")]
    return torch.tensor(values[:-1]), int(values[-1])


def read_shard(path):
    row = torch.load(path)
    return row["x"], int(row["y"])


READERS = {"json": read_json, "image": read_image, "pickle": read_pickle, "numpy": read_numpy, "csv": read_csv, "shard": read_shard}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="")
    parser.add_argument("--format", choices=sorted(READERS), default="json")
    parser.add_argument("--config", default="")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--model-width", type=int, default=0)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--model-classes", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--resume", default="")
    parser.add_argument("--save", default="")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--tracker", default="")
    parser.add_argument("--weights-from", default="")
    parser.add_argument("--check-finite", action="store_true")
    parser.add_argument("--loss-limit", type=float, default=0.0)
    parser.add_argument("--seconds-per-step", type=float, default=0.0)
    parser.add_argument("--style", type=int, default=0)
    parser.add_argument("--on-notice", choices=["", "term", "usr1"], default="")
    parser.add_argument("--timeout-s", type=float, default=20.0)
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    if args.config:
        for key, value in json.loads(Path(args.config).read_text()).items():
            if not hasattr(args, key):
                parser.error(f"{args.config}: unknown setting '{key}'")
            setattr(args, key, type(getattr(args, key))(value))
    if args.batch <= 0 or args.steps <= 0:
        raise ValueError(f"batch and steps must be positive, got batch={args.batch}, steps={args.steps}")
    return args


def build(args):
    model = nn.Sequential(nn.Linear(args.model_width or args.width, 32), nn.ReLU(), nn.Linear(32, args.model_classes or args.classes))
    return model.to(getattr(torch, args.dtype))


def fetch(url):
    with urllib.request.urlopen(url, timeout=2) as answer:
        return json.load(answer)


def save(model, optimizer, step, directory):
    path = Path(directory) / f"step_{step}.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
    print(f"saved {path}", flush=True)


def restore(model, optimizer, path):
    print(f"restoring from {path}", flush=True)
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def show(style, step, steps, loss, began):
    if style == 0:
        print(f"step {step} loss {loss:.4f}", flush=True)
    elif style == 1:
        logging.info("iter: %d, total_loss: %.4f, time: %.3f", step, loss, time.time() - began)
    elif style == 2:
        print({"loss": round(loss, 4), "learning_rate": 0.05, "epoch": round(step / steps, 2)}, flush=True)
    else:
        sys.stderr.write(f"\rEpoch 0: {100 * step // steps:3d}%|{'#' * (10 * step // steps):10s}| {step}/{steps} [00:01<00:03, loss={loss:.3f}]")
        sys.stderr.flush()


def main():
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s - %(levelname)s - %(message)s")
    torch.manual_seed(0)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    notices = []
    if args.on_notice:
        signal.signal(signal.SIGTERM if args.on_notice == "term" else signal.SIGUSR1, lambda number, _: notices.append(number))
    if world > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout_s))
        print(f"rank {rank} of {world} is ready", flush=True)
    if args.weights_from:
        print("weights:", fetch(args.weights_from), flush=True)
    model = build(args)
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[args.optimizer](model.parameters(), lr=args.lr)
    step = restore(model, optimizer, args.resume) if args.resume else 0
    if world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    loader = DataLoader(Samples(args), batch_size=args.batch, shuffle=True, num_workers=args.workers)
    began = time.time()
    while step < args.steps:
        for features, labels in loader:
            loss = nn.functional.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                show(args.style, step, args.steps, loss.item(), began)
            if args.check_finite and not torch.isfinite(loss):
                raise FloatingPointError(f"loss is {loss.item()} at step {step}")
            if args.loss_limit and loss.item() > args.loss_limit:
                raise RuntimeError(f"training diverged: loss {loss.item():.1f} at step {step} is over the limit of {args.loss_limit}")
            if args.tracker and step % 5 == 0:
                fetch(f"{args.tracker}?step={step}")
            if notices:
                print(f"received signal {notices[0]}: this node is being taken away (preemption), saving at step {step} and leaving", flush=True)
                if args.save:
                    save(model, optimizer, step, args.save)
                sys.exit(128 + notices[0])
            if args.save and step % args.save_every == 0 and rank == 0:
                save(model, optimizer, step, args.save)
            if args.seconds_per_step:
                time.sleep(args.seconds_per_step)
            if step >= args.steps:
                break
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
    print("Training completed.", flush=True)


if __name__ == "__main__":
    main()
