"""The agent: effects in, events out. `python -m holdfast.agent NODE.json PARENT-PID`.

Small loops share one thread: talk with control, hear the warm parent, read beats, probe processes, keep snapshots and copies. Each effect is
recorded before it is performed; its answer is recorded before it is told; what is told is kept until control has written it down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import socket
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import msgspec

from holdfast.agent import checks, collectives, parting, profiles, stacks, tree
from holdfast.agent.copies import Copies, NotHeld
from holdfast.agent.endings import Endings
from holdfast.agent.environment import error_path, worker_environment
from holdfast.agent.heat import Heat
from holdfast.agent.isolation.isolate import isolate, member_of
from holdfast.agent.measure import EVERY_S, Measure
from holdfast.agent.metrics import AgentMetrics
from holdfast.agent.notices import UNSAID_S, Notices
from holdfast.agent.parent import ParentGone, Row, WarmParent
from holdfast.agent.persist import Persist
from holdfast.agent.recorded import Recorded
from holdfast.agent.save_faults import SaveFaults
from holdfast.agent.scrub import Scrub, from_remote
from holdfast.agent.staging import STAGED, NotStaged, Staging
from holdfast.agent.surroundings import Surroundings
from holdfast.agent.uploads import Sender
from holdfast.agent.watch import Watch
from holdfast.checkpoint.layout import parse_directory_name
from holdfast.crashpoints import crash_point
from holdfast.domain.beat import Beat
from holdfast.domain.effect import (
    CaptureProfile,
    CaptureStacks,
    CheckNode,
    ChooseRanks,
    Effect,
    EndJob,
    FindCheckpoint,
    PartGang,
    StartGang,
    StartStore,
    StopGang,
)
from holdfast.domain.event import EffectDone, EffectFailed, Event, FindingEnded, FindingMade, NodeWarmed, WorkerExited
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.held import Held
from holdfast.domain.interval import Told
from holdfast.domain.node import NO_FD, NodeSpec
from holdfast.errors import HoldfastError
from holdfast.launch.lifeline import adopt_orphans, die_with_parent, show_as
from holdfast.launch.namespaces import hide, join_network, own_shared_memory
from holdfast.wire.codec import decode_effect, encode
from holdfast.wire.frames import BadFrame, Channel, connect, serve
from holdfast.wire.messages import Ack, AnyMessage, Do, Hello, Hold, Interval, Leave, MakeDurable, Readings, Whole
from holdfast.wire.outbox import Outbox
from holdfast.wire.scrape import keep_open

_FREE_EVERY_S = 0.05
_SHARED = "--private for temporary files alone, not for shared memory, which only root may set apart"
_SETTLE_S = 4.0  # For what the workers left in memory: a recovery waits no longer for it, and goes on from an older checkpoint.


class Agent:
    def __init__(self, spec: NodeSpec, *, unkept: tuple[str, ...] = ()) -> None:
        self._spec = spec
        self._isolation = isolate(spec, beside=unkept)
        self._state = Path(spec.state)
        self._instance = uuid.uuid4().hex
        self._recorded = Recorded(self._state / "effects.jsonl")
        self._outbox = Outbox()
        self._channel: Channel | None = None
        self._watch = Watch(Path(spec.shared_memory), self._sample_stack, dict(spec.job.learned.phases) if spec.job.learned is not None else None)
        self._parent = WarmParent(spec, self._parent_told)
        self._persist = Persist(Path(spec.shared_memory), Path(spec.checkpoints))
        self._copies = Copies(Path(spec.shared_memory), self._persist)
        self._sender = Sender(Path(spec.checkpoints), spec.job.remote, here=lambda: 0 in self._watch.ranks())
        self._stacks_read: dict[tuple[int, int], int] = {}  # How much of the stacks of a rank was read.
        self._busy: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._endings = Endings(spec, self._isolation)
        self._leaving = asyncio.Event()
        self._scrub = Scrub(
            Path(spec.shared_memory), Path(spec.checkpoints), self._persist, ranks=lambda: self._watch.ranks(),
            fetch=from_remote(spec.job.remote, self._leaving.is_set),
        )  # fmt: skip
        self._save_faults = SaveFaults(
            spec.node, Path(spec.checkpoints), self._persist, url=spec.job.remote, upload_error=lambda: self._sender.lasting_error
        )
        self._measure = Measure(spec.node, self._watch, disks=[Path(spec.checkpoints)], log_size=self._log_size, save_faults=self._save_faults)
        self._notices = Notices(spec.node, Path(spec.notice), self._tell, kept=self._state / "noticed")
        self._staging = Staging(spec.job.stage, Path(spec.scratch) / STAGED, _say)
        self._surroundings = Surroundings(spec)
        cap = spec.job.power_cap_watts
        self._heat = Heat(cap, self._state / "power", self._too_hot, gpus=spec.gpus) if cap is not None else None
        self._warm = False  # Ranks can be forked at once.
        self._ending = False  # Somebody told us to end while the job goes on.
        self._metrics: AgentMetrics | None = None
        self._persist_copies: tuple[int, ...] = ()
        self._upload_s = 0.0
        self._grace_s = 0.0

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._find_parent()
        peers = await serve(Path(self._spec.peer), self._copies.serve)
        self._measure.start()
        loops = [self._talk(), self._read_beats(), self._probe(), self._send_signals(), self._keep_parent(), self._notices.run()]
        if self._spec.job.metrics is not None and self._spec.metrics_port:
            self._metrics = AgentMetrics(self._spec.job.job, self._spec.node, _say)
            loops.append(keep_open(self._spec.job.metrics, self._spec.metrics_port, self._metrics.text, say=_say))
        loops += [self._persist.run(), self._save_faults.run(), self._copies.run(), self._scrub.run(), *([self._sender.run()] if self._spec.job.remote else [])]
        loops += [self._staging.run()] if self._spec.job.stage else []
        loops += [self._heat.run()] if self._heat is not None else []
        tasks = [asyncio.create_task(loop) for loop in loops]
        self._spawn(self._get_warm())
        self._spawn(asyncio.to_thread(self._surroundings.prepare))
        leaving = asyncio.create_task(self._leaving.wait())
        await asyncio.wait([*tasks, leaving], return_when=asyncio.FIRST_COMPLETED)
        broken = [task for task in tasks if task.done()]
        for task in (*tasks, leaving):
            task.cancel()
        await asyncio.gather(*tasks, leaving, return_exceptions=True)
        peers.close()
        Path(self._spec.peer).unlink(missing_ok=True)
        self._copies.close()
        self._staging.stop()
        if self._heat is not None:
            self._heat.close()
        self._measure.close()
        if broken and not self._leaving.is_set():
            self._sender.stop()
            broken[0].result()  # Our own mistake: stop here, and leave the workers to the agent that comes after us.
        await self._take_down()

    async def _get_warm(self) -> None:
        await self._staging.begin()
        await self._parent.ready.wait()
        self._warm = True
        self._tell(NodeWarmed(at=0.0, node=self._spec.node))

    def leave(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._leaving.set()

    def signalled(self, number: signal.Signals) -> None:
        """SIGUSR1: the node goes soon. SIGTERM: we are to end. As long as there is control it is a notice, and the gang leaves the node before we do; without
        control the job is over, or nobody could take the ranks elsewhere, and they get the time we have."""
        grace_s = self._spec.job.policy.stop_grace_s
        if number is signal.SIGUSR1:
            self._notices.signalled(number, within_s=UNSAID_S)
        elif self._ending or self._channel is None:
            self.leave(grace_s)
        else:
            self._ending = True
            self._notices.signalled(number, within_s=grace_s)
            self._spawn(self._leave_when_free(grace_s))

    async def _leave_when_free(self, within_s: float) -> None:
        """Once nothing of the gang is here. When control has done nothing about it by half the time, the ranks get the other half to save and leave."""
        deadline = time.monotonic() + within_s
        while self._channel is not None and (self._watch.generations() or self._busy or self._outbox.unacknowledged()):
            left_s = deadline - time.monotonic()
            if left_s <= 0.0 or (not self._busy and left_s <= within_s / 2):
                break
            await asyncio.sleep(_FREE_EVERY_S)
        self.leave(max(0.0, deadline - time.monotonic()))

    # Control.

    async def _talk(self) -> None:
        while True:
            try:
                channel = await connect(Path(self._spec.control))
            except OSError:
                await asyncio.sleep(0.1)
                continue
            self._channel = channel
            channel.send(
                Hello(
                    node=self._spec.node, instance=self._instance, host=self._spec.host, pid=os.getpid(), peer=self._spec.peer, domain=self._spec.domain,
                    running=self._watch.generations(), isolation=self._isolation.name, unkept=self._isolation.unkept, warm=self._warm,
                )
            )  # fmt: skip
            self._send_readings()
            self._measure.introduce()
            for told in self._outbox.unacknowledged():
                channel.send(told)
            with contextlib.suppress(BadFrame):
                async for message in channel:
                    self._hear(message)
            self._channel = None
            await channel.closed()

    def _hear(self, message: AnyMessage) -> None:
        match message:
            case Ack(seq=seq):
                self._outbox.acknowledged(seq)
            case Do(kind=kind, body=body):
                effect = decode_effect(kind, body)
                if effect.id not in self._busy:
                    self._busy.add(effect.id)
                    self._spawn(self._perform(effect))
            case Whole(sealed=sealed, safe=safe, permit=permit):
                self._persist.whole(sealed, safe, permit)
            case Hold(of=of):
                self._copies.hold({int(rank): peer for rank, peer in of.items()})
            case Interval(generation=generation, from_step=from_step, every=every):
                with contextlib.suppress(OSError, ValueError):  # The workers go on as they are, and control sees it.
                    self._watch.tell_interval(Told(generation=generation, from_step=from_step, every=every))
            case MakeDurable(generation=generation, step=step):
                self._persist.try_again()
                self._spawn(self._copies.make_durable((generation, step)))
            case Leave(persist=ranks, upload_s=upload_s):
                self._persist_copies, self._upload_s = ranks, upload_s
                self.leave(0.0)
            case _:
                pass  # Meant for somebody else, by a newer control perhaps.

    def _tell(self, event: Event) -> None:
        told = self._outbox.tell(*encode(event))
        if self._channel is not None:
            self._channel.send(told)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Effects.

    async def _perform(self, effect: Effect) -> None:
        answer = self._recorded.answer_of(effect.id)
        if answer is None:
            begun = self._recorded.was_begun(effect.id)
            answer = None if begun else self._begin(effect)
            crash_point(f"agent-recorded-{type(effect).__name__}")
            answer = answer or await self._answer(effect, again=begun)
            crash_point(f"agent-performed-{type(effect).__name__}")
            with contextlib.suppress(OSError):  # On a full disk. Asked again, we would look at what runs.
                self._recorded.answer(effect.id, answer)
            crash_point(f"agent-answered-{type(effect).__name__}")
        event: type[EffectDone] | type[EffectFailed] = EffectFailed if "because" in answer else EffectDone
        row = {"at": 0.0, "effect": effect.id, "generation": effect.generation, "node": self._spec.node, **answer}
        self._tell(msgspec.convert(row, type=event))
        self._busy.discard(effect.id)

    def _begin(self, effect: Effect) -> dict[str, Any] | None:
        """Record an effect. What cannot be recorded is not started, and that is the answer; stopping and looking may be done twice."""
        try:
            self._recorded.begin(effect)
        except OSError as error:
            if isinstance(effect, StartStore | StartGang):
                what = f"{type(effect).__name__} cannot be recorded in {self._state}: {error.strerror}"
                return {"because": f"{what}; make room there, and `holdfast resume {self._spec.job.job}`", "permanent": True}
        return None

    async def _answer(self, effect: Effect, *, again: bool) -> dict[str, Any]:
        """Perform an effect and say how it went; a failure is a sentence, for the core to judge."""
        try:
            match effect:
                case StartStore():
                    return await (self._found_store(effect) if again else self._start_store(effect))
                case StartGang():
                    return await (self._found_gang(effect) if again else self._start_gang(effect))
                case CaptureStacks():
                    return await self._capture_stacks(effect)
                case CaptureProfile():
                    taken = await profiles.capture(self._watch, effect, Path(self._spec.profiles), node=self._spec.node)
                    return {**taken, **await self._gather_collectives(effect.generation, hung=False)}
                case StopGang():
                    return await self._stop_gang(effect)
                case PartGang():
                    return await self._part_gang(effect)
                case CheckNode():
                    return await asyncio.to_thread(checks.check, effect, self._spec)
                case FindCheckpoint() | ChooseRanks() | EndJob():
                    return {"because": f"{type(effect).__name__} is for control, not for an agent", "permanent": True}
                case _:
                    assert_never(effect)
        except HoldfastError as error:
            return {"because": str(error)}
        except OSError as error:
            return {"because": f"{type(effect).__name__} failed on {self._spec.node}: {error}"}

    async def _capture_stacks(self, effect: CaptureStacks) -> dict[str, Any]:
        ranks, within_s = self._watch.ranks(effect.generation), self._spec.job.policy.stacks_wait_s / 2
        found, known = await asyncio.gather(
            stacks.capture(ranks, self._state, effect.generation, within_s=within_s), self._gather_collectives(effect.generation, hung=True)
        )
        return {"stacks": found, **known}

    async def _gather_collectives(self, generation: int, *, hung: bool) -> dict[str, Any]:
        environment = {**os.environ, **self._spec.job.env}
        return await collectives.gather(self._watch.ranks(generation), Path(self._spec.shared_memory), generation, environment, hung=hung)

    async def _start_store(self, effect: StartStore) -> dict[str, Any]:
        order = {**self._order(effect.id, effect.generation, -1), "role": "store", "host": self._spec.host, "argv": [], "how": "fork"}
        row = await (await self._living_parent()).ask("fork", answer="store", **order)
        return {"port": row["port"]} if row.get("port") else {"port": _free_port(self._spec.host), "hosted": False}

    async def _found_store(self, effect: StartStore) -> dict[str, Any]:
        listed = await self._parent.ask("list", answer="list", id=f"list-{effect.id}")
        ports = [row.get("port") for row in listed["running"] if row["id"] == f"{effect.id}/-1"]
        return {"port": ports[0]} if ports and ports[0] else {"because": "the agent died while it started the store, and no such store runs"}

    async def _start_gang(self, effect: StartGang) -> dict[str, Any]:
        try:
            await self._staging.ready()
        except NotStaged as error:
            return {"because": str(error), "permanent": True}
        surroundings = asyncio.create_task(asyncio.to_thread(self._surroundings.news)) if effect.node_rank == 0 else None
        job, parent = self._spec.job, await self._living_parent()
        if effect.rejoin and effect.kept:  # Where ranks live on with what they hold, what they saved is as good as before.
            self._persist.live_on(effect.ranks)
        else:
            self._persist.hand_over(effect.generation, effect.ranks, effect.restore)
        await self._fetch(effect)
        await self._renew(effect, parent)
        told = {"surroundings": await surroundings} if surroundings is not None else {}  # Before they start: one that dies at once must not overtake it.
        waiting = {}
        self._isolation.allow(effect.fitting.resources(job.resources))
        for local_rank, rank in enumerate(effect.ranks):
            if rank in effect.kept:
                continue
            order = self._order(effect.id, effect.generation, rank)
            order |= {
                "role": "worker", "how": "fork" if job.warm and job.python else "exec", "argv": list(job.argv), "module": job.module, "python": job.python,
                "env": worker_environment(self._spec, self._watch, effect, rank, local_rank), "agent_pid": os.getpid(),
            }  # fmt: skip
            Path(order["error"]).unlink(missing_ok=True)
            self._endings.begun(rank, member_of(effect.generation, rank))
            waiting[rank] = parent.ask("fork", answer="started", **order)
        for rank, started in waiting.items():
            self._watch.add(rank, effect.generation, (await started)["pid"])
        return told

    async def _renew(self, effect: StartGang, parent: WarmParent) -> None:
        """Ranks that waited go over to the new generation, and are told their place."""
        if not effect.kept:
            return
        waiting, was = self._watch.ranks(effect.kept_of), {rank: rank + effect.moved for rank in effect.kept}
        gone = sorted(set(was.values()) - waiting.keys())
        if gone:
            raise HoldfastError(f"ranks {gone} waited for their place on {self._spec.node}, and are gone")
        places = [{"pid": waiting[was[rank]], "rank": rank, "log": str(self._log(rank))} for rank in effect.kept]
        await parent.ask("renew", answer="renewed", id=effect.id, generation=effect.generation, places=places)
        for rank in effect.kept:
            now = stacks.stack_path(self._state, effect.generation, rank)
            now.unlink(missing_ok=True)
            now.symlink_to(stacks.stack_path(self._state, effect.kept_of, was[rank]).resolve())  # Where the process writes its stacks to, as long as it lives.
            self._watch.renew(was[rank], rank, effect.generation)
            self._endings.renamed(was[rank], rank)
        self._give_places(effect)

    def _give_places(self, effect: StartGang) -> None:
        for rank, pid in self._watch.ranks(effect.generation).items():
            if rank in effect.kept:
                env = worker_environment(self._spec, self._watch, effect, rank, effect.ranks.index(rank))
                del env["HOLDFAST_FLIGHT"]  # It listens where it did.
                parting.place(Path(self._spec.shared_memory), pid, effect.generation, env)

    async def _fetch(self, effect: StartGang) -> None:
        """Get what others have in memory of the state these ranks are to restore. What cannot be had they read from the disk."""
        step, generation = parse_directory_name(effect.restore) or (-1, -1)
        for rank, peer in effect.sources.items():
            wanted = Held(generation=generation, step=step, rank=int(rank), world_size=effect.world_size)
            try:
                await self._copies.fetch(wanted, peer)
            except NotHeld as error:
                print(f"holdfast agent: rank {rank} of {effect.restore} comes from the disk: {error}", file=sys.stderr, flush=True)

    async def _found_gang(self, effect: StartGang) -> dict[str, Any]:
        """We died between recording and answering: what runs, and what ran and ended, is the answer."""
        listed = await self._parent.ask("list", answer="list", id=f"list-{effect.id}")
        found = {row["rank"] for row in [*listed["running"], *self._endings.written(effect.generation)] if row["id"].startswith(f"{effect.id}/")}
        missing = sorted(set(effect.ranks) - found)
        if not missing:
            self._give_places(effect)
            return {}
        return {"because": f"the agent died while it started its ranks: {sorted(found) or 'none'} are found, {missing} are not"}

    async def _stop_gang(self, effect: StopGang) -> dict[str, Any]:
        guarded = self._watch.all_guarded(effect.generation)
        how = "int" if effect.interrupt and not guarded else "term" if effect.graceful or not guarded else "kill"
        cannot = {} if effect.graceful else parting.why_not(self._watch, Path(self._spec.shared_memory), effect.generation)
        parent = await self._living_parent()
        try:
            row = await parent.ask("stop", answer="stopped", id=effect.id, generation=effect.generation, how=how, grace_s=effect.grace_s)
        except ParentGone:
            await self._living_parent()
            return {}
        if row["left"]:
            pids = row["left"]
            return {"because": f"processes {pids} on {self._spec.node} survived SIGKILL (state {tree.state(pids[0])})", "unkillable": pids}
        self._isolation.leave(effect.generation)
        await self._persist.settle_index(within_s=_SETTLE_S)
        self._send_readings()  # So that the search for the newest checkpoint, which comes next, knows what they had sealed.
        return {"cannot": cannot}

    async def _part_gang(self, effect: PartGang) -> dict[str, Any]:
        generation, parent, directory = effect.generation, await self._living_parent(), Path(self._spec.shared_memory)
        waiting = await parting.part(self._watch, directory, generation, without=effect.culprits, within_s=effect.within_s)
        pids = self._watch.ranks(generation)
        said = parting.why_not(self._watch, directory, generation)
        cannot = {str(rank): said.get(str(rank), "its process does not answer") for rank in pids if rank not in waiting and rank not in effect.culprits}
        kept = [pids[rank] for rank in waiting if rank in pids]
        row = await parent.ask("stop", answer="stopped", id=effect.id, generation=generation, how="kill", grace_s=0.0, keep=kept)
        if row["left"]:
            return {"because": f"processes {row['left']} on {self._spec.node} survived SIGKILL (state {tree.state(row['left'][0])})", "unkillable": row["left"]}
        self._isolation.leave(generation)
        if not any(left.whole >= 0 for left in waiting.values()):  # Then all start anew or go back, from what they saved.
            await self._persist.settle_index(within_s=_SETTLE_S)
        self._send_readings()
        wait = {str(rank): left for rank, left in waiting.items() if rank in self._watch.ranks(generation)}
        return {"waiting": {rank: left.whole for rank, left in wait.items()}, "reached": {rank: left.after for rank, left in wait.items()}, "cannot": cannot}

    def _order(self, id: str, generation: int, rank: int) -> dict[str, Any]:
        return {
            "id": f"{id}/{rank}", "generation": generation, "rank": rank, "module": False, "python": True, "env": {}, "cwd": self._spec.job.cwd,
            "log": str(self._log(rank)) if rank >= 0 else str(Path(self._spec.logs) / f"store-{self._spec.node}.log"),
            "stacks": str(stacks.stack_path(self._state, generation, rank)), "error": str(error_path(self._state, generation, rank)),
            **self._isolation.enter(member_of(generation, rank)),
        }  # fmt: skip

    # The warm parent.

    async def _find_parent(self) -> None:
        """Find the warm parent and adopt what it runs, or start one after sweeping up what an earlier one left."""
        if await self._parent.find_or_start():
            listed = await self._parent.ask("list", answer="list", id=f"list-{self._instance}")
            for row in listed["running"]:
                if row["role"] == "worker":
                    self._watch.add(row["rank"], row["generation"], row["pid"])
                    self._endings.begun(row["rank"], member_of(row["born"], row["born_rank"]))
        generation, ranks, restore = self._recorded.last_start()
        if generation and not self._recorded.rejoined:
            self._persist.hand_over(generation, ranks, restore)
        elif generation:
            self._persist.live_on(ranks)
        ended = {row["rank"]: row for row in self._endings.written(generation)}
        for rank in ranks:
            if rank in ended:
                self._tell_exit(ended[rank])
            elif rank not in self._watch.ranks(generation):
                self._tell_vanished(rank, generation)

    async def _keep_parent(self) -> None:
        """Renew the lease; when the warm parent dies its workers died with it: say so, sweep up, and start another."""
        while True:
            self._parent.send("lease")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._parent.gone.wait(), min(5.0, self._spec.orphan_grace_s / 4))
                await self._replace_parent()

    async def _replace_parent(self) -> None:
        await asyncio.to_thread(tree.end_marked, self._spec.job.job, self._spec.mark)
        for generation, ranks in self._watch.generations().items():
            ended = {row["rank"]: row for row in self._endings.written(int(generation))}
            for rank in ranks:
                if rank in ended:
                    self._tell_exit(ended[rank])
                else:
                    self._tell_vanished(rank, int(generation))
            self._isolation.leave(int(generation))
        fresh = WarmParent(self._spec, self._parent_told)
        await fresh.find_or_start()
        self._parent = fresh

    async def _living_parent(self) -> WarmParent:
        """The warm parent; while it is being replaced, the next one. What the last one ran is swept up by then."""
        while self._parent.gone.is_set():
            await asyncio.sleep(0.01)
        return self._parent

    def _parent_told(self, row: Row) -> None:
        if row["told"] == "exited" and row["role"] == "worker":
            self._tell_exit(row)

    def _tell_exit(self, row: Row) -> None:
        if row["code"] == 0 and self._channel is not None:  # Its last words: in the next ones it would be gone.
            self._send_readings()
            self._channel.send(self._measure.take(time.monotonic()))
        table = self._watch.table(row["rank"], row["generation"])
        leaks = self._watch.leaks(row["rank"], row["generation"])
        beat = self._watch.remove(row["rank"], row["generation"])
        crash_point("agent-saw-exit")
        exit = self._endings.ended(row, beat or Beat(step=-1), table, leaks)
        self._tell(WorkerExited(at=0.0, node=self._spec.node, generation=row["generation"], exit=exit))

    def _tell_vanished(self, rank: int, generation: int) -> None:
        gone = self._endings.vanished(rank, self._watch.remove(rank, generation))
        self._tell(WorkerExited(at=0.0, node=self._spec.node, generation=generation, exit=gone))

    def _log(self, rank: int) -> Path:
        return Path(self._spec.logs) / f"rank-{rank}.log"

    def _log_size(self, rank: int) -> int:
        try:
            return self._log(rank).stat().st_size
        except OSError:
            return 0

    # Watching.

    async def _read_beats(self) -> None:
        while True:
            self._send_readings()
            await asyncio.sleep(self._spec.beat_every_s if self._watch.any_starting() else self._spec.step_every_s)

    def _send_readings(self) -> None:
        if self._channel is not None:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            cpu_s = usage.ru_utime + usage.ru_stime
            held, durable_s = self._persist.held(), self._persist.durable_s
            self._channel.send(
                Readings(
                    node=self._spec.node, ranks=self._watch.read(), held=held, durable_s=durable_s, uploading=self._sender.reading(), cpu_s=cpu_s,
                    staged=self._staging.reading(),
                )
            )  # fmt: skip

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(self._spec.probe_every_s)
            seen = self._watch.mesh(self._spec.node)
            if seen is not None:
                self._tell(seen)
            for generation, finding in self._watch.probe():
                self._tell(FindingMade(at=0.0, generation=generation, finding=replace(finding, node=self._spec.node)))

    def _too_hot(self, gpu: int, why: str) -> None:
        """Nothing more can be done about it here; or it is so no longer. Called from a thread."""
        finding = Finding(kind="too_hot", node=self._spec.node, of=str(gpu), since=time.time(), severity=Severity.WARNING, because=why)
        for generation in map(int, self._watch.generations()):
            ended = FindingEnded(at=0.0, generation=generation, key=finding.key, because=f"GPU {gpu} is cool again")
            self._loop.call_soon_threadsafe(self._tell, FindingMade(at=0.0, generation=generation, finding=finding) if why else ended)

    async def _send_signals(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            message = self._measure.take(time.monotonic())
            if self._metrics is not None:
                self._metrics.take(message, time.monotonic())
            if self._channel is not None:
                self._channel.send(message)

    def _sample_stack(self, generation: int, rank: int, pid: int) -> str:
        """Returns what the rank answered to the last question, if it did; and asks again."""
        path, before = stacks.stack_path(self._state, generation, rank), self._stacks_read.get((generation, rank), 0)
        answer = stacks.newest(path, before)
        self._stacks_read[generation, rank] = stacks.size(path)
        stacks.ask(pid)
        return answer

    # The end.

    async def _take_down(self) -> None:
        """End the whole tree, and leave nothing behind."""
        policy = self._spec.job.policy
        self._parent.send("end", id="end", how="term" if self._grace_s else "kill", grace_s=self._grace_s)
        await self._parent.close(within_s=self._grace_s + 2 * policy.kill_wait_s)
        await asyncio.to_thread(tree.end_marked, self._spec.job.job, self._spec.mark)
        await asyncio.to_thread(self._isolation.close)
        self._persist.try_again()
        await self._persist.settle(within_s=_SETTLE_S)
        await self._copies.persist(self._persist_copies)
        if 0 in self._recorded.last_start()[1]:
            await self._sender.finish(within_s=self._upload_s)
            self._send_readings()
        self._sender.stop()
        if self._channel is not None:
            await self._channel.closed()
        self._recorded.close()
        shutil.rmtree(self._spec.shared_memory, ignore_errors=True)


def _say(text: str) -> None:
    """For our log."""
    print(f"holdfast agent: {text}", file=sys.stderr, flush=True)


def _free_port(host: str) -> int:
    """A port nobody uses now. The only way left when there is no torch to make a store that binds its own."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


async def _main(spec: NodeSpec, unkept: tuple[str, ...]) -> None:
    agent = Agent(spec, unkept=unkept)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        loop.add_signal_handler(number, agent.signalled, number)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C is for whoever launched us; it tells us what to do.
    await agent.run()


def main() -> None:
    spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=NodeSpec)
    die_with_parent(int(sys.argv[2]))
    show_as("holdfast-agent")
    adopt_orphans()
    private = not spec.job.private or own_shared_memory(spec.shared_memory)
    hide(spec.hidden)  # Where that is not permitted the paths stay visible, and nobody looks.
    if spec.network_fd != NO_FD:
        join_network(spec.network_fd)
    try:
        asyncio.run(_main(spec, () if private else (_SHARED,)))
    except ParentGone as error:
        sys.exit(f"holdfast agent {spec.node}: {error}")


if __name__ == "__main__":
    main()
