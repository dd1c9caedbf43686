"""Run: what a training loop holds on to. `steps` goes through the work, `report` takes numbers, `phase` names a long pause, `save` asks for a save.

Asking `steps` for the next item says that the last one is done. Between the two, in this order: a beat, the question whether to leave, a save if one
is due. Nothing here waits for another rank or for a GPU, and no failure of ours ends the loop. A loop that is left before its end saves the last step that is
done, where `leaving.py` can tell which one it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, TypeVar, overload

from holdfast.checkpoint.randomness import apply_randomness, capture_randomness
from holdfast.checkpoint.read import Restored
from holdfast.domain.beat import REJOINS, RESTORED, STOPPING, WAS_FINITE
from holdfast.domain.gauges import BAD_SAMPLES, EPOCH, GROUP_TIMEOUT, LOADER_WORKERS, MICRO_BATCH, READ_AGAIN, SAVE_FAILED, SKIPPED
from holdfast.domain.scaling import Scaling
from holdfast.domain.treatment import Treatment, Window, next_draw
from holdfast.errors import UserError
from holdfast.trainer import at_exit, own_numbers
from holdfast.trainer.beats import Beats
from holdfast.trainer.between import Between
from holdfast.trainer.curve import Curve
from holdfast.trainer.drift import Drift
from holdfast.trainer.feed import Feed, spare_memory
from holdfast.trainer.forgotten import Forgotten
from holdfast.trainer.handing import NOBODY_CODE
from holdfast.trainer.leaving import MARK_EVERY_S, Leaving, Mark, State
from holdfast.trainer.numbers import Numbers
from holdfast.trainer.parting import Parting, hooks_so_far, release
from holdfast.trainer.place import group_timeout_s
from holdfast.trainer.profiling import Profiling
from holdfast.trainer.randomness_marks import as_captured
from holdfast.trainer.read_again import ReadAgain
from holdfast.trainer.saves import Saves
from holdfast.trainer.say import Say
from holdfast.trainer.split import Split
from holdfast.trainer.steps import Steps
from holdfast.trainer.stop import EXIT_STOPPED, Stop
from holdfast.trainer.training import Training
from holdfast.trainer.treatment_lines import treatment_lines
from holdfast.trainer.tuning import Tuning

Batch = TypeVar("Batch")
_AS_SAID: Final = Scaling()
_ACCOUNT_EVERY_S: Final = 0.2  # Agents look once a second.


class Run:
    """One process's part in a training run; made by `holdfast.guard`."""

    def __init__(
        self, *, beats: Beats, saves: Saves, stop: Stop | None, say: Say, pieces: Mapping[str, Any], restored: Restored | None, world_size: int,
        profiling: Profiling | None = None, micro_batch: int | None = None, loader_workers: int | None = None,
        parting: Parting | None = None, left_out: tuple[Window, ...] = (), tune: str = "", scaling: Scaling = _AS_SAID,
        curve: Curve | None = None, until: int | None = None, forgotten: Forgotten | None = None,
    ) -> None:  # fmt: skip
        self.step = restored.step if restored else 0
        self.boundary = False
        self.weight = 1.0
        self.accumulate = 1
        self._beats, self._saves, self._stop, self._say, self._pieces = beats, saves, stop, say, pieces
        self._restored, self._world_size, self._profiling, self._micro_batch = restored, world_size, profiling, micro_batch
        self._loader_workers = loader_workers
        self._prepared, self._parting = False, parting
        self._account_at = 0.0
        self._training = Training(beats.gauges, pieces)
        self._until, self._forgotten = until, forgotten
        self._numbers = Numbers(self._training.take if curve is None else curve.beside(self._training.take))
        self._split, self._drift = Split(beats.gauges), Drift(pieces, self._numbers, world_size, self.step)
        if stop is not None:  # An agent is there to read them.
            self._measure()
        self._feed: Feed[Any] | None = None
        self._progress: dict[str, Any] | None = restored.progress.get("feed") if restored else None
        self._epochs_begun = 0
        self._between: Between | None = None
        self._scaling = scaling
        self._left_out, self._tune, self._tuning = left_out, tune, Tuning(tune, pieces, scaling.rate)
        self._tuning.step = self.step
        self._recorded = {"left_out": ",".join(map(str, left_out)), "tune": tune, "scaling": str(scaling)}  # In every checkpoint.
        self._draw = restored.progress.get("draw", self.step) if restored else 0  # The number of the next step's data, those that are left out counted in.
        for line in treatment_lines(left_out, tune, scaling, self._tuning.unread):
            say.line(line)
        self._leaving = self._see_what_moves() if saves.every >= 0 and pieces else None
        self._loop: object = None  # The one that is under way.
        self._given = False  # An item of it is worked on.
        self._mark_at, self._owner = 0.0, os.getpid()

    def __repr__(self) -> str:
        return f"<holdfast run at step {self.step}: {', '.join(sorted(self._pieces)) or 'no pieces'}; {self._saves.describe()}>"

    @property
    def numbers(self) -> Mapping[str, float]:
        """The newest values reported that have arrived: good for a progress bar, since reading them waits for nothing."""
        return MappingProxyType(self._numbers.arrived)

    @overload
    def steps(self, work: int) -> Steps[int]: ...
    @overload
    def steps(self, work: Iterable[Batch], *, epochs: int = 1, accumulate: int = 1, skip_bad: int = 0) -> Steps[Batch]: ...
    def steps(self, work: Any, *, epochs: int = 1, accumulate: int = 1, skip_bad: int = 0) -> Steps[Any]:
        """Step numbers up to a total, or batches of a loader over its epochs; from where the run stopped, without those that training went wrong with.

        With a loader, `accumulate` batches make a step and `boundary` is True on the one after which the optimizer steps. `weight` is what the mean loss of
        a batch counts for: multiplied with it, the gradients of a step are those of the mean over all its samples, however they were cut up and shared
        out. With `resize=True` in the sampler `accumulate` says how it was meant, and `run.accumulate` how it is. Up to `skip_bad` samples of this rank
        that cannot be read are left out. Calls add up: the second `steps(loader)` of a run is its second epoch. `len` counts from the beginning of the run, for
        `tqdm(run.steps(n), initial=run.step)`. When the run is asked to stop this saves and raises SystemExit(143), so that code after the loop does not take
        a half-trained model for a finished one.
        """
        items = self._until_left(self._count(work) if isinstance(work, int) else self._go_through(work, epochs, accumulate, skip_bad))
        whole = (lambda: work) if isinstance(work, int) else (lambda: len(work) * epochs)
        return Steps(items if self._parting is None else self._parting.through(items), whole)

    def report(self, loss: Any = None, grad_norm: Any = None, **numbers: Any) -> None:
        """Take numbers or tensors of one element. A tensor on a GPU is read a step late; nothing waits for it."""
        try:
            offer, step = self._numbers.offer, self.step + 1
            if loss is not None:
                offer("loss", loss, step)
            if grad_norm is not None:
                offer("grad_norm", grad_norm, step)
            for name, value in numbers.items():
                if value is not None:
                    offer(name, value, step)
        except Exception as error:  # A number that cannot be read is not worth a run.
            self._say.once("report", f"a reported number could not be read and is left out: {error}")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a pause that may be long (evaluation, export), so that it is not taken for a hang."""
        before, began = self._beats.phase, perf_counter()
        self._beats.enter(name)
        try:
            yield
        finally:
            self._beats.enter(before)
            if name != "save":
                self._split.pause(perf_counter() - began)

    def save(self) -> None:
        """Save when the current step is done. All ranks must ask for the same step."""
        self._saves.asked = True

    def _count(self, total: int) -> Iterator[int]:
        self._enter_loop(total)
        resumed = self._restored is not None
        if self._restored is not None:
            apply_randomness(self._restored.randomness)
            self._restored = None
        if not resumed and next_draw(self._left_out, self._draw) >= total:
            self._say.once(
                "nothing", f"run.steps({total}) gives nothing: this run has done {self.step} steps, and {total} is how many it does in all. "
                f"For {total} more ask for run.steps({self.step + total}); in a loop over epochs, for run.steps({total} * (epoch + 1)).",
            )  # fmt: skip
        while (draw := next_draw(self._left_out, self._draw)) < total:
            self.boundary = self._given = True
            yield draw
            self._given = False
            self._draw = draw + 1
            self._finish_step()
        self._leave_loop()

    def _go_through(self, loader: Iterable[Batch], epochs: int, accumulate: int, skip_bad: int) -> Iterator[Batch]:
        self._feed = feed = self._open_feed(loader, epochs, accumulate, skip_bad)
        self._enter_loop((feed.steps_per_epoch * self._epochs_begun) if feed.length else 0)
        self._beats.gauges.set(MICRO_BATCH, feed.micro_batch)
        self._beats.gauges.set(LOADER_WORKERS, getattr(loader, "num_workers", 0))
        for batch in feed:
            self.boundary, self.weight, self.accumulate = feed.boundary, feed.weight, feed.accumulate
            self._beats.data_wait_s = feed.data_wait_s
            self._given = True
            yield batch
            self._given = False
            feed.use()
            if feed.boundary:
                self._beats.samples = feed.samples
                self._finish_step()
        self._leave_loop()

    def _open_feed(self, loader: Iterable[Batch], epochs: int, accumulate: int, skip_bad: int) -> Feed[Batch]:
        spared = spare_memory(loader, self._loader_workers)
        if spared:
            self._say.once("workers", spared)
        if self._forgotten is not None:
            self._forgotten.sampler(loader)
        first = self._epochs_begun
        self._epochs_begun += epochs
        itself = any(piece is loader for piece in self._pieces.values())
        again = ReadAgain(loader, skip_bad=skip_bad, say=self._say, pause=lambda: self.phase("read"))
        feed = Feed(
            loader, first_epoch=first, last_epoch=self._epochs_begun, accumulate=accumulate, resumes_itself=itself, most=self._micro_batch, read_again=again,
            draw=self._feed.draw if self._feed is not None else self._draw, left_out=self._left_out,
            waiting=contextlib.nullcontext if self._parting is None else self._parting.waiting_for_data,
        )  # fmt: skip
        if skip_bad and not feed.micro_batch:
            raise UserError(
                f"steps(skip_bad={skip_bad}): a batch without its bad samples weighs less. Give the loader batch_sampler=holdfast.Sampler(..., resize=True), "
                "and multiply the loss with run.weight."
            )
        if self._restored is not None and self._progress is not None:
            feed.resume(self._progress, self._restored.randomness, step=self._restored.step)
            if self._restored.world_size != self._world_size:
                self._take_share(feed, self._restored)
            self._pass_by(over=feed.epoch >= self._epochs_begun)
        return feed

    def _pass_by(self, *, over: bool) -> None:
        """A call of steps() after a resume. If all its epochs are over, a later one is the one that was stopped."""
        try:
            if over:
                self._between = self._between or Between(self._pieces)
            elif self._between is not None:
                self._between.put_back()
        except Exception as error:
            self._say.once("between", f"what the script does between epochs is done once more, and could not be taken back: {error!r}")
        if not over:
            self._restored = self._between = None

    def _take_share(self, feed: Feed[Any], restored: Restored) -> None:
        """Of the same data, in a gang of another size. A process that was kept may have a sampler that was made for the other."""
        if restored.from_survivors and feed.shares_among not in (None, self._world_size):
            self._say.line(
                f"the loader's sampler was made for {feed.shares_among} ranks, and {self._world_size} go on: all start again. Make it within the function that "
                "rejoins, or use holdfast.Sampler."
            )
            raise SystemExit(NOBODY_CODE)
        said = feed.moved(restored.world_size, self._world_size)
        if said:
            self._say.once("moved", said)

    def _enter_loop(self, total: int) -> None:
        """The first step of a process may be long (compilation, first contact with the others): it still belongs to the start."""
        beats = self._beats
        beats.steps_total, beats.step, beats.step_started = Treatment(left_out=self._left_out).step_of(total), self.step, self.step
        beats.flags |= RESTORED | (REJOINS if self._parting is not None else 0)
        timeout_s = group_timeout_s()
        if timeout_s is not None:
            beats.gauges.set(GROUP_TIMEOUT, timeout_s)
        beats.enter("start")
        if self._stop is not None:
            self._stop.install()  # The script may have taken the signal since `guard`.
        self._split.restart(self.step)
        if self._leaving is not None:
            self._leaving.begin(self.step)

    def _finish_step(self) -> None:
        """At every step a beat; all else only as often as somebody looks, since after a wait for a GPU nothing is in the processor's caches, and
        every line takes ten times as long.
        """
        self.step = self._tuning.step = step = self.step + 1
        beats, now = self._beats, perf_counter()
        try:
            if step == beats.step_started + 1:
                self._split.restart(step)  # The first step of a process says nothing about the others: it compiles, it meets the other ranks.
            if (step + 1) % self._drift.every <= 1:
                self._drift.look(step)
            if self._split.hooked:
                self._split.unhook()
            if now >= self._account_at:
                self._account()
                self._account_at = now + _ACCOUNT_EVERY_S
                self._split.hook()
            beats.step = step
            beats.enter("step")
            if self._stop is not None and self._stop.due(step):
                self._leave_early()
        except Exception as error:  # Our own mistake or a lost store: the loop goes on without the rest.
            self._say.once("step", f"beats or the graceful stop failed and are left out: {error!r}")
        if self._until is not None and step >= self._until:
            self._say.line(f"step {step} is done, and this run was to go no further.")
            self._loop = None
            raise SystemExit(0)
        if self._profiling is not None and self._profiling.wanted():
            self._profile(self._profiling)
        if not self._prepared:
            self._prepare()
        if self._forgotten is not None:
            self._look_for_forgotten(self._forgotten)
        if self._saves.due(self.step):
            self._save_now()
        if self._parting is not None:
            self._keep(self._parting)
        if self._leaving is not None and now >= self._mark_at:
            self._mark_at = now + MARK_EVERY_S
            self._mark(self._leaving)

    def _see_what_moves(self) -> Leaving | None:
        try:
            return Leaving(self._pieces)
        except Exception as error:  # Another torch or NumPy may do this otherwise.
            self._say.line(f"a loop that is left before its end will not save its last step: {error!r}")
            return None

    def _mark(self, leaving: Leaving) -> None:
        try:
            leaving.mark(self.step, self._feed.bookmark() if self._feed is not None else None)
        except Exception as error:
            self._say.once("mark", f"a loop that is left before its end will not save its last step: {error!r}")
            self._leaving = None

    def _keep(self, parting: Parting) -> None:
        """Let others have this step, should one of them be lost."""
        try:
            parting.complete(self.step, self._where())
        except Exception as error:
            why = f"what guard() was given cannot be copied after step {self.step}: {error!r}"
            self._say.once("keep", f"this rank cannot rejoin a gang any more, and is started again with the others: {why}.")
            parting.give_up(why)

    def _prepare(self) -> None:
        self._prepared = True
        try:
            self._saves.prepare(self.step)
        except Exception as error:  # The first save will say what is wrong.
            self._say.once("prepare", f"no memory could be prepared for snapshots: {error!r}")

    def _look_for_forgotten(self, forgotten: Forgotten) -> None:
        try:
            if not forgotten.look():
                self._forgotten = None
        except Exception as error:  # Another torch may do this otherwise.
            self._say.once("forgotten", f"whether guard() lacks a piece could not be found out: {error!r}")
            self._forgotten = None

    def _profile(self, profiling: Profiling) -> None:
        """To start and to end a profiler may take long, and is no hang; what is between is as any step."""
        totals = {**self._split.totals(), "data": self._beats.data_wait_s if self._feed is not None else 0.0, "save": self._beats.save_s}
        with contextlib.nullcontext() if profiling.recording else self.phase("profile"):
            profiling.go_on(self.step, totals)

    def _measure(self) -> None:
        try:
            self._split.install(self._pieces)
        except Exception as error:  # Another torch may do this otherwise.
            self._say.once("measure", f"the parts of a step cannot be measured, and are left out: {error!r}")

    def _account(self) -> None:
        """Write down where the time went, what was reported and what was saved."""
        beats, numbers, gauges = self._beats, self._numbers, self._beats.gauges
        numbers.collect()
        self._saves.look()
        beats.saved_step, beats.save_every = self._saves.saved_step, self._saves.every
        beats.loss = numbers.arrived.get("loss", beats.loss)
        if isfinite(beats.loss):
            beats.flags |= WAS_FINITE
        beats.grad_norm = numbers.arrived.get("grad_norm", beats.grad_norm)
        if self._stop is None:
            return  # No agent is there to read the rest.
        if self._stop.wanted:
            beats.flags |= STOPPING
        self._split.waited_besides(self._stop.waited_s)
        self._split.write(self.step, data_s=beats.data_wait_s if self._feed is not None else 0.0, save_s=beats.save_s)
        self._training.write(self._tuning.rate_times)
        gauges.set(SKIPPED, self._saves.skipped)
        if self._feed is not None:
            gauges.set(EPOCH, self._feed.epochs_done)
            gauges.set(BAD_SAMPLES, self._feed.bad_samples)
            gauges.set(READ_AGAIN, self._feed.batches_read_again)
        for name, value in numbers.arrived.items():
            if name not in ("loss", "grad_norm") and not gauges.set(name, value):
                self._say.once("gauges", f"there are more numbers than can be watched: {name!r} and those after it are left out")
        for name, value, unit in own_numbers.collect():
            gauges.set(name, value, unit)
        for name, why in own_numbers.failed().items():
            self._say.once(f"gauge {name}", f"the gauge {name!r} was given what is no number, and that is left out: {why}")

    def _leave_early(self) -> None:
        self._loop = None
        self._account()
        if self._saves.wanted_at_end(self.step):
            self._save_now(last=True)
        if self._profiling is not None:
            self._profiling.close()
        self._say.line(f"asked to stop: leaving after step {self.step}, {self._saves.describe()}.")
        raise SystemExit(EXIT_STOPPED)

    def _leave_loop(self) -> None:
        self._loop = None
        self._account()
        if self._saves.wanted_at_end(self.step):
            self._save_now(last=True)
        if self._profiling is not None:
            self._profiling.close()
        self._beats.enter("finish")

    # A loop that is left before its end.

    def _until_left(self, items: Iterator[Any]) -> Iterator[Any]:
        """Passes the items on. A loop that does not go to its end closes this generator, sooner or later."""
        self.leave()  # The loop before it, if its iterator was kept.
        self._loop = items
        at_exit.add(self)
        try:
            yield from items
        finally:
            if self._loop is items and self._parting is None:  # What a function that rejoins leaves by is not known before it ends.
                self.leave()

    def leave(self) -> None:
        """Save the last step that is done, or say which ones are in no checkpoint. A process that was forked from this one has no part in it."""
        if self._loop is None or os.getpid() != self._owner:
            return
        self._loop = None
        try:
            self._account()
            if self._profiling is not None:
                self._profiling.close()
            if self._leaving is not None:
                self._save_what_is_done(self._leaving.state(self.step))
        except Exception as error:
            self._saves.say_lost(self.step, f"its last step could not be saved: {error!r}")
        self._beats.enter("finish")

    def see_that_others_saved(self) -> None:
        with contextlib.suppress(Exception):
            self._saves.see_that_others_saved()

    def _save_what_is_done(self, state: State) -> None:
        because = state.because
        if state.step is not None and state.step > self.step and not self.boundary:
            because = "optimizers stepped before the last batch of the step"
        elif state.step is not None and state.step > self.step and not self._given:
            because = "it was left while the next step was being prepared"
        elif state.step == self.step and self._feed is not None and self._feed.resumes_itself:
            because = "the loader is a piece that keeps its own place, and has given one batch more"
        if because:
            self._saves.say_lost(self.step + state.moved, because)
            return
        if state.step != self.step:
            self._count_step()
        if self._saves.wanted_at_end(self.step):
            with self._as_when_marked(state.mark) as where:
                self._save_now(where, left=True)
            self._saves.say_lost(self.step, "it could not be saved")

    def _count_step(self) -> None:
        """The step that was under way is done as well: all has moved that moves in a step."""
        self.step = self._tuning.step = self.step + 1
        if self._feed is not None:
            self._feed.use()
            self._beats.samples = self._feed.samples
        else:
            self._draw = next_draw(self._left_out, self._draw) + 1
        self._beats.step = self.step

    @contextlib.contextmanager
    def _as_when_marked(self, mark: Mark | None) -> Iterator[Mapping[str, Any]]:
        """Where the data stood at the mark, with the random numbers as they were there: the next batch may have been fetched since."""
        if mark is None:
            yield self._where()
            return
        now = capture_randomness()
        apply_randomness(as_captured(mark.randomness, now))
        try:
            if self._feed is None or mark.place is None:
                yield self._where()
            else:
                with self._feed.turned_to(mark.place):
                    yield self._where()
        finally:
            apply_randomness(now)

    def _where(self) -> dict[str, Any]:
        draw = self._feed.draw if self._feed is not None else self._draw
        return {"feed": self._feed.progress() if self._feed else None, "draw": draw, **self._recorded}

    def take_off(self) -> None:
        """This run is over and its pieces live on: nothing of it stays on them."""
        self._loop = None
        if self._leaving is not None:
            self._leaving.take_off()
        self._split.uninstall()
        self._tuning.uninstall()
        self._saves.take_off()
        if self._stop is not None:
            self._stop.uninstall()
        release(self._pieces, since=self._parting.first_hook if self._parting is not None else hooks_so_far())
        if self._profiling is not None:
            self._profiling.close()

    def _save_now(self, where: Mapping[str, Any] | None = None, *, last: bool = False, left: bool = False) -> None:
        began = perf_counter()
        self._numbers.collect()
        if self._stop is not None:  # Else nobody compares them.
            self._saves.compared = self._drift.compared
        with self.phase("save"):
            save = self._saves.save_what_was_left if left else self._saves.save
            save(self.step, self._where() if where is None else where, self._numbers.arrived, last=last)
            took_s = perf_counter() - began
            if self._saves.taken_step == self.step and not (last or left):
                self._saves.took(took_s)
            self._beats.saved_step, self._beats.stall_s = self._saves.saved_step, self._saves.stall_s
            self._beats.save_s += took_s
            self._beats.gauges.set(SAVE_FAILED, self._saves.failed)
