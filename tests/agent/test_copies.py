"""Copies in other failure domains, between real agents' parts over real sockets: whatever one domain takes with it is still there, bit for bit.

The disk takes nothing here, so that memory has to do it alone. Control's part is played with control's own `Memory`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.agent import copies as copies_module
from holdfast.agent.copies import Copies, NotHeld
from holdfast.agent.persist import Persist
from holdfast.checkpoint.commit import Shard
from holdfast.checkpoint.found import list_complete, verify
from holdfast.checkpoint.persist import index_path, read_index
from holdfast.checkpoint.remove import Retention
from holdfast.checkpoint.snapshot import Buffer, describe, peek
from holdfast.control.memory import Memory
from holdfast.domain.held import Held
from holdfast.domain.job import JobPhase, JobSpec
from holdfast.domain.state import Gang, Node, NodeState, State
from holdfast.wire.frames import serve

SIZE = 3 << 20
WITHIN_S = 60.0


def content(rank: int, step: int) -> bytes:
    return hashlib.shake_128(f"{rank}/{step}".encode()).digest(SIZE)


def seal(directory: Path, checkpoints: Path, *, rank: int, step: int, world_size: int, which: int = 0, generation: int = 1) -> None:
    """What a worker does when it saves."""
    path = directory / f"snapshot-{rank}-{which}"
    buffer = Buffer.open(path) or Buffer.create(path, SIZE + (1 << 16))
    buffer.break_seal()
    buffer.data[:SIZE] = content(rank, step)
    tensors = [{"kind": {"dtype": "uint8", "shape": [SIZE]}, "offset": 0, "size": SIZE}]
    shard = Shard(step=step, generation=generation, world_size=world_size, rank=rank)
    note = describe(shard, checkpoints, Retention(), {"own": {"document": {"$": "tensor", "n": 0}, "tensors": tensors}})
    buffer.seal(step, generation, SIZE, note)


@dataclass
class Machine:
    """The part of an agent that keeps memory."""

    directory: Path
    checkpoints: Path
    persist: Persist = field(init=False)
    copies: Copies = field(init=False)
    _server: asyncio.Server | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def peer(self) -> str:
        return str(self.directory / "peer.sock")

    async def start(self) -> None:
        self.directory.mkdir()
        self.persist = Persist(self.directory, self.checkpoints)
        self.copies = Copies(self.directory, self.persist)
        self._server = await serve(Path(self.peer), self.copies.serve)
        self._tasks = [asyncio.create_task(self.persist.run()), asyncio.create_task(self.copies.run())]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.copies.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.persist.settle(within_s=10.0)
        Path(self.peer).unlink(missing_ok=True)


@dataclass
class Cluster:
    """Machines, and what control knows of them."""

    machines: dict[str, Machine]
    state: State
    memory: Memory = field(default_factory=Memory)

    def look(self) -> None:
        """What control does with each agent's readings."""
        for name, machine in self.machines.items():
            self.memory.heard(name, machine.persist.held())
        whole = self.memory.whole(self.state, step=0, rate=None, now=0.0)
        for name, of in self.memory.holders(self.state).items():
            self.machines[name].copies.hold({int(rank): peer for rank, peer in of.items()})
            if whole is not None:
                self.machines[name].persist.whole(whole.sealed, whole.safe, whole.permit)

    async def until(self, come_true: Callable[[], bool], what: str) -> None:
        deadline = asyncio.get_running_loop().time() + WITHIN_S
        while not come_true():
            assert asyncio.get_running_loop().time() < deadline, f"{what} did not come true within {WITHIN_S:g} s"
            self.look()
            await asyncio.sleep(0.02)

    def domains_with(self, step: int) -> list[set[str]]:
        """By rank."""
        assert self.state.spec is not None
        found: list[set[str]] = [set() for _ in range(self.state.spec.world_size)]
        for name, machine in self.machines.items():
            for held in machine.persist.held():
                if held.step == step:
                    found[held.rank].add(self.memory.domains[name])
        return found

    async def lose(self, domain: str) -> None:
        for name in [name for name, its in self.memory.domains.items() if its == domain and name in self.machines]:
            await self.machines.pop(name).stop()
            self.memory.gone(name)
            self.state.nodes[name].state = NodeState.LOST

    def bytes_of(self, rank: int, step: int) -> set[bytes]:
        """All that anybody holds of it."""
        found = set()
        for machine in self.machines.values():
            for held in machine.persist.held():
                if (held.rank, held.step) == (rank, step):
                    path = machine.persist.where(held)
                    assert path is not None
                    buffer = Buffer.open(path)
                    assert buffer is not None
                    found.add(bytes(buffer.data[:SIZE]))
        return found


