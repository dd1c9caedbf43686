"""Control: takes events, writes them down, performs what the core decides. `python -m holdfast.control JOB-DIRECTORY PARENT-PID`.

    event ─► core.step ─► journal (event and effects, one synced transaction) ─► acknowledge ─► perform

Nothing is acknowledged and nothing is performed before it is on disk. After a crash the same state comes back from the journal, agents say what they run, and
effects that were never answered are sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import msgspec

from holdfast.control.choosing import choose, own_seconds
from holdfast.control.fetching import NothingToGoOnFrom
from holdfast.control.figures import figures_of
from holdfast.control.heard import by_our_clock
from holdfast.control.history import History, Keeper
from holdfast.control.interval import Intervals
from holdfast.control.journal import Journal
from holdfast.control.memory import Memory
from holdfast.control.metrics import ControlMetrics
from holdfast.control.newest import Newest
from holdfast.control.notes import Notes
from holdfast.control.observer import Observer
from holdfast.control.remembering import Remembering
from holdfast.control.rulebook import rules_of
from holdfast.control.samples import Samples
from holdfast.control.searching import Searching
from holdfast.control.seen import Seen, keep, last_seen
from holdfast.control.view import job_signals, view_of
from holdfast.control.watching import LOOK_EVERY_S, Watching
from holdfast.control.wishes import ask_profile, operator_says
from holdfast.crashpoints import crash_point
from holdfast.domain.effect import (
    CONTROL,
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
from holdfast.domain.event import (
    EffectDone,
    EffectFailed,
    Event,
    JobResumed,
    JobSubmitted,
    NodeHeard,
    StopAsked,
    Ticked,
    WorkerExited,
)
from holdfast.domain.exit import ExitKind
from holdfast.domain.job import JobSpec, Outcome
from holdfast.domain.state import NodeState
from holdfast.errors import HoldfastError
from holdfast.launch.layout import JobDirectory
from holdfast.launch.lifeline import die_with_parent, show_as
from holdfast.recover.copies import Common
from holdfast.wire.codec import decode_event, encode
from holdfast.wire.frames import BadFrame, Channel, serve
from holdfast.wire.messages import (
    Ack,
    AnyMessage,
    AskProfile,
    Do,
    Hello,
    Hold,
    Interval,
    Leave,
    MakeDurable,
    OperatorSays,
    Readings,
    Signals,
    StopJob,
    Told,
    View,
    Watch,
)
from holdfast.wire.outbox import Inbox
from holdfast.wire.scrape import keep_open

if TYPE_CHECKING:
    from holdfast.control.alerts.alerting import Alerts

_LOOK_EVERY_S = 0.2
_PAST_S = 5.0  # For what happened to be written into the history of all jobs.
_ALERTS_S = 5.0  # For the last alerts to arrive, once the job has ended.
_UPLOAD_S = 10.0  # For the last checkpoint to arrive in the remote store, once the job has ended.
_UNWRITTEN_CODE = 74


class Control:
    def __init__(self, directory: JobDirectory) -> None:
        self._directory = directory
        self._journal = Journal(directory.journal)
        self._core = self._journal.load()
        self._observer = Observer()
        self._rules = rules_of(directory)
        self._watching = Watching(self._rules, job=directory.job)
        self._looked_before_end_of = 0  # The generation.
        self._alerts: Alerts | None = None
        self._memory = Memory()
        self._intervals = Intervals()
        self._notes = Notes(self._core.state)
        self._searching = Searching(directory, self._memory, make_durable=self._make_durable, note=self._notes.take)
        self._told_to_hold: dict[str, dict[str, str]] = {}
        self._inbox = Inbox()
        self._samples = Samples(directory.samples)
        self._history = Keeper(History(directory.series))
        self._remembering = Remembering(directory.past, directory.job, self._notes.take, self._journal.runs)
        self._agents: dict[str, Channel] = {}
        self._viewers: set[Channel] = set()
        self._lookers: set[Channel] = set()  # The viewers that want the newest values too, once a second.
        self._figures_at = 0.0
        self._saved: tuple[int, float] = (-1, 0.0)  # The newest durable step, and when it was seen to be.
        self._cycle_s = 0.0
        self._newest = Newest(self._watching.rings)
        self._waiting: list[tuple[Event, Callable[[], None]]] = []
        self._searches: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        # Wall time that no adjustment of the clock can turn back. It goes on from the last event: a clock that was set back while control was away would else
        # have to come so far again before anything is due.
        self._clock = max(time.time(), self._core.state.at) - time.monotonic()

    def now(self) -> float:
        return max(self._clock + time.monotonic(), self._core.state.at)

    async def run(self) -> None:
        server = await serve(self._directory.control_socket, self._connected)
        async with server:
            self._begin()
            looking = asyncio.create_task(self._look())
            answering = asyncio.create_task(self._answer_scrapers())
            ended = asyncio.create_task(self._ended.wait())
            await asyncio.wait([looking, ended], return_when=asyncio.FIRST_COMPLETED)
            for task in (looking, answering):
                task.cancel()
            await asyncio.gather(answering, return_exceptions=True)  # Whether scrapers had an answer is not worth a job.
            with contextlib.suppress(asyncio.CancelledError):
                await looking
            await self._take_down()
        for file in (self._directory.control_socket, self._directory.metrics_url):
            file.unlink(missing_ok=True)
        self._journal.close()

    def abandon(self) -> None:
        """Leave at once: whoever launched us is dead, or has no more need of us. All that was accepted is in the journal."""
        self._searching.stop()
        self._directory.control_socket.unlink(missing_ok=True)
        raise SystemExit(128 + signal.SIGTERM)

    def _begin(self) -> None:
        """A new job, the same one again, or a control that was killed and goes on."""
        spec = msgspec.json.decode(self._directory.spec.read_bytes(), type=JobSpec)
        state = self._core.state
        self._begin_to_alert(spec)
        if state.spec is None:
            self.accept(JobSubmitted(at=self.now(), spec=spec))
        elif state.spec.run != spec.run:
            seen = last_seen(self._directory.seen)
            self.accept(JobResumed(at=self.now(), spec=spec, ran_until=seen.at if seen is not None and state.outcome is None else 0.0))
        else:
            self.accept(Ticked(at=self.now(), away=True))
            for name in state.nodes:
                self._observer.disconnected(name, self.now())  # Each has the usual time to come back.
            for effect in self._journal.effects(id for id, pending in state.pending.items() if pending.node == CONTROL):
                self._perform(effect)
            if state.outcome is not None:
                self._ended.set()

    def _begin_to_alert(self, spec: JobSpec) -> None:
        """Whatever is wrong with it, the job goes on: it was checked before the start, and may have been changed since."""
        if not spec.alerts:
            return
        from holdfast.control.alerts.alerting import Alerts  # Only here: what speaks to mail and web servers is not loaded where nobody is told.
        from holdfast.control.alerts.loading import load

        try:
            alerts = Alerts(self._directory.alerts, self._directory.job, load(Path(spec.alerts)), self._rules, incidents=self._core.state.incidents)
        except HoldfastError as error:
            self._notes.take(f"nobody is told of incidents: {error}")
            return
        alerts.start()
        self._alerts = alerts

    def accept(self, event: Event, then: Callable[[], None] = lambda: None) -> None:
        """Take an event; `then` is called once it is on disk. Events that come at once share one sync."""
        self._waiting.append((event, then))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._take_waiting)

    def _take_waiting(self) -> None:
        """What could not be written down did not happen, but this core believes it already: only a new process can go on, from the journal."""
        try:
            self._decide_and_perform()
        except Exception:
            with contextlib.suppress(OSError):  # Our log may be on the same full disk.
                traceback.print_exc()
            os._exit(_UNWRITTEN_CODE)

    def _decide_and_perform(self) -> None:
        """Decide, write down, acknowledge, perform. In this order, and not interrupted."""
        waiting, self._waiting = self._waiting, []
        chosen: list[Effect] = []
        with self._journal.together():
            for event, _ in waiting:
                effects = self._core.step(event)
                crash_point(f"control-decided-{type(event).__name__}")
                self._journal.append(event, effects, self._core.state)
                chosen += effects
        for event, then in waiting:
            crash_point(f"control-journalled-{type(event).__name__}")
            then()
        for effect in chosen:
            self._perform(effect)
            crash_point(f"control-performed-{type(effect).__name__}")
        if self._alerts is not None:
            self._alerts.see(self._core.state, self.now())
        self._hang_up_on_lost_nodes()

    def _hang_up_on_lost_nodes(self) -> None:
        """A node that counts as lost must introduce itself anew, and say what it still runs, before it is used again."""
        for name, node in self._core.state.nodes.items():
            if node.state is NodeState.LOST and name in self._agents:
                self._agents[name].close()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case FindCheckpoint():
                self._searches.add(search := asyncio.create_task(self._find_checkpoint(effect)))
                search.add_done_callback(self._searches.discard)
            case EndJob():
                self._ended.set()
            case ChooseRanks():
                self._choose_ranks(effect)
            case StartStore() | StartGang() | CaptureStacks() | CaptureProfile() | StopGang() | PartGang() | CheckNode():
                if isinstance(effect, StartGang) and effect.rejoin and effect.node_rank == 0:
                    self._keep_what_another_size_saved(effect)
                channel = self._agents.get(effect.node)
                if channel is not None:
                    channel.send(Do(kind=type(effect).__name__, body=encode(effect)[1]))
            case _:
                assert_never(effect)

    async def _find_checkpoint(self, effect: FindCheckpoint) -> None:
        try:
            found = await self._searching.find(effect, self._core.state)
        except (OSError, NothingToGoOnFrom) as error:
            self.accept(EffectFailed(at=self.now(), effect=effect.id, generation=effect.generation, node=CONTROL, because=str(error)))
            return
        self.accept(replace(found, at=self.now()))

    def _choose_ranks(self, effect: ChooseRanks) -> None:
        state, now = self._core.state, self.now()
        gang, spec = state.gang, state.spec
        assert gang is not None and spec is not None
        own_s = own_seconds(self._newest, set(gang.nodes), now)
        chosen = choose(effect, self._watching.standing, own_s, [gang.nodes[rank // spec.ranks_per_node] for rank in range(state.world_size)])
        if chosen is None:
            because = "how long a step takes is not known of every rank yet; ask again in a moment, or say which with --ranks"
            self.accept(EffectFailed(at=now, effect=effect.id, generation=effect.generation, node=CONTROL, because=because))
            return
        self.accept(EffectDone(at=now, effect=effect.id, generation=effect.generation, node=CONTROL, slow=chosen.slow, beside=chosen.beside))

    def _keep_what_another_size_saved(self, effect: StartGang) -> None:
        """Survivors go on in a gang of another size, and need nothing of it. Should they be lost before the first save of that size, the disk has it."""
        held = self._memory.newest()
        if held is not None and held.world_size != effect.world_size:
            self._make_durable(held)

    def _make_durable(self, held: Common) -> None:
        for channel in self._agents.values():
            channel.send(MakeDurable(generation=held.generation, step=held.step))

    async def _connected(self, channel: Channel) -> None:
        """Somebody connected: the first message says who."""
        hello: Hello | None = None
        try:
            async for message in channel:
                match message:
                    case Hello():
                        hello = message
                        self._agent_came(hello, channel)
                    case Watch(figures=figures):
                        self._viewers.add(channel)
                        if figures:
                            self._lookers.add(channel)
                    case StopJob():
                        self.accept(StopAsked(at=self.now(), because=message.because, code=message.code, now=message.now))
                    case AskProfile():
                        ask_profile(message, channel, self._core.state, self.accept, self.now())
                    case OperatorSays():
                        operator_says(message, channel, self._core.state, self.accept, self.now())
                    case _ if hello is not None:
                        self._from_agent(hello, message, channel)
        except BadFrame as error:
            print(f"holdfast control: dropped a connection: {error}", file=sys.stderr)
        finally:
            self._viewers.discard(channel)
            self._lookers.discard(channel)
            if hello is not None and self._agents.get(hello.node) is channel:
                del self._agents[hello.node]
                self._memory.gone(hello.node)
                self._watching.gone(hello.node)
                self._told_to_hold.pop(hello.node, None)
                self._observer.disconnected(hello.node, self.now())

    def _agent_came(self, hello: Hello, channel: Channel) -> None:
        old = self._agents.pop(hello.node, None)
        if old is not None:
            old.close()
        self._agents[hello.node] = channel
        self._observer.connected(hello.node, self.now())
        self._memory.domains[hello.node] = hello.domain
        heard = NodeHeard(
            at=self.now(), node=hello.node, host=hello.host, peer=hello.peer, running=hello.running, isolation=hello.isolation, unkept=hello.unkept,
            warm=hello.warm,
        )  # fmt: skip
        self._notes.take_once(hello.unkept)
        self.accept(heard, lambda: self._send_unanswered(hello.node, channel))

    def _send_unanswered(self, node: str, channel: Channel) -> None:
        """What was asked of this node and never answered; the agent knows what it has done already."""
        unanswered = [id for id, pending in self._core.state.pending.items() if pending.node == node]
        for effect in self._journal.effects(unanswered):
            channel.send(Do(kind=type(effect).__name__, body=encode(effect)[1]))
        self._tell_interval([channel])

    def _from_agent(self, hello: Hello, message: AnyMessage, channel: Channel) -> None:
        match message:
            case Told(seq=seq, kind=kind, body=body):
                event = by_our_clock(decode_event(kind, body), self._watching.ahead_s(hello.node), self.now())
                if self._inbox.is_new(hello.instance, seq):
                    if isinstance(event, WorkerExited) and event.exit.kind is ExitKind.FINISHED:
                        self._look_before_the_end(event.generation)
                    self.accept(replace(event, at=self.now()), lambda: channel.send(Ack(seq=seq)))
                else:
                    asyncio.get_running_loop().call_soon(channel.send, Ack(seq=seq))  # After whatever waits to be written.
            case Readings():
                self._memory.heard(hello.node, message.held)
                self._intervals.durable_s[hello.node] = message.durable_s
                if message.uploading is not None:
                    self._notes.uploads_stand(message.uploading)
                for event in self._observer.read(message, self._core.state, self.now()):
                    self.accept(event)
            case Signals():
                self._watching.take(message, self.now(), wall=time.time())
            case _:
                pass

    def _look_before_the_end(self, generation: int) -> None:
        """The first rank is done. What the numbers of the last second say counts before that does: a loss that turned just then is no success."""
        if generation > self._looked_before_end_of:
            self._looked_before_end_of = generation
            if self._waiting:
                self._take_waiting()  # Among it may be the first step of a gang that was there for a moment.
            for event in self._watching.look(self._core.state, (), self.now(), at_once=True):
                self.accept(event)

    def _pass_on_notes(self) -> None:
        for text in self._alerts.notes() if self._alerts is not None else ():
            self._notes.take(text)

    def _view(self) -> View:
        view = view_of(self._core.state, self._observer, self._memory, self._agents.keys(), self.now())
        notes = self._notes
        return msgspec.structs.replace(view, because=self._searching.progress or view.because, uploading=notes.uploading, notes=tuple(notes.texts))

    def _tell_whole(self) -> None:
        ranks = self._observer.ranks.values()
        step = max((rank.step for rank in ranks), default=0)
        whole = self._memory.whole(self._core.state, step=step, rate=self._observer.steps_per_s, now=self.now())
        if whole is not None:
            for channel in self._agents.values():
                channel.send(whole)

    def _tell_interval(self, channels: Iterable[Channel]) -> None:
        """To the ranks of the gang that runs: the next one starts with it."""
        chosen, gang = self._core.state.interval, self._core.state.gang
        if chosen is not None and gang is not None and chosen.automatic and chosen.generation == gang.generation:
            for channel in channels:
                channel.send(Interval(generation=chosen.generation, from_step=chosen.from_step, every=chosen.every))

    def _tell_holders(self) -> None:
        """Say to each agent whose copies it is to hold, when that has changed."""
        for node, of in self._memory.holders(self._core.state).items():
            channel = self._agents.get(node)
            if channel is not None and self._told_to_hold.get(node) != of:
                self._told_to_hold[node] = of
                channel.send(Hold(of=of))

    async def _look(self) -> None:
        """The clock: silent nodes, deadlines, samples, views."""
        while True:
            began = time.monotonic()
            for event in self._observer.look(self._core.state, self.now()):
                self.accept(event)
            deadline = self._core.next_deadline()
            if deadline is not None and deadline <= self.now():
                self.accept(Ticked(at=self.now()))
            self._tell_whole()
            self._tell_holders()
            chosen = self._intervals.look(self._core.state, self._observer.ranks, self._agents.keys(), self.now())
            if chosen is not None:
                self.accept(chosen, lambda: self._tell_interval(self._agents.values()))
            view = self._view()
            self._note_age(view)
            signals = job_signals(view, self._core.state, saved_at=self._saved[1], cycle_s=self._cycle_s)
            for event in self._watching.look(self._core.state, signals, self.now()):
                self.accept(event)
            self._pass_on_notes()
            self._notes.profiles_stand(self._core.state, self._directory.profiles)
            self._samples.add(view)
            keep(self._directory.seen, Seen(at=view.at, step=view.step, generation=view.generation))
            self._history.look(self._watching.rings, self.now())
            self._remembering.look(self._core.state, self._observer.ranks, self._agents.keys(), self.now())
            for viewer in self._viewers:
                viewer.send(view)
            self._send_figures()
            self._cycle_s = time.monotonic() - began
            await asyncio.sleep(_LOOK_EVERY_S)

    def _note_age(self, view: View) -> None:
        """Work that could be lost is as old as the newest checkpoint; before the first one, as the first step that was seen."""
        step, at = self._saved
        if view.step >= 0 and (view.saved_step > step or not at):
            self._saved = (view.saved_step, view.at)

    def _send_figures(self) -> None:
        if self._lookers and self.now() - self._figures_at >= LOOK_EVERY_S:
            self._figures_at = self.now()
            figures = figures_of(self._watching, self._newest, self._core.state.gang, self.now())
            for viewer in self._lookers:
                viewer.send(figures)

    async def _answer_scrapers(self) -> None:
        at = msgspec.json.decode(self._directory.spec.read_bytes(), type=JobSpec).metrics
        if at is not None and at.port is not None:
            metrics = ControlMetrics(self._directory.job, self._watching, self._newest, self._notes.take)

            def page(openmetrics: bool) -> Iterator[str]:
                return metrics.text(self._core.state, self.now(), openmetrics)

            await keep_open(at, at.port, page, say=self._notes.take, url_file=self._directory.metrics_url)

    async def _take_down(self) -> None:
        """Tell every agent to leave, wait until they have, and show the end to whoever watches."""
        state = self._core.state
        self._searching.stop()
        lost = self._memory.ranks_of_lost_nodes(state) if state.outcome is not Outcome.FINISHED else ()
        in_a_hurry = state.stop is not None and state.stop.now
        upload_s = _UPLOAD_S if state.spec is not None and state.spec.remote and not in_a_hurry else 0.0
        for channel in self._agents.values():
            channel.send(Leave(persist=lost, upload_s=upload_s))
        if self._alerts is not None:
            self._alerts.hurry()
        deadline = time.monotonic() + 15.0 + upload_s
        while self._agents and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self._notes.uploads_end(self._directory.job)
        if self._alerts is not None:
            await self._alerts.finish(within_s=0.5 if in_a_hurry else _ALERTS_S)
            self._pass_on_notes()
        self._remembering.finish(state, self.now(), within_s=0.5 if in_a_hurry else _PAST_S)
        final = self._view()
        for viewer in list(self._viewers):
            viewer.send(final)
            await viewer.closed()


async def _main(directory: JobDirectory) -> None:
    control = Control(directory)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C is for whoever launched us.
    loop.add_signal_handler(signal.SIGTERM, control.abandon)
    await control.run()


def main() -> None:
    die_with_parent(int(sys.argv[2]))
    show_as("holdfast-ctrl")
    asyncio.run(_main(JobDirectory(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
