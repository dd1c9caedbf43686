"""The first cause, not its cascade, in whatever order they were seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.first_cause import diagnose, is_echo
from holdfast.domain.diagnosis import Cause
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.finding import Finding

ECHOES = (
    "Connection closed by peer [127.0.0.1]:29500",
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer",
    "NCCL communicator was aborted on rank 3",
    "Broken pipe",
    "The client socket has failed to recv any data",
)


def _exit(rank: int, kind: ExitKind, at_ns: int = 0, **known: object) -> Exit:
    return Exit(rank=rank, pid=rank, kind=kind, because=f"rank {rank} left: {kind}", at_ns=at_ns, **known)  # type: ignore[arg-type]


def _echo(rank: int, at_ns: int, text: str) -> Exit:
    return _exit(rank, ExitKind.EXCEPTION, at_ns, code=1, exception="RuntimeError", message=text)


CAUSES = {
    Cause.KILLED: {"kind": ExitKind.SIGNAL, "signal": 9},
    Cause.CRASH: {"kind": ExitKind.SIGNAL, "signal": 11},
    Cause.OUT_OF_MEMORY: {"kind": ExitKind.OUT_OF_MEMORY, "signal": 9},
    Cause.EXCEPTION: {"kind": ExitKind.EXCEPTION, "code": 1, "exception": "ValueError", "message": "bad sample"},
    Cause.EXIT_CODE: {"kind": ExitKind.CODE, "code": 3},
    Cause.CHECKPOINT_CORRUPT: {"kind": ExitKind.CODE, "code": 76},
    Cause.VANISHED: {"kind": ExitKind.VANISHED},
    Cause.NOT_STARTABLE: {"kind": ExitKind.EXCEPTION, "code": 1, "exception": "SyntaxError", "message": "invalid syntax"},
}


@given(cause=st.sampled_from(sorted(CAUSES)), echoes=st.lists(st.tuples(st.sampled_from(ECHOES), st.integers(0, 9)), max_size=6), data=st.data())
def test_echoes_in_any_order_do_not_hide_the_cause(cause: Cause, echoes: list[tuple[str, int]], data: st.DataObject) -> None:
    culprit = _exit(50, at_ns=5, **CAUSES[cause])  # type: ignore[arg-type]
    others = [_echo(rank, at_ns, text) for rank, (text, at_ns) in enumerate(echoes)]
    ours = _exit(60, ExitKind.SIGNAL, 1, signal=9, stopped_by_us=True)
    found = diagnose(data.draw(st.permutations([culprit, ours, *others])), (), {})
    assert (found.cause, found.ranks) == (cause, (50,))


@given(st.permutations([_exit(rank, ExitKind.SIGNAL, at_ns=rank, signal=9) for rank in (2, 3, 4, 5)]))
def test_of_several_deaths_the_first_is_named(exits: list[Exit]) -> None:
    assert diagnose(exits, (), {}).ranks == (2,)


def test_only_echoes_means_the_network() -> None:
    found = diagnose([_echo(1, 5, ECHOES[0]), _echo(0, 3, ECHOES[1])], (), {})
    assert (found.cause, found.ranks) == (Cause.NETWORK, (0,))


def test_a_mistake_in_the_script_is_no_echo_whatever_its_words() -> None:
    for exception, message in (("KeyError", "'peer'"), ("AttributeError", "'DataStore' object has no attribute 'get_nccl'"), ("builtins.TypeError", "gloo")):
        assert not is_echo(_exit(0, ExitKind.EXCEPTION, exception=exception, message=message))


def test_a_hang_names_the_rank_that_fell_silent_first_and_a_stopped_one_for_certain() -> None:
    silent = [Finding(kind="silent_rank", ranks=(rank,), since=100.0 + rank, because=f"rank {rank} is silent") for rank in (1, 0, 2)]
    killed = [_exit(rank, ExitKind.SIGNAL, signal=9, stopped_by_us=True) for rank in range(3)]
    assert (diagnose(killed, silent, {}).cause, diagnose(killed, silent, {}).ranks) == (Cause.HANG, (0,))
    stopped = Finding(kind="stopped_rank", ranks=(2,), since=103.0, because="rank 2 is stopped")
    assert diagnose(killed, [*silent, stopped], {}).ranks == (2,)


def test_a_rank_that_dies_while_others_look_hung_is_the_cause() -> None:
    silent = [Finding(kind="silent_rank", ranks=(0,), since=100.0, because="rank 0 is silent")]
    assert diagnose([_exit(1, ExitKind.OUT_OF_MEMORY, signal=9)], silent, {}).cause is Cause.OUT_OF_MEMORY


@pytest.mark.parametrize("kind", ["silent_node", "unkillable"])
def test_a_lost_node_explains_the_exits_of_the_others(kind: str) -> None:
    exits = [_exit(1, ExitKind.SIGNAL, signal=6), _echo(0, 3, ECHOES[0])]
    found = diagnose(exits, [Finding(kind=kind, node="n2", because="n2 is gone")], {})
    assert found.node == "n2"
    assert not found.permanent


POISONED = Finding(kind="poisoned_checkpoint", ranks=(0, 1), because="not finite right after step-20 was restored", checkpoint="step-20", step=20)


@given(st.permutations([_exit(1, ExitKind.EXCEPTION, 3, exception="ValueError"), _echo(0, 5, ECHOES[0]), _exit(2, ExitKind.SIGNAL, 6, signal=9)]))
def test_a_poisoned_checkpoint_explains_the_exits_that_follow_and_blames_no_rank_and_no_node(exits: list[Exit]) -> None:
    found = diagnose(exits, [POISONED], {})
    assert (found.cause, found.step, found.permanent) == (Cause.POISONED_CHECKPOINT, 20, False)
    assert (found.ranks, found.node) == ((), "")


def test_a_lost_node_comes_before_a_poisoned_checkpoint_which_will_show_again() -> None:
    assert diagnose([], [POISONED, Finding(kind="silent_node", node="n2", because="n2 is gone")], {}).cause is Cause.NODE_LOST


def test_a_program_that_cannot_be_found_is_permanent() -> None:
    for code in (126, 127):
        found = diagnose([_exit(0, ExitKind.CODE, code=code)], (), {})
        assert (found.cause, found.permanent) == (Cause.NOT_STARTABLE, True)


def test_a_missing_module_in_the_middle_of_a_run_is_an_exception_and_at_its_start_is_permanent() -> None:
    late = _exit(0, ExitKind.EXCEPTION, exception="ModuleNotFoundError", message="No module named 'x'", step=500)
    assert not diagnose([late], (), {}).permanent
    early = _exit(0, ExitKind.EXCEPTION, exception="ModuleNotFoundError", message="No module named 'x'", step=-1)
    assert diagnose([early], (), {}).permanent


def test_nothing_seen_is_said_to_be_nothing_seen() -> None:
    found = diagnose([], (), {})
    assert (found.cause, found.permanent) == (Cause.VANISHED, False)
    assert found.confidence < 0.5


CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free. {}"


def test_a_leak_is_told_from_what_does_not_fit_and_from_what_others_hold() -> None:
    host = {"signal": 9, "fingerprint": "out_of_memory"}
    leaks = diagnose([_exit(1, ExitKind.OUT_OF_MEMORY, leak="memory grew by 5 MB a step", **host)], (), {})
    assert (leaks.cause, leaks.leak, leaks.fingerprint) == (Cause.OUT_OF_MEMORY, "memory grew by 5 MB a step", "out_of_memory:leak")
    assert leaks.because.endswith("it leaks: memory grew by 5 MB a step")
    assert diagnose([_exit(1, ExitKind.OUT_OF_MEMORY, **host)], (), {}).fingerprint == "out_of_memory"
    gpu = {"code": 1, "exception": "torch.OutOfMemoryError", "leak": "memory grew by 5 MB a step"}
    own, others = "This process has 7.00 GiB memory in use.", "Process 4711 has 6.00 GiB memory in use. This process has 1.00 GiB memory in use."
    assert diagnose([_exit(1, ExitKind.EXCEPTION, message=CUDA.format(own), **gpu)], (), {}).leak
    assert not diagnose([_exit(1, ExitKind.EXCEPTION, message=CUDA.format(others), **gpu)], (), {}).leak
    assert not diagnose([_exit(1, ExitKind.EXCEPTION, exception="ValueError", leak="memory grew by 5 MB a step")], (), {}).leak


def _refusing(rank: int, said: str, at_ns: int = 0) -> Exit:
    return _exit(rank, ExitKind.CODE, at_ns, code=2, never_passes=said)


NODES = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


def test_what_never_passes_is_permanent_at_the_first_try_of_a_run_and_not_later() -> None:
    ours = _exit(1, ExitKind.SIGNAL, 1, signal=15, stopped_by_us=True)
    first = diagnose([_refusing(0, "config_error"), ours], (), {}, first_try_on=NODES)
    assert (first.cause, first.permanent) == (Cause.NOT_STARTABLE, True)
    assert "config_error" in first.because
    assert not diagnose([_refusing(0, "config_error"), ours], (), {}).permanent


def test_what_one_node_alone_may_lack_is_tried_again_until_every_node_says_so() -> None:
    here = [_refusing(0, "file_not_found"), _refusing(1, "file_not_found", 1)]
    assert not diagnose(here, (), {}, first_try_on=NODES).permanent
    assert diagnose([*here, _refusing(2, "file_not_found", 2)], (), {}, first_try_on=NODES).permanent
    assert diagnose([_refusing(0, "file_not_found")], (), {}, first_try_on={0: "n1", 1: "n1"}).permanent, "a single node is every node"
    assert not diagnose([_refusing(1, "file_not_found")], (), {}, first_try_on={0: "n1", 1: "n1"}).permanent, "rank 0 may be about to write it"


def test_ranks_that_end_differently_are_tried_again() -> None:
    other = _exit(1, ExitKind.EXCEPTION, 9, code=1, exception="ConnectionRefusedError", message="connect to the data base")
    assert not diagnose([_refusing(0, "config_error"), other], (), {}, first_try_on=NODES).permanent
    assert diagnose([_refusing(0, "config_error"), _echo(1, 9, ECHOES[0])], (), {}, first_try_on=NODES).permanent, "an echo says nothing of its own"
