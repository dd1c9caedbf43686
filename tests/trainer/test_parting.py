"""Parting: a loop is left wherever it is, but for the middle of a step; and what it leaves is a step that is whole."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
import torch

import holdfast
from holdfast.checkpoint.randomness import apply_randomness, capture_randomness
from holdfast.trainer import sockets
from holdfast.trainer.beats import Beats
from holdfast.trainer.parting import NOTHING_WHOLE, Kept, Parted, Parting, hooks_so_far, release, why_not
from holdfast.trainer.random_streams import Streams, as_captured, draw, found

GENERATION = 7


class Loop:
    """A loop in one process, with the pieces it trains."""

    def __init__(self, directory: Path) -> None:
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.own: dict[str, object] = {"seen": 0}
        self.parting = Parting(directory)
        self.parting.listen()
        self.parting.begin(GENERATION)
        pieces = {"net": self.net, "optimizer": self.optimizer, "own": self.own}
        self.parting.watch(pieces, Beats(None), Streams(directory / "randomness-0"))

    def run(self, body: Callable[[int], None]) -> Kept:
        """What is kept of it when it is left."""

        def through() -> Iterator[int]:
            for step in range(1000):
                yield step
                self.parting.complete(step + 1, {"step": step + 1})

        def loop() -> None:
            for step in self.parting.through(through()):
                body(step)

        with pytest.raises(Parted):
            self.parting.call(loop)
        return self.parting.keep()

    def train(self) -> None:
        self.net(torch.randn(4, 2)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tell(self, generation: int = GENERATION) -> None:
        self.parting.pipe.write_text(f"part {generation}\n")


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    one = Loop(tmp_path)
    yield one
    one.parting.say_that_it_waits(0)  # Ends the thread that breaks out, where a test was left in the middle.
    one.parting.close()


def test_a_loop_that_sleeps_is_left_at_once_with_the_last_step_whole(loop: Loop) -> None:
    before: list[torch.Tensor] = []

    def body(step: int) -> None:
        if step == 3:
            before.extend(value.clone() for value in loop.net.state_dict().values())
            loop.own["seen"] = 100
            loop.net(torch.randn(4, 2))  # Moves the running averages of a step that will never be done.
            loop.tell()
            time.sleep(60.0)
        loop.train()
        loop.own["seen"] = step

    began = time.monotonic()
    kept = loop.run(body)
    assert time.monotonic() - began < 30.0
    assert (kept.step, dict(kept.progress), kept.states["own"]) == (3, {"step": 3}, {"seen": 2})
    assert all(torch.equal(now, then) for now, then in zip(kept.states["net"].values(), before, strict=True))
    assert not torch.equal(torch.as_tensor(kept.randomness["torch"]), torch.as_tensor(kept.drawn["torch"]))


def test_a_step_whose_optimizer_has_begun_is_finished_before_the_loop_is_left(loop: Loop) -> None:
    done = []

    def body(step: int) -> None:
        loop.train()
        if step == 2:
            loop.tell()
            assert loop.parting.wanted.wait(30.0)
            time.sleep(0.2)  # Many signals come meanwhile.
        done.append(step)

    assert loop.run(body).step == 3
    assert done == [0, 1, 2]


def test_a_step_that_fails_after_its_optimizer_leaves_nothing_whole(loop: Loop) -> None:
    def loop_that_fails() -> None:
        for step in loop.parting.through(iter(range(3))):
            loop.train()
            if step == 0:
                loop.parting.complete(1, {})
            else:
                raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError, match="peer"):
        loop.parting.call(loop_that_fails)
    assert loop.parting.keep().step == NOTHING_WHOLE


def test_handlers_of_the_loop_let_it_pass_and_one_that_swallows_it_once_is_told_again(loop: Loop) -> None:
    swallowed = []

    def deaf(step: int) -> None:
        if step == 1:
            with contextlib.suppress(Parted), contextlib.suppress(Exception):
                loop.tell()
                time.sleep(60.0)
            swallowed.append(step)
            time.sleep(60.0)
        loop.train()

    assert loop.run(deaf).step == 1
    assert swallowed == [1]


def test_who_does_not_leave_writes_down_why_for_whoever_gives_it_up(loop: Loop, tmp_path: Path) -> None:
    why = tmp_path / f"cannot-{os.getpid()}"

    def wait_for_it() -> None:
        deadline = time.monotonic() + 30.0
        while not os.access(why, os.R_OK) and time.monotonic() < deadline:
            with contextlib.suppress(Parted):
                time.sleep(0.01)

    def body(step: int) -> None:
        if step == 1:
            with contextlib.suppress(Parted):
                loop.tell()
                time.sleep(60.0)
            wait_for_it()
        loop.train()

    loop.run(body)
    assert "its script swallows that or takes long to clean up: it is in wait_for_it (test_parting.py:" in why.read_text()
    loop.parting.say_that_it_waits(1)
    assert not why.exists(), "it has left after all"


def test_a_rank_is_told_to_leave_also_where_nothing_can_be_written_down(loop: Loop, tmp_path: Path) -> None:
    (tmp_path / f"cannot-{os.getpid()}").symlink_to(tmp_path / "nowhere" / "at-all")
    swallowed = []

    def deaf(step: int) -> None:
        if step == 1:
            deadline = time.monotonic() + 1.2  # Twice as long as it takes until a reason is written down.
            with contextlib.suppress(Parted):
                loop.tell()
                time.sleep(60.0)
            while time.monotonic() < deadline:
                with contextlib.suppress(Parted):
                    time.sleep(max(0.0, deadline - time.monotonic()))
            swallowed.append(step)
            time.sleep(60.0)
        loop.train()

    assert loop.run(deaf).step == 1
    assert swallowed == [1]


def test_steps_without_an_optimizers_step_are_done_again_with_the_next_that_is_whole(loop: Loop) -> None:
    def body(step: int) -> None:
        if step in (2, 3):  # As a loop does that goes on when a step has failed.
            with contextlib.suppress(RuntimeError):
                loop.net(torch.randn(4, 2))
                raise RuntimeError("Connection closed by peer")
            return
        if step == 4:
            loop.tell()
            time.sleep(60.0)
        loop.train()

    kept = loop.run(body)
    assert (kept.step, dict(kept.progress)) == (2, {"step": 2})


def test_where_no_optimizer_of_torchs_says_that_it_steps_every_step_is_whole(loop: Loop, tmp_path: Path) -> None:
    loop.parting.watch({"net": loop.net}, Beats(None), Streams(tmp_path / "randomness-1"))

    def body(step: int) -> None:
        if step == 3:
            loop.tell()
            time.sleep(60.0)
        with torch.no_grad():
            for parameter in loop.net.parameters():
                parameter.mul_(0.9)

    assert loop.run(body).step == 3


def test_a_model_that_is_just_evaluated_and_a_rate_that_went_ahead_are_as_after_the_last_step(loop: Loop) -> None:
    rates = []

    def body(step: int) -> None:
        if step == 2:
            rates.append(loop.optimizer.param_groups[0]["lr"])
            loop.optimizer.param_groups[0]["lr"] /= 2
            loop.net.eval()
            loop.tell()
            time.sleep(60.0)
        loop.train()

    kept = loop.run(body)
    assert kept.states["optimizer"]["param_groups"][0]["lr"] == loop.optimizer.param_groups[0]["lr"] == rates[0]
    assert all(module.training for module in loop.net.modules())


def test_a_model_that_is_just_evaluated_trains_again_also_where_its_step_is_torn(loop: Loop) -> None:
    def evaluates_after_the_step() -> None:
        for _ in loop.parting.through(iter(range(3))):
            loop.train()
            loop.net.eval()
            raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError, match="peer"):
        loop.parting.call(evaluates_after_the_step)
    assert loop.parting.keep().step == NOTHING_WHOLE
    assert loop.parting.torn
    assert all(module.training for module in loop.net.modules())


def test_hooks_that_were_put_on_what_lives_on_are_taken_off_and_older_ones_stay() -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    called: list[str] = []

    def put(name: str) -> None:
        net.register_forward_hook(lambda *_: called.append(f"forward {name}"))
        net.weight.register_hook(lambda _: called.append(f"gradient {name}"))
        net.weight.register_post_accumulate_grad_hook(lambda _: called.append(f"gathered {name}"))
        optimizer.register_step_post_hook(lambda *_: called.append(f"step {name}"))

    put("outside")
    net.numbers = {1 << 60: "not a hook"}
    since = hooks_so_far()
    for _ in range(2):
        put("inside")
    release({"net": net, "optimizer": optimizer}, since=since)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert called == ["forward outside", "gradient outside", "gathered outside", "step outside"]
    assert net.numbers == {1 << 60: "not a hook"}


def test_what_can_no_longer_be_copied_ends_no_loop_and_is_told(loop: Loop, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = holdfast.guard(net=loop.net, optimizer=loop.optimizer, checkpoints=tmp_path / "checkpoints", save_every=0)
    run._parting = loop.parting
    done = []
    for step in run.steps(4):
        loop.train()
        if step == 1:
            loop.own["lock"] = threading.Lock()
        done.append(step)
    assert done == [0, 1, 2, 3]
    assert loop.parting.keep().step == NOTHING_WHOLE
    assert "cannot be copied after step 2" in next(tmp_path.glob("cannot-*")).read_text()
    assert capfd.readouterr().err.count("cannot rejoin a gang any more") == 1


def test_a_word_for_another_generation_is_not_for_this_one(loop: Loop) -> None:
    def body(step: int) -> None:
        if step == 1:
            loop.tell(GENERATION - 1)
            time.sleep(0.1)
            assert not loop.parting.wanted.is_set()
            loop.tell()
            time.sleep(60.0)
        loop.train()

    assert loop.run(body).step == 1


def test_it_is_said_why_a_state_cannot_be_given_by_a_peer(loop: Loop) -> None:
    assert "DistributedDataParallel" in why_not({"net": loop.net, "optimizer": loop.optimizer})


def test_where_random_numbers_are_outlives_the_process_by_two_steps(tmp_path: Path) -> None:
    streams, path = Streams(tmp_path / "randomness-0"), tmp_path / "randomness-0"
    states = {}
    for step in range(1, 6):
        random.random(), numpy.random.standard_normal(), torch.randn(1)
        random.gauss(0.0, 1.0)
        states[step] = capture_randomness()
        streams.note(step, draw())
    drawn = [random.random(), random.gauss(0.0, 1.0), numpy.random.standard_normal(), float(torch.randn(1))]
    torch.manual_seed(0)
    assert found(path, 3) == {}
    assert found(tmp_path / "none", 5) == {}
    for step in (4, 5):
        told = found(path, step)
        assert told["python"] == states[step]["python"]
        assert told["numpy"] == states[step]["numpy"]
        assert torch.equal(told["torch"], states[step]["torch"])
    apply_randomness(found(path, 5))
    assert [random.random(), random.gauss(0.0, 1.0), numpy.random.standard_normal(), float(torch.randn(1))] == drawn
    assert as_captured(draw()).keys() == capture_randomness().keys()


def test_where_random_numbers_were_is_known_while_a_step_is_made_of_many_parts(tmp_path: Path) -> None:
    streams, path = Streams(tmp_path / "randomness-0"), tmp_path / "randomness-0"
    states = {}
    for step in range(1, 9):
        torch.randn(1)
        states[step] = torch.get_rng_state()
        streams.note(step, draw(), done=step == 4)
        for known in {4, step} if step > 4 else {step}:
            assert torch.equal(found(path, known)["torch"], states[known])
    assert found(path, 7) == {}


def test_a_record_that_was_being_written_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    streams, path = Streams(tmp_path / "randomness-0"), tmp_path / "randomness-0"
    streams.note(2, draw())
    record = bytearray(path.read_bytes())
    record[:16] = bytes(16)
    path.write_bytes(record)
    assert found(path, 2) == {}


def test_only_connections_opened_since_are_shut_and_who_listens_goes_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as old, server.accept()[0] as old_end:
        before = sockets.opened()
        with socket.create_connection(server.getsockname()) as new, server.accept()[0] as new_end:
            sockets.shut(before)
            assert new.recv(1) == b""
            assert new_end.recv(1) == b""
            old.sendall(b"x")
            assert old_end.recv(1) == b"x"
            with socket.create_connection(server.getsockname()):
                server.accept()[0].close()
