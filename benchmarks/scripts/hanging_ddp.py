"""Training that hangs on demand: the file `do-RANK` in the scratch directory says how, and when it began is written to `began`.

deadlock     two threads hold a lock each and want the other's
mutex        a mutex in C is locked twice
loader       a worker of a data loader never gives its batch
read         a call into the kernel that does not return, as a read from a file server that is gone: state D, and only a kill ends it
spin         Python runs in a circle
spin in C    a loop in C that never lets go of the interpreter
order        this rank waits for a broadcast while all others reduce
absent       this rank sleeps, for ever, where the others wait for it
"""

import ctypes
import itertools
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

CLONE_VFORK, SYS_CLONE = 0x4000, 56  # The parent of a vfork waits in state D until its child is another program; as on x86-64.

scratch = sys.argv[1]
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = holdfast.guard(model=model, optimizer=optimizer, save_every=50)
log = os.open(os.path.join(scratch, f"steps-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def deadlock() -> None:
    locks, both = (threading.Lock(), threading.Lock()), threading.Barrier(2)

    def take(first: threading.Lock, second: threading.Lock) -> None:
        with first:
            both.wait()
            second.acquire()

    threading.Thread(target=take, args=locks, daemon=True).start()
    take(*reversed(locks))


def mutex() -> None:
    libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)


class Stuck(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: int) -> float:
        threading.Event().wait()
        return 0.0


def loader() -> None:
    next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))


def read() -> None:
    if ctypes.CDLL(None).syscall(SYS_CLONE, CLONE_VFORK, 0, 0, 0, 0) == 0:
        threading.Event().wait()


def spin() -> None:
    while True:
        pass


def spin_in_c() -> None:
    sum(itertools.repeat(0))


def order() -> None:
    dist.broadcast(torch.zeros(64), src=(rank + 1) % dist.get_world_size())


def absent() -> None:
    while True:
        time.sleep(3600)


def hang_if_asked() -> None:
    try:
        with open(os.path.join(scratch, f"do-{rank}")) as file:
            how = file.read()
    except FileNotFoundError:
        return
    os.unlink(os.path.join(scratch, f"do-{rank}"))
    with open(os.path.join(scratch, "began.new"), "w") as file:
        file.write(str(time.time()))
    os.replace(os.path.join(scratch, "began.new"), os.path.join(scratch, "began"))
    {
        "deadlock": deadlock, "mutex": mutex, "loader": loader, "read": read, "spin": spin, "spin in C": spin_in_c, "order": order, "absent": absent,
    }[how]()  # fmt: skip


for step in run.steps(10_000_000):
    hang_if_asked()
    x = torch.randn(8, 64)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
    time.sleep(0.005)
    os.write(log, f"{step + 1} {time.monotonic()} {os.getpid()}\n".encode())
