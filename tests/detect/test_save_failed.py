"""Failed saves: what is said of one, when a save that will not fit is told of before, and how either ends."""

from __future__ import annotations

from holdfast.detect.save_failed import NONE, Failure, Room, SaveFailed
from holdfast.diagnose.together import belongs, leading
from holdfast.domain.finding import Finding, Severity

GB = 1e9
WIDE = Room(free_bytes=3000 * GB, size_bytes=4000 * GB, needs_bytes=1000 * GB)
TIGHT = Room(free_bytes=700 * GB, size_bytes=4000 * GB, needs_bytes=1000 * GB)


def detector() -> SaveFailed:
    return SaveFailed(node="node-0", directory="/data")


def full(step: int, generation: int = 1) -> Failure:
    return Failure(generation=generation, step=step, said="No space left on device", full=True)


def looked(found: SaveFailed, room: Room | None, newest: tuple[int, int] = (1, 40), times: int = 3) -> list[str]:
    for now in range(times):
        found.look(room, newest, float(now))
    return [finding.kind for finding in found.standing]


def test_a_disk_with_much_room_is_too_full_for_a_larger_save_and_that_is_said_before_it_fails() -> None:
    found = detector()
    assert looked(found, WIDE) == []
    assert looked(found, TIGHT) == ["save_will_fail"]
    (finding,) = found.standing
    assert (finding.severity, finding.node, finding.of) == (Severity.CRITICAL, "node-0", "/data")
    assert finding.because == (
        "the next save will not fit into /data: 700 GB of 4 TB are free, and a save needs 1 TB; the newest checkpoint is step 40"
    )
    assert looked(found, WIDE) == []
    assert found.ended[finding.key] == "there is room for the next save: 3 TB of 4 TB are free, and a save needs 1 TB"


def test_what_a_save_under_way_has_written_is_room_and_one_look_is_not_enough() -> None:
    found = detector()
    assert looked(found, Room(free_bytes=100 * GB, begun_bytes=900 * GB, size_bytes=4000 * GB, needs_bytes=1000 * GB)) == []
    assert looked(found, TIGHT, times=1) == []
    assert looked(found, None) == [], "a disk that cannot be asked says nothing"
    assert looked(found, Room(free_bytes=1.0, size_bytes=GB)) == [], "how large a save is nobody knows yet"


def test_a_disk_without_inodes_is_as_full() -> None:
    found = detector()
    assert looked(found, Room(free_bytes=GB, size_bytes=GB, needs_bytes=1.0, free_files=3, needs_files=9)) == ["save_will_fail"]
    assert "3 more files can be made, and a save needs 9" in found.standing[0].because


def test_a_save_that_failed_is_said_in_the_words_of_the_system_until_a_newer_one_is_complete() -> None:
    found = detector()
    found.failed(full(60), TIGHT, (1, 40), 5.0)
    found.failed(full(80), TIGHT, (1, 40), 6.0)
    (finding,) = found.standing
    assert finding.because == (
        "No space left on device: 700 GB of 4 TB are free, and a save needs 1 TB; step 60 could not be saved in /data; the newest checkpoint is step 40"
    )
    assert looked(found, WIDE, (1, 60)) == ["save_failed"], "step 80 is not saved yet"
    assert looked(found, WIDE, (1, 80)) == []
    assert found.ended[finding.key] == "saving works again: step 80 is saved, and nothing since 60 is lost"


def test_what_was_lost_in_a_restart_meanwhile_is_said() -> None:
    found = detector()
    found.failed(full(80), None, NONE, 5.0)
    assert "there is no checkpoint yet" in found.standing[0].because
    key = found.standing[0].key
    assert looked(found, WIDE, (2, 20)) == []
    assert found.ended[key] == "saving works again: step 20 is saved; what came after it up to step 80 was lost, and is done again"


def test_a_full_disk_has_no_figures_where_it_is_not_the_cause_and_a_save_that_is_complete_did_not_fail() -> None:
    found = detector()
    found.failed(Failure(generation=1, step=60, said="Read-only file system"), TIGHT, (1, 40), 5.0)
    assert found.standing[0].because.startswith("Read-only file system; step 60 could not be saved in /data")
    again = detector()
    again.failed(full(40), TIGHT, (1, 40), 5.0)
    assert again.standing == []


def test_a_disk_that_was_full_for_hours_is_the_same_story_as_the_save_that_failed_on_it_at_last() -> None:
    failed = Finding(kind="save_failed", node="node-0", of="/data", since=9000.0, because="No space left on device")
    full_for_hours = Finding(kind="disk_running_out", node="node-0", of="/data", since=100.0, because="/data has 0 % of its space left")
    assert belongs(failed, [full_for_hours])
    assert leading([full_for_hours, failed]) is failed
    elsewhere = Finding(kind="disk_running_out", node="node-0", of="/tmp", since=100.0, because="/tmp has 0 % of its space left")
    assert not belongs(failed, [elsewhere])


def test_what_follows_from_saves_that_fail_is_one_story_with_them() -> None:
    failed = Finding(kind="save_failed", node="node-0", of="/data", since=100.0, because="No space left on device")
    for kind, node in (("saves_skipped", "node-1"), ("save_will_fail", "node-0"), ("checkpoint_stale", ""), ("disk_running_out", "node-0")):
        follows = Finding(kind=kind, node=node, since=130.0, because="it follows")
        assert belongs(follows, [failed])
        assert leading([follows, failed]) is failed
