"""A decoder-only transformer of a few million parameters that learns to write a ship's log, byte by byte, on any number of ranks.

It is an ordinary script for torchrun, and runs as one: `torchrun --nproc-per-node 2 -m holdfast.demo.train`. The lines that put it under Holdfast's
protection are marked with an arrow. It listens for the faults that only a script itself can have: an exception, a start that fails.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import holdfast
from holdfast.chaos.listen import Listener
from holdfast.demo.text import ships_log

VOCABULARY = 256  # Bytes.
HEAD = 32
CONTEXT = 64


class Block(nn.Module):
    """Attention to what came before, then thought about it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_thought = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask, self.answer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.thought = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.ask(self.before_attention(x)).view(batch, length, 3, width // HEAD, HEAD).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.answer(seen.transpose(1, 2).reshape(batch, length, width))
        thought: Tensor = self.thought(self.before_thought(x))
        return x + thought


class Writer(nn.Module):
    """Bytes in, for each of them the scores of the next byte out."""

    def __init__(self, *, layers: int, width: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.end, self.scores = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        x = self.letters(text) + self.places(torch.arange(text.shape[1]))
        scores: Tensor = self.scores(self.end(self.blocks(x)))
        return scores


class Windows(Dataset[Tensor]):
    """The text in pieces of one context each, and the byte after it."""

    def __init__(self, text: bytes) -> None:
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return (len(self._text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> Tensor:
        return self._text[index * CONTEXT : (index + 1) * CONTEXT + 1]


def main() -> None:
    options = read_options()
    rank, orders = int(os.environ.get("RANK", "0")), Listener()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    writer = Writer(layers=options.layers, width=options.width)
    model = DistributedDataParallel(writer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    windows = Windows(ships_log(options.steps * options.batch * CONTEXT + 1))  # As much as is read in one pass.
    loader = DataLoader(windows, batch_sampler=holdfast.Sampler(windows, batch_size=options.batch))  # <-
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=options.save_every)  # <-
    if rank == 0 and run.step == 0:
        print(f"training {sum(one.numel() for one in model.parameters()):,} parameters on {len(windows) * CONTEXT:,} bytes", flush=True)
    for batch in run.steps(loader):  # <-
        orders.listen(run.step)
        loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.report(loss=loss)  # <-
        if rank == 0 and (run.step + 1) % options.print_every == 0:
            print(f"step {run.step + 1:4d}   loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"The model writes:\n{write(writer, b'Day 1.', 160)}", flush=True)
    dist.destroy_process_group()


@torch.no_grad()
def write(writer: Writer, begin: bytes, length: int) -> str:
    """Go on from `begin`, always with the likeliest byte."""
    text = list(begin)
    for _ in range(length):
        scores = writer(torch.tensor([text[-CONTEXT:]]))[0, -1]
        text.append(int(scores.argmax()))
    return bytes(text).decode(errors="replace")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small transformer on a ship's log.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8, help="sequences in a step, over all ranks")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--print-every", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
