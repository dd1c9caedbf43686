"""Each check of a machine can fail: the state it looks for is made for real where that is possible, and otherwise what it saw is judged."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.chunks import Store
from holdfast.checkpoint.commit import Shard, commit
from holdfast.checkpoint.disk import Disk
from holdfast.cli.doctor import between
from holdfast.preflight import clock, compute, graphics, graphics_links, groups, limits, links, memory, ports, remote, shared_memory, storage, versions
from holdfast.preflight.check import Check, Place, Verdict
from holdfast.preflight.examine import CHECKS, examine, worst
from holdfast.preflight.needs import Needs, needs_of


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(state=str(tmp_path), checkpoints=str(tmp_path / "jobs"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def only(checks: Iterable[Check]) -> Check:
    (check,) = checks
    return check


@pytest.mark.parametrize("name", sorted(set(CHECKS) - {"versions"}))  # Which imports torch, and takes long.
def test_every_check_answers_on_this_machine_with_a_sentence(place: Place, name: str) -> None:
    for check in examine(place, [name]):
        assert check.name == name
        assert check.said
        assert check.do or check.verdict is Verdict.OK


def test_every_check_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    assert not [name for name in CHECKS if f"| `{name}` |" not in guide]


def test_a_check_that_does_not_answer_is_bad(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.preflight.examine.QUICK_WITHIN_S", 0.01)
    check = only(list(examine(place, ["clock"])))
    assert check.verdict is Verdict.BAD
    assert "no answer" in check.said


def test_a_check_that_dies_is_bad_and_says_of_what(place: Place) -> None:
    dies = [sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(signal.SIGBUS)})"]
    check = only(list(examine(place, ["clock"], prefix=dies)))
    assert check.verdict is Verdict.BAD
    assert "SIGBUS" in check.said


def test_the_worst_verdict_counts() -> None:
    checks = [Check(name="a", verdict=verdict, said="") for verdict in (Verdict.OK, Verdict.BAD, Verdict.WARN)]
    assert worst(checks) is Verdict.BAD
    assert worst(checks[:1]) is Verdict.OK
    assert worst([checks[0], checks[2]]) is Verdict.WARN


def test_a_full_disk_is_bad_and_named(place: Place, small_disk: Path) -> None:
    full = Place(state=str(small_disk), checkpoints=str(small_disk))
    check = only(storage.look(full))
    assert check.verdict is Verdict.BAD
    assert check.culprit == str(small_disk)
    assert not list(small_disk.iterdir())


def test_a_directory_that_cannot_be_written_is_bad(tmp_path: Path) -> None:
    check = storage._look_at(Path("/proc/self"), 1 << 20)
    assert check.verdict is Verdict.BAD


def test_a_disk_that_gives_back_other_bytes_is_bad_and_one_that_is_slow_is_said_to_be() -> None:
    seen = storage.Measured(write_bytes_per_s=1e9, read_bytes_per_s=1e9, sync_s=0.001, same=False)
    assert storage.judge(Path("/d"), 1 << 40, seen).verdict is Verdict.BAD
    slow = storage.Measured(write_bytes_per_s=1e6, read_bytes_per_s=1e9, sync_s=0.001, same=True)
    assert storage.judge(Path("/d"), 1 << 40, slow).verdict is Verdict.WARN


def test_tiny_shared_memory_is_bad_and_the_remedy_is_said(place: Place, small_disk: Path) -> None:
    check = only(shared_memory.look(place, small_disk))
    assert check.verdict is Verdict.BAD
    assert "--shm-size" in check.do
    (small_disk / "filler").write_bytes(bytes(20 << 20))
    assert shared_memory.touch(small_disk)


WANTED = Needs(checkpoint="step-00000020.g1", save_bytes=3 << 30, disk_bytes=6 << 30, shared_memory_bytes=8 << 30)


def test_a_job_that_wants_more_shared_memory_than_there_is_hears_it() -> None:
    assert shared_memory.judge(9 << 30, 1 << 40, 0, WANTED, "/dev/shm") is None
    assert shared_memory.judge(1 << 30, 1 << 40, 7 << 30, WANTED, "/dev/shm") is None, "most of it is the job's already"
    short = shared_memory.judge(1 << 30, 1 << 40, 0, WANTED, "/dev/shm")
    assert short is not None
    assert "1.0 GiB free in /dev/shm, and 8.0 GiB are wanted: snapshots like step-00000020.g1" in short.said
    machine = shared_memory.judge(1 << 40, 10 << 30, 0, WANTED, "/dev/shm")
    assert machine is not None
    assert machine.said.startswith("10.0 GiB of memory free, of which snapshots may take 5.7 GiB")


def test_a_disk_that_the_next_checkpoint_does_not_fit_on_is_bad(tmp_path: Path) -> None:
    check = storage._look_at(tmp_path, 1 << 20, replace(WANTED, disk_bytes=1 << 60))
    assert (check.verdict, check.culprit) == (Verdict.BAD, str(tmp_path))
    assert "step-00000020.g1 wrote 3.0 GiB" in check.said
    plenty = storage.Measured(write_bytes_per_s=1e9, read_bytes_per_s=1e9, sync_s=0.001, same=True)
    assert storage.judge(tmp_path, 4 << 30, plenty).verdict is Verdict.WARN
    assert storage.judge(tmp_path, 4 << 30, plenty, replace(WANTED, disk_bytes=1 << 30)).verdict is Verdict.OK, "so much is known to do"


def test_what_a_job_holds_in_memory_is_counted_for_each_rank_and_node_from_its_checkpoint(tmp_path: Path) -> None:
    for rank in range(2):
        note = {"own": {"tensors": [{"at": [["d", 0, 1000]]}, {"at": [["d", 0, 24]]}]}} | ({} if rank else {"shared": {"tensors": [{"at": [["e", 0, 500]]}]}})
        commit(Disk(), tmp_path, Shard(step=5, generation=1, world_size=2, rank=rank, at=0.0), lambda store, note=note: put(store, note), base=None)
    place = Place(state=str(tmp_path), checkpoints=str(tmp_path), nodes=2)
    found = [needs_of(place), needs_of(replace(place, nodes=1)), needs_of(replace(place, checkpoints="/nowhere"))]
    assert [needs and needs.shared_memory_bytes for needs in found] == [3 * (2 * 1024 + 2 * 500), 2 * (2 * 1024 + 500), None]


def put(store: Store, note: object) -> str:
    return store.put(json.dumps(note).encode()).digest


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check = only(ports.look(Place(state="/", checkpoints="/", ports=(port,))))
    assert check.verdict is Verdict.BAD
    assert check.culprit == f"port {port}"


def test_an_address_that_is_not_ours_is_reached_by_nobody() -> None:
    check = links.look(Place(state="/", checkpoints="/", host="192.0.2.1"))[0]
    assert check.verdict is Verdict.BAD


def test_a_core_that_computes_wrongly_or_slowly_is_named() -> None:
    assert compute.judge({0: 1e9, 1: 1e9}, [1])[0].culprit == "core 1"
    slow = only(compute.judge({0: 1e9, 1: 1e9, 2: 1e8}, []))
    assert (slow.verdict, slow.culprit) == (Verdict.WARN, "core 2")


def test_a_product_is_known_to_be_right_and_a_changed_bit_is_seen() -> None:
    a, b, x = compute.whole(16, 7), compute.whole(16, 11), compute.whole(16, 5)[:, 0]
    product = a @ b
    assert (product @ x == a @ (b @ x)).all()
    product[3, int(np.flatnonzero(x)[0])] += 1.0
    assert not (product @ x == a @ (b @ x)).all()


def test_a_gpu_that_computes_wrongly_or_slowly_is_named() -> None:
    wrong = only(graphics.judge([("", 1e13, 1e10), ("multiplied wrongly", 1e13, 1e10)]))
    assert (wrong.verdict, wrong.culprit) == (Verdict.BAD, "GPU 1")
    slow = graphics.judge([("", 1e13, 1e10), ("", 1e13, 1e10), ("", 1e12, 1e10)])
    assert [(check.verdict, check.culprit) for check in slow] == [(Verdict.WARN, "GPU 2"), (Verdict.OK, "")]


def test_memory_that_loses_a_bit_is_bad() -> None:
    words = np.arange(10, dtype=np.uint64)
    assert memory.patterns(words.copy()).verdict is Verdict.OK
    assert memory._wrong(words, words + np.uint64(1)).verdict is Verdict.BAD


def test_a_clock_nobody_keeps_is_a_warning_and_one_that_jumps_is_bad() -> None:
    assert clock.judge(2e9, 0.0, (False, 1.0)).verdict is Verdict.WARN
    assert clock.judge(2e9, 0.5, (True, 0.0)).verdict is Verdict.BAD
    assert clock.judge(0.0, 0.0, (True, 0.0)).verdict is Verdict.BAD
    assert clock.judge(2e9, 0.0, (True, 0.001)).verdict is Verdict.OK


def test_a_torch_that_wants_a_newer_driver_is_bad() -> None:
    assert versions.judge("2.13.0 13.0 2.27 True", "", "12.8").verdict is Verdict.BAD
    assert versions.judge("2.13.0 12.6 2.27 True", "", "12.8").verdict is Verdict.OK
    assert versions.judge("2.13.0+cpu - - True", "", "12.8").verdict is Verdict.WARN
    assert versions.judge("", "it is not installed here", "").verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("held", "culprit"),
    [({"NOFILE": 64}, "open files"), ({"NPROC": 10}, "processes"), ({"MEMLOCK": 1024}, "locked memory")],
)
def test_a_limit_that_is_too_low_is_named(held: dict[str, float], culprit: str) -> None:
    enough = {"NOFILE": 1e6, "NPROC": 1e6, "MEMLOCK": 1e12}
    check = only(limits.judge(enough | held, ranks=4, infiniband=True))
    assert (check.verdict, check.culprit) == (Verdict.BAD, culprit)


def test_control_groups_are_told_of() -> None:
    assert "version" in only(groups.look(Place(state="/", checkpoints="/"))).said


def measured(round_trip_s: float) -> links.Measured:
    return links.Measured(round_trip_s=round_trip_s, worst_s=round_trip_s, bytes_per_s=1e9)


def test_a_node_with_a_bad_link_is_named_after_two_rounds() -> None:
    checks = list(between([f"node-{number}" for number in range(4)], lambda pair: measured(0.01 if "node-2" in pair else 0.0001)))
    assert [check.culprit for check in checks if check.verdict is Verdict.BAD] == ["node-2"]


def joined(slow: set[int] = frozenset(), *, direct: bool = True, problem: str = "") -> dict[tuple[int, int], graphics_links.Copied]:
    """Four GPUs. Every link of the slow ones is slow."""
    return {
        pair: graphics_links.Copied(direct=direct, bytes_per_s=1e9 if slow & set(pair) else 1e11, problem=problem if slow & set(pair) else "")
        for pair in graphics_links.pairs(4)
    }


def test_links_between_gpus_are_compared_and_a_gpu_whose_links_all_fail_is_named() -> None:
    assert only(graphics_links.judge(joined())).verdict is Verdict.OK
    slow = only(graphics_links.judge(joined({2})))
    assert (slow.verdict, slow.culprit) == (Verdict.WARN, "GPU 2")
    wrong = only(graphics_links.judge(joined({1}, problem="other bytes arrived than were sent")))
    assert (wrong.verdict, wrong.culprit) == (Verdict.BAD, "GPU 1")
    link = joined() | {(0, 3): graphics_links.Copied(direct=True, bytes_per_s=1e9)}
    assert only(graphics_links.judge(link)).culprit == "GPU 0 to GPU 3"
    far = joined() | {pair: graphics_links.Copied(bytes_per_s=1e10) for pair in graphics_links.pairs(4) if 3 in pair}
    assert [(check.verdict, check.culprit) for check in graphics_links.judge(far)] == [(Verdict.OK, ""), (Verdict.WARN, "GPU 3")]


def test_of_many_gpus_each_is_tried_with_some_others() -> None:
    assert len(graphics_links.pairs(8)) == 56
    assert len(graphics_links.pairs(16)) == 64


def test_a_remote_store_is_written_to_and_one_that_never_answers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_WITHIN_S", 1.0)
    place = Place(state="/", checkpoints="/")
    assert only(remote.look(place)).verdict is Verdict.OK
    assert only(remote.look(replace(place, remote=str(tmp_path)))).verdict is Verdict.OK
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It accepts, and says nothing.
        url = f"webhdfs://127.0.0.1:{silent.getsockname()[1]}/path"
        check = only(remote.look(replace(place, remote=url)))
    assert (check.verdict, check.culprit) == (Verdict.BAD, url)


def test_a_node_that_nobody_reaches_is_named_after_two_rounds() -> None:
    def measure(pair: tuple[str, str]) -> links.Measured:
        if "node-1" in pair:
            raise OSError("no answer")
        return measured(0.0001)

    checks = list(between([f"node-{number}" for number in range(5)], measure))
    assert [check.culprit for check in checks if check.verdict is Verdict.BAD] == ["node-1"]
