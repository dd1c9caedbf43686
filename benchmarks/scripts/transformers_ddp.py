"""A script that is slow to start: it imports transformers and builds a model of about 100 million parameters. Written for torchrun."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

scratch = sys.argv[1]
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(GPT2LMHeadModel(GPT2Config(vocab_size=20_000, n_layer=12, n_embd=768, n_head=12, bos_token_id=0, eos_token_id=0)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
if rank == 0:
    print(f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.0f} million parameters", flush=True)

log = os.open(os.path.join(scratch, f"steps-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for step in range(1_000_000):
    tokens = torch.randint(20_000, (1, 16))
    optimizer.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    os.write(log, f"{step + 1} {time.monotonic()} {os.getpid()}\n".encode())
