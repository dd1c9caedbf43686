"""What the remote store has newer: fetched when it may matter, never waited for otherwise, and never silently done without."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest
from checkpoint.test_remote import save_few

from holdfast.checkpoint.found import list_complete, verify
from holdfast.checkpoint.remote import Remote
from holdfast.checkpoint.remote_address import open_remote
from holdfast.checkpoint.remote_files import Asker, Directory, Limits
from holdfast.control.fetching import NOTHING, Fetching, NothingToGoOnFrom


class Bench:
    """A store with steps 10 and 20, and a machine that has nothing."""

    def __init__(self, root: Path) -> None:
        self.store, self.here, self.notes = root / "store", root / "here", list[str]()
        self.store.mkdir()
        self.here.mkdir()
        save_few(root / "source", 10, 20)
        for found in reversed(list_complete(root / "source")):
            open_remote(str(self.store)).upload(root / "source", found.name)
        self.fetching = Fetching(str(self.store), self.here, note=self.notes.append, list_within_s=1.0)

    def bring(self, here: tuple[int, int] = NOTHING, *, saved_step: int = -1, distrusted: tuple[str, ...] = ()) -> None:
        asyncio.run(self.fetching.bring_newer(here, saved_step=saved_step, distrusted=distrusted))

    def steps(self) -> list[int]:
        return [found.step for found in list_complete(self.here)]

    def damage(self, name: str) -> None:
        shutil.rmtree(self.store / name / "chunks")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class Silent(Directory):
    """A store that does not answer."""

    def list(self, directory: str) -> dict[str, int | None]:
        def work() -> dict[str, int | None]:
            threading.Event().wait(30.0)
            return {}

        return self._ask("listing", work)

    def on_behalf_of(self, stop: object) -> Silent:
        return Silent(self._root, self._ask.on_behalf_of(stop))  # type: ignore[arg-type]


def make_silent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits()
    monkeypatch.setattr(bench.fetching, "_open", lambda: Remote(Silent(bench.store, Asker("/store", limits)), "/store", limits))


def test_a_machine_that_has_nothing_gets_the_newest_and_says_so(bench: Bench) -> None:
    bench.bring()
    assert bench.steps() == [20]
    verify(list_complete(bench.here)[0].path)
    assert [note.partition(":")[0] for note in bench.notes] == ["step 20 came from the remote store"]
    assert bench.fetching.progress == ""


def test_what_is_no_newer_than_what_is_here_is_not_fetched(bench: Bench) -> None:
    bench.bring((1, 20))
    bench.bring((2, 5))
    assert (bench.steps(), bench.notes) == ([], [])


def test_a_store_is_asked_once_and_again_only_when_something_is_lost(bench: Bench) -> None:
    asked = []
    real = bench.fetching._open
    bench.fetching._open = lambda: asked.append(1) or real()  # type: ignore[method-assign,func-returns-value]
    for _ in range(3):
        bench.bring((1, 20), saved_step=20)
    assert len(asked) == 1, "a recovery does not wait for a store"
    bench.bring((1, 10), saved_step=20)
    assert len(asked) == 2
    assert bench.steps() == [20]
    bench.bring()
    assert len(asked) == 3


def test_one_that_is_distrusted_is_left_there(bench: Bench) -> None:
    bench.bring(distrusted=("step-00000020.g1",))
    assert bench.steps() == [10]


def test_a_damaged_one_is_passed_over_with_the_reason_and_the_next_older_is_taken(bench: Bench) -> None:
    bench.damage("step-00000020.g1")
    bench.bring()
    assert bench.steps() == [10]
    assert "step-00000020.g1 in the remote store is passed over" in bench.notes[0]
    assert "is missing" in bench.notes[0]


def test_with_nothing_here_and_nothing_whole_there_the_job_does_not_begin_at_the_beginning(bench: Bench) -> None:
    for name in ("step-00000010.g1", "step-00000020.g1"):
        bench.damage(name)
    with pytest.raises(NothingToGoOnFrom, match=r"(?s)nothing is saved here.*Nothing is started from scratch: mend the store and resume, or go on without it"):
        bench.bring()
    bench.bring((1, 5))
    assert "goes on from what is saved here" in bench.notes[-1]


def test_an_empty_store_has_nothing_and_that_is_an_answer(bench: Bench) -> None:
    shutil.rmtree(bench.store)
    bench.store.mkdir()
    bench.bring()
    assert (bench.steps(), bench.notes) == ([], [])


@pytest.mark.parametrize("here", [NOTHING, (1, 5)])
def test_a_store_that_says_nothing_is_waited_for_a_bounded_time(bench: Bench, monkeypatch: pytest.MonkeyPatch, here: tuple[int, int]) -> None:
    make_silent(bench, monkeypatch)
    began = time.monotonic()
    if here == NOTHING:
        with pytest.raises(NothingToGoOnFrom, match="did not say what it has within 1 s"):
            bench.bring(here)
    else:
        bench.bring(here)
        assert "did not say what it has within 1 s" in bench.notes[0]
    assert time.monotonic() - began < 10.0


def test_a_later_search_ends_the_one_before_it_and_a_stop_ends_any(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    make_silent(bench, monkeypatch)
    bench.fetching._list_within_s = 60.0

    async def work() -> list[BaseException | None]:
        def search() -> Awaitable[None]:
            return asyncio.create_task(bench.fetching.bring_newer(NOTHING, saved_step=-1, distrusted=()))

        first = search()
        await asyncio.sleep(0.3)
        second = search()
        await asyncio.sleep(0.3)
        bench.fetching.stop()
        return await asyncio.gather(first, second, return_exceptions=True)  # type: ignore[return-value]

    began = time.monotonic()
    ended = asyncio.run(work())
    assert all(isinstance(one, NothingToGoOnFrom) for one in ended)
    assert time.monotonic() - began < 10.0
