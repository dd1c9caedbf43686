"""Jobs with a remote store: checkpoints arrive there, a machine that has nothing goes on from them, and a store in trouble costs training nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint.stores import BUCKET, KEY, SECRET, Proxy, Seaweed, running_seaweed
from end_to_end.jobs import SCRIPTS, Job, command, eventually, lose_node

from holdfast.checkpoint.found import list_complete
from holdfast.checkpoint.remote import Remote
from holdfast.checkpoint.remote_address import open_remote
from holdfast.checkpoint.remote_files import RemoteRefused

CHAINED = SCRIPTS / "chained.py"


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with running_seaweed(tmp_path_factory.mktemp("seaweed")) as store:
        yield store


@dataclasses.dataclass(frozen=True)
class Place:
    """A store, and the environment in which its credentials are found."""

    url: str
    env: dict[str, str] = dataclasses.field(default_factory=dict)

    def of(self, job: str) -> Remote:
        return open_remote(f"{self.url}/{job}")

    def steps(self, job: str) -> list[int]:
        with contextlib.suppress(RemoteRefused):  # As long as the job has not made its directory.
            return [one.step for one in self.of(job).list()]
        return []


@pytest.fixture
def mounted(tmp_path: Path) -> Place:
    (tmp_path / "mounted").mkdir()
    return Place(str(tmp_path / "mounted"))


def s3_at(endpoint: str, path: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true"}
    env |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return Place(f"s3://{BUCKET}/{path}", env)


@pytest.fixture(scope="module", params=["mounted", "s3"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        request.getfixturevalue("seaweed")  # Before the test begins, which would else have to end it.
    return str(request.param)


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str) -> Place:
    if kind == "mounted":
        found: Place = request.getfixturevalue("mounted")
        return found
    return s3_at(request.getfixturevalue("seaweed").endpoint, request.node.name.partition("[")[0], monkeypatch)


def chained(state: Path, place: Place, *, steps: int, step_s: float = 0.01, options: tuple[object, ...] = (), verb: str = "run", name: str = "job") -> Job:
    given = [*options, "--remote", place.url] if verb == "run" else options
    return Job(state, name, script=CHAINED, arguments=[state / f"kept-{name}", steps, step_s], options=given, env=place.env, verb=verb)


def starts(job: Job) -> list[tuple[int, int]]:
    """Generation, and the step it began with."""
    return [(int(line.split()[0]), int(line.split()[1])) for line in (job.kept / "starts").read_text().splitlines()]


def expected(steps: int) -> str:
    state = b""
    for step in range(steps):
        state = hashlib.sha256(state + str(step).encode()).digest()
    return state.hex()


def test_checkpoints_arrive_and_a_machine_that_has_nothing_goes_on_from_them(state: Path, place: Place, tmp_path: Path) -> None:
    with chained(state, place, steps=45) as job:
        job.finished()
    assert place.steps("job")[0] == 45, job.said()
    assert "step 45 is in the remote store" in job.stderr.read_text()
    place.of("job").verify("step-00000045.g1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with chained(elsewhere, place, steps=95) as fresh:
        fresh.finished()
    assert starts(fresh) == [(2, 45)], "of a generation that the store has not seen yet, from where the store was"
    assert fresh.result() == expected(95)
    assert "step 45 came from the remote store" in fresh.stderr.read_text()
    assert place.steps("job")[0] == 95


def test_a_job_whose_checkpoints_are_lost_goes_on_from_the_store(state: Path, mounted: Place) -> None:
    with chained(state, mounted, steps=45) as job:
        job.finished()
    shutil.rmtree(job.directory.checkpoints)
    with chained(state, mounted, steps=45, verb="resume") as again:
        again.finished()
    assert starts(again) == [(1, 0), (2, 45)], again.said()


def test_a_job_is_not_resumed_without_a_mount_that_is_missing_unless_that_is_asked_for(state: Path, mounted: Place) -> None:
    with chained(state, mounted, steps=15) as job:
        job.finished()
    shutil.rmtree(mounted.url)
    done = command("resume", "job")
    assert done.returncode == 81
    assert "there is no such directory" in done.stderr
    assert "`holdfast resume job --remote ''`" in done.stderr
    with chained(state, mounted, steps=15, verb="resume", options=("--remote", "")) as again:
        again.finished()
    assert starts(again) == [(1, 0), (2, 15)]


@pytest.mark.slow
def test_what_another_machine_saved_since_is_newer_than_what_is_here(state: Path, mounted: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for where, steps in ((state, 45), (elsewhere, 95), (state, 95)):
        with chained(where, mounted, steps=steps) as job:
            job.finished()
    assert starts(job) == [(1, 0), (3, 95)]


@pytest.mark.slow
def test_another_job_at_the_same_address_begins_at_the_beginning(state: Path, mounted: Place) -> None:
    for name in ("one", "other"):
        with chained(state, mounted, steps=15, name=name) as job:
            job.finished()
        assert starts(job) == [(1, 0)]
        assert mounted.steps(name) == [15]


def test_when_rank_0_moves_to_another_node_its_agent_there_goes_on_uploading(state: Path, mounted: Place) -> None:
    with chained(state, mounted, steps=100_000, options=("--spares", 1)) as job:
        eventually(lambda: mounted.steps("job"), what="a first checkpoint in the store")
        gang = job.state().gang
        assert gang is not None
        lose_node(job, gang.nodes[0])
        moved = eventually(lambda: [begin for generation, begin in starts(job) if generation == 2], what="rank 0 on the spare")
        eventually(lambda: (there := mounted.steps("job")) and there[0] > moved[0], what="what it saves there, in the store")
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
    assert mounted.steps("job")[0] == list_complete(job.directory.checkpoints)[0].step, "what it saved on being stopped, too"


def test_a_store_that_dies_in_the_middle_costs_no_steps_and_is_told_of_once(state: Path, mounted: Place) -> None:
    root = Path(mounted.url)
    with chained(state, mounted, steps=300, step_s=0.02) as job:
        eventually(lambda: mounted.steps("job"), what="a first checkpoint in the store")
        began, before = time.monotonic(), job.step()
        root.rename(root.with_name("gone"))
        job.finished()
        took, steps = time.monotonic() - began, 300 - before
    assert job.result() == expected(300)
    assert starts(job) == [(1, 0)]
    assert took < steps * 0.02 * 2 + 8.0, f"{steps} steps and the end took {took:.1f} s"
    said = job.stderr.read_text()
    assert said.count("checkpoints do not reach the remote store") == 1, said
    assert "step 300 is not in the remote store yet; `holdfast checkpoint upload job`" in said
    root.with_name("gone").rename(root)


@pytest.mark.slow
def test_a_store_that_stops_answering_costs_no_steps_and_ten_seconds_at_the_end(state: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy(seaweed.port).running() as road:
        place = s3_at(road.endpoint, "silent", monkeypatch)
        with chained(state, place, steps=400, step_s=0.02) as job:
            eventually(lambda: place.steps("job"), what="a first checkpoint in the store")
            began, before, road.stall_after = time.monotonic(), job.step(), 0
            eventually(lambda: (job.kept / "result").exists(), what="all steps")
            trained_s, steps = time.monotonic() - began, 400 - before
            job.finished()
            ended_s = time.monotonic() - began - trained_s
    assert (job.result(), starts(job)) == (expected(400), [(1, 0)])
    assert trained_s < steps * 0.02 * 2 + 3.0, f"{steps} steps took {trained_s:.1f} s"
    assert ended_s < 20.0
    assert "step 400 is not in the remote store yet" in job.stderr.read_text()


def test_credentials_are_in_no_file_and_on_no_command_line(state: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    place = s3_at(seaweed.endpoint, "secret", monkeypatch)
    with chained(state, place, steps=100_000) as job:
        eventually(lambda: place.steps("job"), what="a first checkpoint in the store")
        worker = int((job.kept / "starts").read_text().split()[2])
        ours = {job.process.pid, worker, *job.processes()}
        assert len(ours) >= 5, "run, control, the agent, its warm parent, the worker"
        assert not [pid for pid in ours if names_a_secret(Path(f"/proc/{pid}/cmdline"))]
        assert not [path for path in state.rglob("*") if names_a_secret(path)]
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
    assert not [path for path in state.rglob("*") if names_a_secret(path)]


def names_a_secret(path: Path) -> bool:
    with contextlib.suppress(OSError):  # A directory, a socket, or gone meanwhile.
        return any(word.encode() in path.read_bytes() for word in (KEY, SECRET))
    return False


@pytest.mark.slow
def test_with_nothing_here_and_nothing_whole_in_the_store_nothing_is_started_from_scratch(state: Path, mounted: Place) -> None:
    with chained(state, mounted, steps=15) as job:
        job.finished()
    damage_all(Path(mounted.url))
    shutil.rmtree(job.directory.checkpoints)
    with chained(state, mounted, steps=15, verb="resume") as again:
        assert again.wait() == 81, again.said()
    assert starts(again) == [(1, 0)]
    assert "Nothing is started from scratch" in again.stderr.read_text()


def damage_all(store: Path) -> None:
    for chunk in store.rglob("chunks/*"):
        chunk.write_bytes(b"damaged")


@pytest.mark.slow
def test_a_damaged_checkpoint_in_the_store_is_passed_over_with_the_reason(state: Path, mounted: Place) -> None:
    with chained(state, mounted, steps=15) as job:
        job.finished()
    with chained(state, mounted, steps=30, verb="run") as job:
        job.finished()
    newest = Path(mounted.url) / "job" / "step-00000030.g2"
    shutil.rmtree(newest / "chunks")
    shutil.rmtree(job.directory.checkpoints)
    with chained(state, mounted, steps=30) as again:
        again.finished()
    assert starts(again)[-1] == (3, 15)
    assert "step-00000030.g2 in the remote store is passed over" in again.stderr.read_text()


@pytest.mark.slow
def test_a_model_goes_on_from_the_store_with_the_same_weights_bit_for_bit(state: Path, place: Place, tmp_path: Path) -> None:
    """A real training, with torch and through memory: once in peace, once on two machines of which the second has nothing but the store."""

    def saver(where: Path, name: str, steps: int) -> Job:
        options = ["--remote", place.url]
        return Job(where, name, script=SCRIPTS / "saver.py", arguments=[where / f"kept-{name}", steps, -1, 0.0], options=options, torch=True, env=place.env)

    def weights(job: Job) -> bytes:
        return (job.kept / "weights.pt").read_bytes()

    with saver(state, "peace", 60) as peace:
        peace.finished(120.0)
    with saver(state, "job", 35) as job:
        job.finished(120.0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with saver(elsewhere, "job", 60) as fresh:
        fresh.finished(120.0)
    assert starts(fresh) == [(2, 35)]
    assert weights(fresh) == weights(peace)


# What is refused before anything is started.


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://key:secret-word@bucket/path", "has credentials or parameters in its address"),
        ("s3://bucket/path?token=secret-word", "has credentials or parameters in its address"),
        ("relative/path", "is no address and no absolute path"),
        ("/nowhere/at/all", "there is no such directory"),
        ("gopher://host/path", "is of a kind that fsspec does not know"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_in_a_sentence(state: Path, url: str, said: str) -> None:
    done = command("run", "--remote", url, "--name", "job", CHAINED)
    assert done.returncode in (2, 81)
    assert said in done.stderr
    assert "secret-word" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (state / "jobs" / "job" / "journal.db").exists()


@pytest.mark.parametrize(
    ("bucket", "env", "said"),
    [
        (BUCKET, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "the credentials are not valid there"),
        ("no-such-bucket", {}, "there is no such bucket"),
        (BUCKET, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "Nothing was started"),
    ],
)
def test_a_store_that_refuses_or_is_not_there_is_told_of_before_anything_is_started(
    state: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch, bucket: str, env: dict[str, str], said: str
) -> None:
    place = s3_at(seaweed.endpoint, "", monkeypatch)
    done = command("run", "--name", "job", CHAINED, **{**place.env, "HOLDFAST_REMOTE": f"s3://{bucket}/x", **env})
    assert done.returncode == 81
    assert said in done.stderr
    assert not (state / "jobs" / "job" / "journal.db").exists()


@pytest.mark.slow
def test_a_store_that_hangs_is_waited_for_ten_seconds(state: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy(seaweed.port).running() as road:
        road.stall_after = 0
        place = s3_at(road.endpoint, "x", monkeypatch)
        began = time.monotonic()
        done = command("run", "--remote", place.url, "--name", "job", CHAINED, **place.env)
    assert done.returncode == 81
    assert "did not answer within 10 s" in done.stderr
    assert time.monotonic() - began < 25.0
