"""A crash at any moment leaves every checkpoint that was complete, whole, and nothing that cannot be cleared away; and so does a power cut."""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from checkpoint.disks import (
    EXCHANGE,
    PROTOCOL,
    RANKS,
    FileLayer,
    Operation,
    QuickDisk,
    Recorder,
    Tree,
    counting_disk,
    dying_disk,
    garbage,
    key_of,
    put_on_disk,
    save_step,
    sync_sites,
)

from holdfast.checkpoint import chunks, found
from holdfast.checkpoint.commit import Shard, mark_failed
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.exchange import Format, export_checkpoint, import_checkpoint
from holdfast.checkpoint.found import CheckpointFound, list_complete, list_directories, newest_complete, verify
from holdfast.checkpoint.layout import CHUNKS, RETIRED, decode_manifest, directory_name, parse_directory_name, receipt_file
from holdfast.checkpoint.remove import Retention, prune, remove_checkpoint, sweep_failed, sweep_torn


@pytest.fixture(autouse=True, scope="module")
def read_quickly() -> Iterator[None]:
    """Thousands of tiny checkpoints are looked at here; starting threads and reading the same manifests again would be most of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "_READERS", 1)
        patch.setattr(found, "decode_manifest", cache(decode_manifest))
        yield


def save_all(disk: Disk, checkpoints: Path, step: int, **how: Any) -> None:
    for rank in range(RANKS):
        save_step(disk, checkpoints, step, rank, **how)


def verify_all(checkpoints: Path) -> list[str]:
    """The names of all complete checkpoints, newest first, every byte of which was read."""
    complete = list_complete(checkpoints)
    for one in complete:
        verify(one.path)
    return [one.name for one in complete]


def start_again(checkpoints: Path) -> None:
    """What happens next, and what must come of it: restore, sweep, save, prune; and at the start after that everything left over is gone."""
    names = [parse_directory_name(path.name) or (0, 0) for path in list_directories(checkpoints)]
    generation, step = 1 + max((one for _, one in names), default=0), 10 + max((one for one, _ in names), default=0)
    newest = newest_complete(checkpoints)
    if newest is not None:
        sweep_torn(QuickDisk(), checkpoints, generation=generation, restored_step=newest.step)
        assert newest.name in verify_all(checkpoints)
    save_all(QuickDisk(), checkpoints, step, generation=generation, retention=Retention(last=2, restored=newest.age_key if newest else None))
    sweep_torn(QuickDisk(), checkpoints, generation=generation + 1, restored_step=step)
    assert verify_all(checkpoints)[:2] == [directory_name(step, generation), *([newest.name] if newest else [])]
    assert garbage(checkpoints) == []


# A process that dies.


def start_child(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)  # Not back into the tests.
    return child


def wait_for(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at_each_operation(before: Path, work: Callable[[Disk, Path], object]) -> Iterator[Path]:
    """What `work` makes of the directory `before` when it is killed ahead of its first operation, its second, and so on to the end."""
    for operations in count():
        checkpoints = before.parent / f"killed-{operations}"
        shutil.copytree(before, checkpoints)
        code = wait_for(start_child(partial(work, dying_disk(operations), checkpoints)))
        assert code in (0, 137)
        yield checkpoints
        shutil.rmtree(checkpoints)
        if code == 0:
            return


def test_a_process_that_dies_at_any_file_operation_leaves_the_old_or_the_new_checkpoint_whole(tmp_path: Path) -> None:
    before = tmp_path / "before"
    save_all(Disk(), before, 10)
    seen = []
    for checkpoints in killed_at_each_operation(before, lambda disk, checkpoints: save_all(disk, checkpoints, 20)):
        seen.append(verify_all(checkpoints)[0])
        assert "step-00000010.g1" in verify_all(checkpoints)
        start_again(checkpoints)
    assert set(seen) == {"step-00000010.g1", "step-00000020.g1"}
    assert len(seen) > 40


def test_a_process_that_dies_while_it_removes_checkpoints_takes_nothing_away_that_others_need(tmp_path: Path) -> None:
    before, wanted = tmp_path / "before", Retention(last=2, every=50, restored=(1, 0))
    for step in range(10, 90, 10):
        save_all(QuickDisk(), before, step, retention=Retention(last=100, restored=(1, 0)))
    seen = []
    for checkpoints in killed_at_each_operation(before, lambda disk, checkpoints: prune(disk, checkpoints, wanted, generation=1, now=0.0)):
        left = verify_all(checkpoints)
        assert {"step-00000080.g1", "step-00000070.g1", "step-00000050.g1"} <= set(left)
        seen.append(len(left))
        prune(QuickDisk(), checkpoints, wanted, generation=1, now=0.0)
        assert verify_all(checkpoints) == ["step-00000080.g1", "step-00000070.g1", "step-00000050.g1"]
        start_again(checkpoints)
    assert {8, 7, 6, 5, 4, 3} == set(seen)
    assert seen.count(3) > 20, "nobody was killed while chunks were removed"


def test_a_process_that_dies_while_it_sweeps_takes_nothing_away_that_others_need(tmp_path: Path) -> None:
    before = tmp_path / "before"
    for step in (10, 20, 30):
        save_all(QuickDisk(), before, step, retention=Retention(last=2, restored=(1, 0)))
    for step in (5, 15, 25):
        save_step(QuickDisk(), before, step, 0)
    assert (before / "step-00000010.g1" / RETIRED).exists()
    kills = 0
    for checkpoints in killed_at_each_operation(before, lambda disk, checkpoints: sweep_torn(disk, checkpoints, generation=2, restored_step=30)):
        kills += 1
        assert verify_all(checkpoints) == ["step-00000030.g1", "step-00000020.g1"]
        sweep_torn(QuickDisk(), checkpoints, generation=2, restored_step=30)
        assert verify_all(checkpoints) == ["step-00000030.g1", "step-00000020.g1"]
        assert garbage(checkpoints) == []
        assert (checkpoints / "step-00000010.g1" / CHUNKS).is_dir()
    assert kills > 20


def test_a_save_that_fails_at_any_operation_costs_no_other_checkpoint_and_is_swept(tmp_path: Path) -> None:
    def fail() -> NoReturn:
        raise OSError(28, "No space left on device")

    lasting = []
    for operations in count():
        checkpoints = tmp_path / f"{operations}"
        save_all(QuickDisk(), checkpoints, 10)
        save_step(QuickDisk(), checkpoints, 20, 0)
        try:
            save_step(counting_disk(operations, fail), checkpoints, 20, 1)
            break
        except OSError:
            receipt_is_out = (checkpoints / "step-00000020.g1" / receipt_file(1)).exists()
        assert verify_all(checkpoints)[-1] == "step-00000010.g1"
        save_all(QuickDisk(), checkpoints, 30, retention=Retention(last=3, restored=(1, 0)))
        assert "step-00000030.g1" in verify_all(checkpoints)
        if garbage(checkpoints):
            assert receipt_is_out, f"operation {operations} failed, and this is left: {garbage(checkpoints)}"
            lasting.append(operations)
        start_again(checkpoints)
    assert operations > 15
    assert len(lasting) <= 6, "what is not swept until the next start is a directory in which every rank has its receipt"


def test_a_save_that_failed_and_was_made_good_keeps_what_others_need_when_it_is_retired(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        if step == 10:
            mark_failed(QuickDisk(), tmp_path, Shard(step=10, generation=1, world_size=RANKS, rank=1))
        save_all(QuickDisk(), tmp_path, step, retention=Retention(last=100, restored=(1, 0)))
    remove_checkpoint(QuickDisk(), list_complete(tmp_path)[-1])  # One rank, after step 30; and another, ahead of step 40:
    sweep_failed(QuickDisk(), tmp_path, generation=1, before_step=40, world_size=RANKS)
    assert verify_all(tmp_path) == ["step-00000030.g1", "step-00000020.g1"]


def test_all_ranks_at_once_make_one_checkpoint_that_verifies(tmp_path: Path) -> None:
    for step in range(10, 60, 10):
        children = [start_child(partial(save_step, Disk(), tmp_path, step, rank)) for rank in range(RANKS)]
        assert [wait_for(child) for child in children] == [0, 0]
        newest = newest_complete(tmp_path)
        assert newest is not None
        assert newest.step == step
    assert verify_all(tmp_path) == ["step-00000050.g1", "step-00000040.g1"]
    assert garbage(tmp_path) == []


def run_apart(root: Path, seed: int, *, saves: int) -> Recorder:
    """Two ranks, neither of which waits for the other, but that they are never more than so many saves apart."""
    recorder, began, checkpoints = Recorder(root, seed), [0] * RANKS, root / "checkpoints"

    def work(rank: int, disk: Disk) -> None:
        try:
            for number, step in enumerate(range(10, 100, 10)):
                while min(began) <= number - saves:
                    recorder.hand_over()
                began[rank] += 1
                save_step(disk, checkpoints, step, rank)
        finally:
            began[rank] = 1000  # Nobody waits for one that has failed.

    recorder.run(*(partial(work, rank) for rank in range(RANKS)))
    return recorder


@pytest.mark.parametrize("seed", range(10))
def test_ranks_that_are_one_save_apart_complete_every_checkpoint(tmp_path: Path, seed: int) -> None:
    recorder, checkpoints = run_apart(tmp_path, seed, saves=1), tmp_path / "checkpoints"
    assert verify_all(checkpoints) == ["step-00000090.g1", "step-00000080.g1"]
    assert recorder.manifests.keys() == {directory_name(step, 1) for step in range(10, 100, 10)}
    assert garbage(checkpoints) == []


def test_ranks_that_are_two_saves_apart_complete_every_checkpoint(tmp_path: Path) -> None:
    for seed in range(12):
        (root := tmp_path / f"{seed}").mkdir()
        run_apart(root, seed, saves=2)
        assert verify_all(root / "checkpoints") == ["step-00000090.g1", "step-00000080.g1"]


def test_ranks_that_remove_the_same_checkpoints_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    before, wanted = tmp_path / "before", Retention(last=2, every=50, restored=(1, 0))
    for step in range(10, 90, 10):
        save_all(QuickDisk(), before, step, retention=Retention(last=100, restored=(1, 0)))
    for operations in count():
        checkpoints = tmp_path / f"{operations}"
        shutil.copytree(before, checkpoints)
        others: list[tuple[str, ...]] = []
        disk = counting_disk(operations, partial(_prune_too, checkpoints, wanted, others))
        prune(disk, checkpoints, wanted, generation=1, now=0.0)
        assert verify_all(checkpoints) == ["step-00000080.g1", "step-00000070.g1", "step-00000050.g1"]
        assert garbage(checkpoints) == []
        if not others:
            break
    assert operations > 20


def _prune_too(checkpoints: Path, wanted: Retention, others: list[tuple[str, ...]]) -> None:
    others.append(prune(QuickDisk(), checkpoints, wanted, generation=1, now=0.0))


# Power cuts: a run is recorded once, and the power goes after each of its operations, in many ways.


CHECKPOINTS = "runs/mine/checkpoints"  # None of these is there at first.


class Story:
    """A run of two ranks, recorded from the first save on."""

    def __init__(self, root: Path, seed: int) -> None:
        root.mkdir(exist_ok=True)
        self.recorder = Recorder(root, seed)
        self.seed, self.checkpoints = seed, root / CHECKPOINTS
        self.dull = 0  # So many operations are told elsewhere.

    def save(self, step: int, generation: int, retention: Retention, *, loss: float = 1.0, fails: int = 0, dies: int = 0) -> None:
        def work(rank: int, disk: Disk) -> None:
            try:
                save_step(
                    disk, self.checkpoints, step, rank, generation=generation, retention=retention, numbers={"loss": loss}, completed=self.recorder.completed
                )  # fmt: skip
            except OSError:
                assert fails

        self.recorder.run(*(partial(work, rank) for rank in range(RANKS)), fails=fails, dies=dies)

    def bring_in(self, source: Path, *, breaks: int = 0) -> bool:
        """Import a checkpoint; whether that came true, with its operation number `breaks` not done."""
        failed: list[OSError] = []

        def work(disk: Disk) -> None:
            try:
                self.recorder.completed(import_checkpoint(source, self.checkpoints, disk=disk))
            except OSError as error:
                failed.append(error)

        self.recorder.run(work, breaks=breaks)
        assert breaks or not failed
        return not failed

    def prune(self, last: int, disk: Disk) -> None:
        prune(disk, self.checkpoints, Retention(last=last), generation=1, now=0.0)

    def restore(self, generation: int, name: str | None = None) -> tuple[int, int]:
        """Begin a generation from this checkpoint or the newest; what its line begins with."""
        one = next(one for one in list_complete(self.checkpoints) if name in (one.name, None))
        sweep_torn(self.recorder.disk(), self.checkpoints, generation=generation, restored_step=one.step)
        return one.age_key

    @property
    def operations(self) -> list[Operation]:
        return self.recorder.operations


def everything(root: Path, seed: int) -> Story:
    """A story in which all happens that may happen to checkpoints."""
    story = Story(root, seed)
    rules = Retention(last=2, every=30, best=1)
    for step, loss in ((10, 5.0), (20, 3.0), (30, 4.0), (40, 3.5)):
        story.save(step, 1, rules, loss=loss)
    story.save(50, 1, rules, fails=4)  # A full disk: the directory is swept at the next save.
    story.save(60, 1, rules, loss=2.0)
    story.save(70, 1, rules, dies=20)
    rules = Retention(last=3, best=1, restored=story.restore(2))
    for step, loss in ((70, 4.0), (80, 1.0)):
        story.save(step, 2, rules, loss=loss)
    rules = Retention(last=1, restored=story.restore(3, "step-00000070.g2"))  # A rollback: what lies beyond goes, once there is enough again.
    for step in (80, 90):
        story.save(step, 3, rules)
    return story


@dataclass(frozen=True, slots=True)
class Verdict:
    listed: frozenset[str]
    wrong: str


@dataclass
class Judge:
    """Looks at what a power cut left: once at each state, since many cuts leave the same. From one state of every `sample` the run is also started again."""

    root: Path
    sample: int
    verdicts: dict[bytes, Verdict] = field(default_factory=dict)
    cuts: int = 0
    starts: int = 0
    _there: Tree = field(default_factory=dict)

    def judge(self, story: Story, tree: Tree) -> Verdict:
        self.cuts += 1
        key = key_of(tree)
        if key not in self.verdicts:
            self.verdicts[key] = self._look(story, tree, start=int.from_bytes(key) % self.sample == 0)
        return self.verdicts[key]

    def _look(self, story: Story, tree: Tree, *, start: bool) -> Verdict:
        state = self.root / "state"
        state.mkdir(exist_ok=True)
        put_on_disk(tree, state, there=self._there)
        self._there = tree
        complete = list_complete(state / CHECKPOINTS)
        try:
            for one in complete:
                assert one.manifest == story.recorder.manifests[one.name], f"{one.name} is not what was saved"
                verify(one.path)
            if start:
                self._start_again(tree)
        except (CheckpointCorrupt, OSError, AssertionError) as error:
            return Verdict(frozenset(one.name for one in complete), f"{type(error).__name__}: {error}")
        return Verdict(frozenset(one.name for one in complete), "")

    def _start_again(self, tree: Tree) -> None:
        self.starts += 1
        copy = self.root / "started"
        copy.mkdir()
        try:
            put_on_disk(tree, copy, there={})
            start_again(copy / CHECKPOINTS)
        finally:
            shutil.rmtree(copy)

    def __str__(self) -> str:
        return f"{self.cuts} power cuts left {len(self.verdicts)} different states; from {self.starts} of them the run was started again"


def what_goes_wrong(story: Story, judge: Judge, *, without: Collection[str] = (), thorough: bool = False) -> Iterator[str]:
    """Cut the power after each operation that is not dull, on a disk that does not hear the syncs of the sites named in `without`."""
    layer = FileLayer()
    for done, operation in enumerate(story.operations, start=1):
        if operation.site not in without:
            layer.do(operation)
        if done <= story.dull:
            continue
        required, allowed = story.recorder.required(done), story.recorder.allowed(done)
        for how, tree in layer.cuts(f"{story.seed} {done}", thorough=thorough):
            verdict = judge.judge(story, tree)
            wrong = [f"{name} was complete and is lost" for name in sorted(required - verdict.listed)]
            wrong += [f"{name} is there and was never complete" for name in sorted(verdict.listed - allowed)]
            if wrong or verdict.wrong:
                yield f"after operation {done} ({operation.name} {operation.path}), {how}: {'; '.join((*wrong, verdict.wrong))}"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return everything(tmp_path_factory.mktemp("story"), seed=1)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(tmp_path_factory.mktemp("cut"), sample=20)


def test_the_story_has_everything_in_it(story: Story) -> None:
    recorder, operations = story.recorder, story.operations
    assert {operation.name for operation in operations} == {
        "make_directory", "create", "write", "sync_file", "rename", "sync_directory", "remove", "remove_directory",
    }  # fmt: skip
    assert {operation.site for operation in operations} - {""} == set(sync_sites(*PROTOCOL).values()), "a sync of the source is not in the story"
    retired = {operation.path.split("/")[3]: at for at, operation in enumerate(operations) if operation.new.endswith(f"/{RETIRED}")}
    last_removal = {operation.path.split("/")[3]: at for at, operation in enumerate(operations) if operation.name == "remove_directory"}
    gone = {name for name in last_removal if not (story.checkpoints / name).exists()}
    assert {"step-00000050.g1", "step-00000070.g1"} <= gone, "what failed and what was torn is swept"
    assert "step-00000080.g2" in retired, "what lies beyond the line is removed"
    assert any(retired[name] < at < last_removal[name] for name in retired.keys() & gone for at in recorder.returned.values()), (
        "a home is left for its chunks when its checkpoint goes, and is released later"
    )
    assert "step-00000010.g1" in retired.keys() - gone, "what was frozen at the beginning is needed to the end"
    assert verify_all(story.checkpoints) == ["step-00000090.g3", "step-00000080.g3"]
    assert garbage(story.checkpoints) == []


def test_a_power_cut_at_any_moment_loses_no_checkpoint_that_was_complete(story: Story, judge: Judge) -> None:
    assert list(islice(what_goes_wrong(story, judge), 5)) == []
    print(judge)
    assert len(judge.verdicts) >= 2000


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [2, 3])
def test_a_power_cut_at_any_moment_in_every_way_loses_no_checkpoint_that_was_complete(tmp_path: Path, seed: int) -> None:
    judge = Judge(tmp_path, sample=1)
    assert list(islice(what_goes_wrong(everything(tmp_path / "story", seed), judge, thorough=True), 5)) == []
    print(judge)
    assert len(judge.verdicts) >= 10_000


# What somebody has done and not synced yet is seen by the others, and by those who go on after him; and a power cut may still take it from them.


def removal(root: Path, seed: int, *, dies: int = 0) -> Story:
    """Checkpoints are removed by two ranks at once, or by one that is killed at it; what they are made of lies in each other's homes."""
    story = Story(root, seed)
    for step in (10, 20, 30, 40):
        story.save(step, 1, Retention(last=4))
    story.recorder.run(partial(story.prune, 3))
    story.dull = len(story.operations)
    story.recorder.run(*[partial(story.prune, 2)] * (1 if dies else RANKS), dies=dies)
    story.restore(2)
    return story