@contextlib.asynccontextmanager
async def cluster(tmp_path: Path, *, nodes: int, domains: int, spares: int = 0) -> AsyncIterator[Cluster]:
    """`nodes` with a rank each, and spares, dealt round the domains. Where the checkpoints should go there is no directory."""
    checkpoints = tmp_path / "checkpoints"
    checkpoints.write_text("not a directory")
    names = [f"node-{number}" for number in range(nodes + spares)]
    machines = {name: Machine(tmp_path / name, checkpoints) for name in names}
    state = State(spec=JobSpec(job="test", argv=("x",), nodes=nodes, spares=spares), phase=JobPhase.RUNNING, generation=1)
    state.gang = Gang(generation=1, nodes=tuple(names[:nodes]))
    state.nodes = {name: Node(host="", peer=machine.peer) for name, machine in machines.items()}
    found = Cluster(machines, state)
    found.memory.domains = {name: f"domain-{number % domains}" for number, name in enumerate(names)}
    try:
        for machine in machines.values():
            await machine.start()
        for rank in range(nodes):
            seal(machines[names[rank]].directory, checkpoints, rank=rank, step=10, world_size=nodes)
        yield found
    finally:
        for machine in found.machines.values():
            await machine.stop()


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 110.0))  # type: ignore[arg-type]


def in_two_domains(domains: Iterable[set[str]]) -> bool:
    return all(len(one) >= 2 for one in domains)


@pytest.mark.parametrize("lost", range(4))
def test_no_single_domain_takes_state_with_it_nor_a_second_one_after_the_copies_are_made_again(tmp_path: Path, lost: int) -> None:
    """Eight nodes in four domains, no spare: each domain in turn, and after it each of the others."""

    async def work() -> None:
        for number, then in enumerate(domain for domain in range(4) if domain != lost):
            place = tmp_path / str(number)
            place.mkdir()
            async with cluster(place, nodes=8, domains=4) as cells:
                await cells.until(lambda: in_two_domains(cells.domains_with(10)), "a copy of each rank in another domain")
                for domain in (lost, then):
                    await cells.lose(f"domain-{domain}")
                    cells.look()
                    newest = cells.memory.newest()
                    assert newest is not None
                    assert newest.step == 10, f"state was lost with domain {domain}"
                    assert all(cells.bytes_of(rank, 10) == {content(rank, 10)} for rank in range(8))
                    await cells.until(lambda: in_two_domains(cells.domains_with(10)), f"the copies lost with domain {domain}, made again")

    run(work)


def test_a_newer_step_replaces_a_copy_and_each_node_holds_one_copy_of_one_rank(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, nodes=4, domains=4) as cells:
            await cells.until(lambda: in_two_domains(cells.domains_with(10)), "copies of step 10")
            for rank in range(4):
                seal(cells.machines[f"node-{rank}"].directory, cells.machines["node-0"].checkpoints, rank=rank, step=20, world_size=4, which=1)
            await cells.until(lambda: in_two_domains(cells.domains_with(20)), "copies of step 20")
            for machine in cells.machines.values():
                assert len([path for path in machine.directory.glob("copy-*") if path.suffix != ".index"]) == 1
            assert all(cells.bytes_of(rank, 20) == {content(rank, 20)} for rank in range(4))

    run(work)


