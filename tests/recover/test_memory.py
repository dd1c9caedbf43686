"""After an out-of-memory no try is like one before, the search ends, and what fitted is not forgotten."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.fitting import Fitting
from holdfast.domain.job import Policy
from holdfast.domain.plan import Rung
from holdfast.domain.resources import Resources
from holdfast.domain.state import Attempt
from holdfast.recover.ladder import Fleet, decide
from holdfast.recover.memory import adjust

GB = 10**9
FLEET = Fleet(gang=("n1",), spares=(), lost=())


def short(micro_batch: int = 0, *, memory: str = "size", loader_workers: int = 0) -> Diagnosis:
    return Diagnosis(
        cause=Cause.OUT_OF_MEMORY, permanent=False, confidence=0.9, because="it ran out", memory=memory, micro_batch=micro_batch, step=3, fingerprint="oom",
        loader_workers=loader_workers,
    )  # fmt: skip


@given(meant=st.integers(1, 4096), room=st.integers(0, 4096), resumes=st.lists(st.integers(0, 4096), max_size=5))
def test_the_search_ends_and_finds_what_fits_whatever_room_there_is(meant: int, room: int, resumes: list[int]) -> None:
    """A machine on which `room` samples fit, and other ones after each time that a person starts the job again."""
    fitting = Fitting()
    for fits_here in [room, *resumes]:
        tries: list[int] = []
        while (given_ := min(meant, fitting.micro_batch or meant)) > fits_here:
            assert given_ not in tries
            tries.append(given_)
            adjustment = adjust(short(given_), fitting)
            assert adjustment is not None
            if adjustment.fitting is None:
                assert given_ == 1
                assert fits_here == 0
                return
            assert adjustment.fitting != fitting
            fitting = adjustment.fitting
            assert fitting.micro_batch < given_
        assert len(tries) <= 13
        fitting = fitting.fitted().upwards()


def test_pieces_are_mended_before_the_batch_is_halved_and_only_once() -> None:
    first = adjust(short(16, memory="fragmented"), Fitting())
    assert first is not None
    assert first.fitting == Fitting(expandable=True)
    again = adjust(short(16, memory="fragmented"), Fitting(expandable=True))
    assert again is not None
    assert again.fitting == Fitting(expandable=True, micro_batch=8, too_big=16)


def test_the_host_gets_fewer_loader_workers_first() -> None:
    fitting, tried = Fitting(), []
    for workers in (4, 2, 1):
        adjustment = adjust(short(8, memory="", loader_workers=workers), fitting)
        assert adjustment is not None
        assert adjustment.fitting is not None
        fitting = adjustment.fitting
        tried.append(fitting.loader_workers)
    assert tried == [2, 1, 0]
    last = adjust(short(8, memory="", loader_workers=1), fitting)
    assert last is not None
    assert last.fitting == Fitting(loader_workers=0, micro_batch=4, too_big=8)


def test_what_others_hold_or_nobody_may_change_is_left_to_the_ladder() -> None:
    assert adjust(short(8, memory="held"), Fitting()) is None
    assert adjust(short(0), Fitting()) is None
    other = Diagnosis(cause=Cause.EXCEPTION, permanent=False, confidence=0.9, because="it raised", micro_batch=8)
    assert adjust(other, Fitting()) is None


def test_what_fitted_before_is_gone_back_to_and_the_way_up_is_tried_by_halves() -> None:
    known = Fitting(micro_batch=4, fits=4, too_big=16).upwards()
    assert known.micro_batch == 10
    back = adjust(short(10), known)
    assert back is not None
    assert back.fitting == Fitting(micro_batch=4, fits=4, too_big=10)
    assert back.fitting.upwards().micro_batch == 7
    assert Fitting(micro_batch=4, fits=4, too_big=5).upwards().micro_batch == 4
    later = adjust(short(4), Fitting(micro_batch=4, fits=4, too_big=5))
    assert later is not None
    assert later.fitting == Fitting(micro_batch=2, fits=0, too_big=4), "what fitted once may not for longer samples"


def test_a_try_with_a_change_is_not_the_same_again_and_without_one_it_is() -> None:
    history = [Attempt(cause=Cause.OUT_OF_MEMORY, fingerprint="oom", step=3, progressed=False)]
    plan = decide(short(8), history, FLEET, Policy(), adjustment=adjust(short(8), Fitting()))
    assert (plan.rung, plan.wait_s) == (Rung.RESPAWN, 0.0)
    assert plan.fitting is not None
    assert plan.fitting.micro_batch == 4
    assert decide(short(0), history, FLEET, Policy(), adjustment=adjust(short(0), Fitting())).rung is Rung.STOP
    hopeless = decide(short(1), [], FLEET, Policy(), adjustment=adjust(short(1), Fitting()))
    assert (hopeless.rung, hopeless.permanent) == (Rung.STOP, True)
    assert "not even one sample fits" in hopeless.because


def test_what_a_user_told_the_allocator_stays() -> None:
    told = Fitting(expandable=True, micro_batch=4, loader_workers=0)
    plain = told.environment({})
    assert plain == {"HOLDFAST_MICRO_BATCH": "4", "HOLDFAST_LOADER_WORKERS": "0", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert told.environment({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"})["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:64,expandable_segments:True"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in told.environment({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"})
    assert str(Fitting(micro_batch=4, too_big=8)) == "4 samples of a rank at once, 8 did not fit"
    assert Fitting().environment({}) == {}


def leaking(step: int, *, loader_workers: int = 4) -> Diagnosis:
    of_the_host = short(8, memory="", loader_workers=loader_workers)
    return replace(of_the_host, step=step, fingerprint="oom:leak", leak="memory grew by 5 MB a step over 300 steps")


def test_a_leak_is_started_again_as_it_was_as_long_as_that_brings_the_job_further_and_then_no_longer() -> None:
    history: list[Attempt] = []
    for step in (300, 600, 900, 1200, 1500):
        plan = decide(leaking(step), history, FLEET, Policy(), adjustment=adjust(leaking(step), Fitting(), history))
        assert (plan.rung, plan.fitting) == (Rung.RESPAWN, Fitting()), "a smaller batch or fewer loader workers would only put it off"
        assert "memory grew by 5 MB a step over 300 steps" in plan.because
        history.append(Attempt(cause=Cause.OUT_OF_MEMORY, fingerprint="oom:leak", step=step, progressed=True))
    history[-1] = replace(history[-1], progressed=False)
    vain = adjust(leaking(1500, loader_workers=0), Fitting(), history)
    assert vain is not None
    assert vain.fitting == Fitting(micro_batch=4, too_big=8), "what looked like a leak and is not, such as samples that become longer"


def test_survivors_of_a_leak_keep_nothing_of_it() -> None:
    fleet = replace(FLEET, gang=("n1", "n2"), can_rejoin="")
    assert decide(leaking(300), [], fleet, Policy(), adjustment=adjust(leaking(300), Fitting())).rung is Rung.RESPAWN


def test_the_host_gets_more_memory_first_up_to_what_it_may_have_and_only_where_that_was_the_limit() -> None:
    asked = Resources(memory_bytes=10 * GB, memory_max_bytes=36 * GB)
    killed = replace(short(8, memory="", loader_workers=4), limit="--memory")
    fitting, said = Fitting(), []
    while (tried := adjust(killed, fitting, (), asked)) is not None and tried.fitting is not None and tried.fitting.memory_bytes > fitting.memory_bytes:
        fitting = tried.fitting
        said.append(tried.because)
    assert said == [
        "10 GB were too little (--memory): all ranks start again with 20 GB on each node, and may have 36 GB",
        "20 GB were too little (--memory): all ranks start again with 36 GB on each node, the most it may have",
    ]
    assert tried is not None
    assert tried.fitting == Fitting(memory_bytes=36 * GB, loader_workers=2), "then what it asks for"
    for other in (replace(killed, limit="--memory-per-worker"), replace(killed, limit="")):
        less = adjust(other, Fitting(), (), asked)
        assert less is not None
        assert less.fitting == Fitting(loader_workers=2), "more of it would change nothing"
    leak = adjust(replace(killed, leak="memory grew"), Fitting(), (), asked)
    assert leak is not None
    assert leak.fitting == Fitting(), "a leak would fill that too"