@pytest.fixture(scope="module")
def removals(tmp_path_factory: pytest.TempPathFactory) -> list[Story]:
    root = tmp_path_factory.mktemp("removals")
    killed = [removal(root / f"killed-{dies}", 1, dies=dies) for dies in range(1, 8)]
    return [*killed, *(removal(root / f"together-{seed}", seed) for seed in range(12))]


def test_a_power_cut_after_a_removal_that_others_saw_before_it_was_durable_loses_nothing_either(removals: list[Story], judge: Judge) -> None:
    assert [wrong for story in removals for wrong in islice(what_goes_wrong(story, judge), 1)] == []


def test_a_power_cut_after_a_rank_was_killed_at_its_very_first_operations_loses_nothing_either(tmp_path: Path, judge: Judge) -> None:
    for dies in range(1, 10):
        story = Story(tmp_path / f"{dies}", seed=1)
        story.recorder.run(partial(save_step, checkpoints=story.checkpoints, step=10, rank=0), dies=dies)
        story.save(20, 2, Retention())
        assert list(islice(what_goes_wrong(story, judge), 1)) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_power_cut_after_a_rank_was_killed_at_any_operation_and_the_run_went_on_loses_nothing_either(tmp_path: Path) -> None:
    judge = Judge(tmp_path, sample=20)
    for dies in range(1, 45):
        story = Story(tmp_path / f"{dies}", seed=dies)
        for step in (10, 20):
            story.save(step, 1, Retention(last=1))
        story.dull = len(story.operations)
        story.save(30, 1, Retention(last=1), dies=dies)
        rules = Retention(last=1, restored=story.restore(2))
        for step in (40, 50):
            story.save(step, 2, rules)
        assert list(islice(what_goes_wrong(story, judge), 5)) == []
    print(judge)