def test_a_step_that_not_every_rank_has_replaces_no_copy(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, nodes=4, domains=4) as cells:
            await cells.until(lambda: in_two_domains(cells.domains_with(10)), "copies of step 10")
            first = cells.machines["node-0"]
            seal(first.directory, first.checkpoints, rank=0, step=20, world_size=4, which=1)
            await cells.until(lambda: any(held.step == 20 for held in first.persist.held()), "the index of step 20")
            for _ in range(20):
                cells.look()
                await asyncio.sleep(0.02)
            assert in_two_domains(cells.domains_with(10))

    run(work)


async def indexed(owner: Machine) -> None:
    """Until its own snapshot can be asked for. Nobody looks meanwhile, so nobody is told to fetch it."""
    while not any(held.rank == 0 for held in owner.persist.held()):
        await asyncio.sleep(0.01)


def test_a_copy_that_is_damaged_on_its_way_is_not_held(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, nodes=2, domains=2) as cells:
            owner = cells.machines["node-0"]
            await indexed(owner)
            path = owner.directory / "snapshot-0-0"
            buffer = Buffer.open(path)
            assert buffer is not None
            buffer.data[12345] ^= 1
            with pytest.raises(NotHeld, match="what arrived is not what was sealed"):
                await cells.machines["node-1"].copies.fetch(Held(generation=1, step=10, rank=0, world_size=2), owner.peer)
            assert not [held for held in cells.machines["node-1"].persist.held() if held.rank == 0]

    run(work)


def test_a_copy_that_the_node_cannot_hold_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copies_module, "available_bytes", lambda: 1 << 20)

    async def work() -> None:
        async with cluster(tmp_path, nodes=2, domains=2) as cells:
            said = ""

            def refused() -> bool:
                nonlocal said
                said += capfd.readouterr().err
                return "no copy of rank 0 is held here: it takes 0.0 GB, and 0.0 GB are free" in said

            await cells.until(refused, "a refusal")
            assert not list(cells.machines["node-1"].directory.glob("copy-*"))

    run(work)


def test_a_peer_that_dies_in_the_middle_leaves_nothing_that_counts(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, nodes=2, domains=2) as cells:
            owner, other = cells.machines["node-0"], cells.machines["node-1"]
            await indexed(owner)
            fetching = asyncio.create_task(other.copies.fetch(Held(generation=1, step=10, rank=0, world_size=2), owner.peer))
            path = other.directory / "snapshot-0-0"
            while not path.exists():
                await asyncio.sleep(0)
            fetching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await fetching
            head = peek(path)
            assert head is None or not head.is_sealed
            assert read_index(path) is None
            assert not index_path(path).exists()

    run(work)


def test_what_only_memory_has_is_made_durable_in_the_end_with_the_copy_of_a_lost_node(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, nodes=2, domains=2) as cells:
            await cells.until(lambda: in_two_domains(cells.domains_with(10)), "a copy of each rank")
            await cells.lose("domain-1")
            left = cells.machines["node-0"]
            left.checkpoints.unlink()
            left.checkpoints.mkdir()  # The disk works again, and the job ends.
            assert cells.memory.ranks_of_lost_nodes(cells.state) == (1,)
            left.persist.try_again()
            await left.persist.settle(within_s=30.0)
            assert not list_complete(left.checkpoints)
            await left.copies.persist((1,))
            (found,) = list_complete(left.checkpoints)
            assert (found.step, found.world_size) == (10, 2)
            verify(found.path)

    run(work)


def test_holders_are_told_only_what_keeps_copies_in_other_domains() -> None:
    """All ways in which 6 nodes can lie in 3 domains: an owner's holder is never of its own domain."""
    for layout in itertools.product("abc", repeat=6):
        memory = Memory(domains={f"node-{number}": domain for number, domain in enumerate(layout)})
        state = State(spec=JobSpec(job="test", argv=("x",), nodes=6), phase=JobPhase.RUNNING)
        state.gang = Gang(generation=1, nodes=tuple(memory.domains))
        state.nodes = {name: Node(host="", peer=f"/{name}") for name in memory.domains}
        for holder, of in memory.holders(state).items():
            assert len(of) <= 1
            assert all(memory.domains[peer.removeprefix("/")] != memory.domains[holder] for peer in of.values())
