"""Rejoin, seen from within: a gang that breaks again and again leaves nothing behind, and whatever a loop is doing, it is left or finished, never torn.

The test is the agent here: it says its words into the ranks' pipes and reads what they did in their beats.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from trainer.gang import Gang

from holdfast.domain.beat import BEAT_FILE_BYTES, WAITS, WHOLE, read_beat
from holdfast.trainer.handing import NOBODY_CODE
from holdfast.trainer.rejoining import _forget_meshes

PATIENCE_S = 60.0
RANKS = 2
TIMES = int(os.environ.get("HOLDFAST_REJOINS", "10"))


class Agent:
    """Breaks a gang and puts it together again, with all its ranks."""

    def __init__(self, gang: Gang, directory: Path) -> None:
        self._gang, self._directory, self._generation = gang, directory, 0
        self._stores: list[Any] = []

    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._gang._processes]

    def part(self, ranks: list[int]) -> dict[int, int]:
        """The step that each rank holds whole."""
        for rank in ranks:
            self._say(rank, f"part {self._generation}")
        return {rank: self._waits(rank) for rank in ranks}

    def place(self, ranks: list[int], *, goes_back: bool = False) -> None:
        """Where each goes on: with what one of them holds, or, if all go back, with what a checkpoint has. Here there is none."""
        import torch.distributed as dist

        self._generation += 1
        self._stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
        for rank in ranks:
            beats = self._beats(rank)
            beats.write_bytes(bytes(BEAT_FILE_BYTES))
            place = self._directory / f"place-{self.pids()[rank]}"
            env = {
                "MASTER_PORT": str(self._stores[0].port), "HOLDFAST_BEATS": str(beats), "HOLDFAST_GENERATION": str(self._generation),
                "HOLDFAST_REJOIN": "" if goes_back else "1",
            }  # fmt: skip
            place.write_text(json.dumps(env))
            self._say(rank, f"rejoin {self._generation}")

    def step(self, rank: int) -> int:
        beat = read_beat(self._beats(rank).read_bytes()) if self._beats(rank).exists() else None
        return beat.step if beat is not None and not beat.flags & WAITS and beat.phase == "step" else -1

    def wait_for_step(self, step: int) -> None:
        eventually(lambda: min(self.step(rank) for rank in range(RANKS)) >= step, self._gang)

    def wait_until_nobody_steps(self) -> None:
        """What workers had fetched ahead is used up."""
        seen: list[int] = []
        while seen != (seen := [self.step(rank) for rank in range(RANKS)]):
            time.sleep(0.3)

    def _waits(self, rank: int) -> int:
        def look() -> bool:
            beat = read_beat(self._beats(rank).read_bytes())
            return beat is not None and bool(beat.flags & WAITS)

        eventually(look, self._gang)
        beat = read_beat(self._beats(rank).read_bytes())
        assert beat is not None
        return beat.step if beat.flags & WHOLE else -1

    def _say(self, rank: int, word: str) -> None:
        pipe = self._directory / f"rejoin-{self.pids()[rank]}"
        eventually(pipe.exists, self._gang)
        pipe.write_text(f"{word}\n")

    def _beats(self, rank: int) -> Path:
        return self._gang.directory / (f"rank-{rank}.beats" if not self._generation else f"rank-{rank}.beats.{self._generation}")


def eventually(look: Any, gang: Gang) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not look():
        if time.monotonic() > deadline_s:
            for rank in range(gang.ranks):
                gang.signal(rank, signal.SIGUSR1)  # What it is doing, for the message.
            time.sleep(1.0)
            raise AssertionError("\n".join(gang.log(rank) for rank in range(gang.ranks)))
        assert all(process.is_alive() for process in gang._processes), "\n".join(gang.log(rank) for rank in range(gang.ranks))
        time.sleep(0.002)


def gang_of(tmp_path: Path, body: Any, **arguments: Any) -> Gang:
    memory = tmp_path / "memory"
    memory.mkdir()
    return Gang(tmp_path / "gang", body, ranks=RANKS, env={"HOLDFAST_SNAPSHOTS": str(memory), "HOLDFAST_GENERATION": "0"}, where=str(tmp_path), **arguments)


def trains_a_kept_model(where: str) -> None:
    """And writes down, at the beginning of each life of its gang, what this process has."""
    import faulthandler
    import gc

    import torch
    import torch.distributed as dist
    from torch import nn

    import holdfast

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(net.parameters())

    @holdfast.rejoin
    def train() -> None:
        # Once in a while gloo does not notice that its sockets are shut. The agent would end the rank; here it has a timeout of its own.
        dist.init_process_group("gloo", timeout=timedelta(seconds=10))
        model = nn.parallel.DistributedDataParallel(net)
        run = holdfast.guard(model=model, optimizer=optimizer)
        gc.collect()
        has = {
            "threads": len(os.listdir("/proc/self/task")), "descriptors": len(os.listdir("/proc/self/fd")), "groups": len(dist.distributed_c10d._world.pg_map),
            "memory": int(Path("/proc/self/statm").read_text().split()[1]) * 4096, "wrappers": sum(isinstance(one, type(model)) for one in gc.get_objects()),
            "hooks": len(optimizer._optimizer_step_pre_hooks) + sum(len(one._post_accumulate_grad_hooks or ()) for one in net.parameters()),
        }  # fmt: skip
        with (Path(where) / f"has-{dist.get_rank()}").open("a") as file:
            file.write(json.dumps(has) + "\n")
        for _ in run.steps(1 << 30):
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()

    train()


def trains_a_sharded_model(where: str) -> None:
    """Made anew whenever the function is called, of random numbers that were seeded outside of it. Writes down the same, and what it began with."""
    import faulthandler
    import gc

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    import holdfast

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.manual_seed(0)

    @holdfast.rejoin
    def train() -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=10))
        mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("shard",))
        model = nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.1), nn.Linear(256, 8))
        began_with = float(model[0].weight.sum())
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        run = holdfast.guard(model=model, optimizer=optimizer)
        gc.collect()
        objects = gc.get_objects()
        has = {
            "threads": len(os.listdir("/proc/self/task")), "descriptors": len(os.listdir("/proc/self/fd")), "groups": len(dist.distributed_c10d._world.pg_map),
            "memory": int(Path("/proc/self/statm").read_text().split()[1]) * 4096, "wrappers": sum(isinstance(one, FSDPModule) for one in objects),
            "hooks": sum(isinstance(one, DeviceMesh) for one in objects), "began_with": began_with,
        }  # fmt: skip
        with (Path(where) / f"has-{dist.get_rank()}").open("a") as file:
            file.write(json.dumps(has) + "\n")
        del objects
        for _ in run.steps(1 << 30):
            model(torch.randn(8, 64)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # Arithmetic of sharded tensors, about which torch remembers what it found out.
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()

    train()


@pytest.mark.timeout(300)  # A rank that does not notice that its sockets are shut costs ten seconds each time, and on a busy machine there are some.
def test_ranks_with_parts_of_a_model_hold_nothing_whole_and_rejoin_without_leaving_anything_behind(tmp_path: Path) -> None:
    with gang_of(tmp_path, trains_a_sharded_model) as gang:
        agent, everybody = Agent(gang, tmp_path / "memory"), list(range(RANKS))
        for _ in range(TIMES):
            agent.wait_for_step(3)
            assert set(agent.part(everybody).values()) == {-1}
            agent.place(everybody, goes_back=True)
        agent.wait_for_step(3)
        expect_no_growth(tmp_path)
        began = {json.loads(line)["began_with"] for rank in everybody for line in (tmp_path / f"has-{rank}").read_text().splitlines()}
        assert len(began) == 1, f"a model that is made anew is not the one that a new process makes: {began}"


def keeps_a_sharded_model(where: str) -> None:
    """From call to call, though the process group that it was sharded for is gone."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    import holdfast

    net = nn.Linear(64, 8)

    @holdfast.rejoin
    def train() -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=10))
        if not hasattr(net, "unshard"):
            fully_shard(net)
        optimizer = torch.optim.AdamW(net.parameters())
        run = holdfast.guard(model=net, optimizer=optimizer)
        for _ in run.steps(1 << 30):
            net(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    train()


def test_a_model_that_was_sharded_for_a_gang_that_is_gone_is_not_trained_on(tmp_path: Path) -> None:
    with gang_of(tmp_path, keeps_a_sharded_model) as gang:
        agent, everybody = Agent(gang, tmp_path / "memory"), list(range(RANKS))
        agent.wait_for_step(3)
        agent.part(everybody)
        agent.place(everybody, goes_back=True)
        assert [gang.wait_for_exit(rank) for rank in everybody] == [NOBODY_CODE] * RANKS
        assert "its model was sharded for the process group of a gang that is gone" in gang.log(0)
    assert (tmp_path / "memory" / "cannot-rejoin").exists(), "the next ones would try it again"


def test_rejoins_leave_nothing_behind_however_many(tmp_path: Path) -> None:
    with gang_of(tmp_path, trains_a_kept_model) as gang:
        agent, everybody = Agent(gang, tmp_path / "memory"), list(range(RANKS))
        step = 1
        for _ in range(TIMES):
            agent.wait_for_step(step)
            held = agent.part(everybody)
            assert max(held.values()) >= step
            assert max(held.values()) - min(held.values()) <= 1
            step = max(held.values()) + 1
            agent.place(everybody)
        agent.wait_for_step(step)
        expect_no_growth(tmp_path)


def waits_for_its_storage(where: str, workers: int, persistent: bool) -> None:
    """A sample is not there as long as a file `stuck` is: then whoever reads one waits at a pipe at whose other end nobody is. The loader is kept."""
    import faulthandler

    import torch
    import torch.distributed as dist
    from torch import nn

    import holdfast

    faulthandler.register(signal.SIGUSR1, all_threads=True)

    class Storage(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 1 << 16

        def __getitem__(self, index: int) -> torch.Tensor:
            if (Path(where) / "stuck").exists():
                (Path(where) / f"waits-{os.environ['RANK']}").touch()
                (Path(where) / "storage").read_bytes()
            return torch.full((64,), float(index))

    net = nn.Linear(64, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
    data = Storage()
    loader = torch.utils.data.DataLoader(
        data, batch_sampler=holdfast.Sampler(data, batch_size=2 * RANKS, shuffle=False), num_workers=workers, persistent_workers=persistent
    )

    @holdfast.rejoin
    def train() -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=10))
        run = holdfast.guard(model=nn.parallel.DistributedDataParallel(net), optimizer=optimizer)
        for batch in run.steps(loader):
            assert batch[0, 0] == run.step * 2 * RANKS + 2 * dist.get_rank(), "not the batch of this step"
            nn.functional.mse_loss(net(batch), torch.zeros(2, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.002)

    train()


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_rank_that_waits_for_its_data_leaves_its_gang_and_goes_on_where_it_was(tmp_path: Path, workers: int, persistent: bool) -> None:
    os.mkfifo(tmp_path / "storage")
    with gang_of(tmp_path, waits_for_its_storage, workers=workers, persistent=persistent) as gang:
        agent, everybody = Agent(gang, tmp_path / "memory"), list(range(RANKS))
        for _ in range(2):
            agent.wait_for_step(3)
            (tmp_path / "stuck").touch()
            eventually(lambda: all((tmp_path / f"waits-{rank}").exists() for rank in everybody), gang)
            agent.wait_until_nobody_steps()
            began = time.monotonic()
            held = agent.part(everybody)
            took_s = time.monotonic() - began
            assert min(held.values()) >= 3
            assert took_s < 4.5, "torch waits 5 s for a worker that does not end, and the agent for nobody as long as that"
            (tmp_path / "stuck").unlink()
            os.close(os.open(tmp_path / "storage", os.O_RDWR))  # Whoever still waits is answered.
            for rank in everybody:
                (tmp_path / f"waits-{rank}").unlink()
            agent.place(everybody)
        agent.wait_for_step(max(held.values()) + 3)


def expect_no_growth(tmp_path: Path) -> None:
    for rank in range(RANKS):
        lives = [json.loads(line) for line in (tmp_path / f"has-{rank}").read_text().splitlines()]
        assert len(lives) == TIMES + 1
        for what in ("threads", "descriptors", "groups", "wrappers", "hooks"):
            assert lives[-1][what] <= max(life[what] for life in lives[1:4]), f"{what} of rank {rank} grew: {[life[what] for life in lives]}"
        grown = lives[-1]["memory"] - lives[3]["memory"]
        assert grown < (4 << 20) + TIMES * (64 << 10), f"rank {rank} grew by {grown} bytes in {TIMES - 3} rejoins"


def test_what_a_script_keeps_of_results_of_its_own_is_left_alone_and_in_nobodys_way() -> None:
    matched = functools.lru_cache(re.compile("a+").match)  # Of no module: it is a method of an object that is not written in Python.
    assert matched("aa") is not None
    _forget_meshes()
    assert matched.cache_info().currsize == 1