# Import: by the same protocol, and with nothing left of it when it fails. Export: the file is the one before or the new one.


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files of torch.save, to import."""
    paths = [tmp_path_factory.mktemp("sources") / f"{name}.pt" for name in ("one", "other")]
    for seed, path in enumerate(paths):
        torch.save({"weight": torch.arange(20.0) + seed, "bias": torch.full((3,), seed)}, path)
    return paths


def importing(root: Path, source: Path, *, after_saves: bool, breaks: int = 0) -> Story:
    """A checkpoint is imported into a place that is not there, or beside those of a run; whatever fails, it is the state before or the new one."""
    story = Story(root, seed=1)
    if after_saves:
        for step in (10, 20):
            story.save(step, 1, Retention())
        story.dull = len(story.operations)
    before = verify_all(story.checkpoints)
    if story.bring_in(source, breaks=breaks):
        assert verify_all(story.checkpoints) == [directory_name(0, 2 if after_saves else 0), *before]
    else:
        assert verify_all(story.checkpoints) == before
        assert after_saves or not any(root.iterdir()), "what was made for it is gone too"
    assert garbage(story.checkpoints) == []
    return story


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory, sources: list[Path]) -> list[Story]:
    """One in which nothing fails, and for each operation one in which this one does; each into a place that is not there, and beside other checkpoints."""
    stories = []
    for after_saves in (False, True):
        root = tmp_path_factory.mktemp("imports")
        whole = importing(root / "whole", sources[0], after_saves=after_saves)
        operations = range(1, len(whole.operations) - whole.dull + 1)
        stories += [whole, *(importing(root / f"{breaks}", sources[0], after_saves=after_saves, breaks=breaks) for breaks in operations)]
    return stories


def test_a_power_cut_during_an_import_leaves_the_state_before_it_or_the_new_one(imports: list[Story], judge: Judge) -> None:
    known = len(judge.verdicts)
    assert len(imports) >= 40
    assert [wrong for story in imports for wrong in islice(what_goes_wrong(story, judge, thorough=True), 1)] == []
    print(f"imports: {len(judge.verdicts) - known} different states")
    assert len(judge.verdicts) - known >= 2000


@dataclass
class Exports:
    """Exports to one name, each in place of the one before."""

    to: str
    recorder: Recorder
    versions: list[Tree]  # What was there before the first, after it, and so on.
    returned: list[int] = field(default_factory=list)  # How many operations were done when each was.

    def of(self, tree: Tree) -> Tree:
        return {name: content for name, content in tree.items() if name.split("/")[0] == self.to}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory, sources: list[Path]) -> list[Exports]:
    checkpoints = tmp_path_factory.mktemp("exported")
    for source in sources:
        import_checkpoint(source, checkpoints)
    return [exporting(tmp_path_factory.mktemp("exports"), list_complete(checkpoints), format) for format in Format]


def exporting(root: Path, checkpoints: Collection[CheckpointFound], format: Format) -> Exports:
    story = Exports(to="it", recorder=Recorder(root, seed=1), versions=[{}])
    for one in checkpoints:
        story.recorder.run(lambda disk, one=one: export_checkpoint(one, root / story.to, format, force=True, disk=disk))
        story.returned.append(len(story.recorder.operations))
        story.versions.append(story.of({str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}))
        assert [path.name for path in root.iterdir()] == [story.to], "nothing is left beside it"
    return story


def what_goes_wrong_with(story: Exports, *, without: Collection[str] = ()) -> Iterator[str]:
    layer = FileLayer()
    is_directory = None in story.versions[1].values()
    for done, operation in enumerate(story.recorder.operations, start=1):
        if operation.site not in without:
            layer.do(operation)
        finished = sum(at <= done for at in story.returned)
        allowed = story.versions[finished : finished + 2]
        if is_directory and len(allowed) == 2:
            allowed.append({})  # One cannot be renamed over another, so there is a moment in which neither has the name.
        for how, tree in layer.cuts(f"{done}", thorough=True):
            if story.of(tree) not in allowed:
                yield f"after operation {done} ({operation.name} {operation.path}), {how}: neither the export before nor the new one is there"


def test_a_power_cut_during_an_export_leaves_the_one_before_it_or_the_new_one(exports: list[Exports]) -> None:
    assert [wrong for story in exports for wrong in islice(what_goes_wrong_with(story), 1)] == []


# Every sync is there because without it a power cut does harm.


@pytest.fixture(scope="module")
def sound(story: Story, removals: list[Story], judge: Judge) -> list[Story]:
    """The stories in which nothing goes wrong as long as every sync is heard."""
    return [one for one in (story, *removals) if next(what_goes_wrong(one, judge), None) is None]


@pytest.mark.parametrize("site", [*sync_sites(*PROTOCOL).values()])
def test_without_any_one_sync_a_power_cut_does_harm(sound: list[Story], judge: Judge, site: str) -> None:
    harm = next((harm for story in sound for harm in what_goes_wrong(story, judge, without={site})), None)
    print(harm)
    assert harm is not None, f"no power cut does harm without {site}"


@pytest.mark.parametrize("site", [*sync_sites(*EXCHANGE).values()])
def test_without_any_one_sync_of_an_import_or_export_a_power_cut_does_harm(imports: list[Story], exports: list[Exports], judge: Judge, site: str) -> None:
    imported = (harm for story in imports for harm in what_goes_wrong(story, judge, without={site}))
    exported = (harm for story in exports for harm in what_goes_wrong_with(story, without={site}))
    harm = next(imported, None) or next(exported, None)
    print(harm)
    assert harm is not None, f"no power cut does harm without {site}"
