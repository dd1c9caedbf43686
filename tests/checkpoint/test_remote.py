"""Checkpoints in remote stores: they come back as they were, whoever dies when and however bad the road; damage is refused; no secret is told.

The stores are real: SeaweedFS's S3, a directory, and for WebHDFS a server of our own of the protocol, which is not Hadoop (see stores.py).
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint.disks import QuickDisk, counting_disk, garbage
from checkpoint.stores import BUCKET, KEY, READER_KEY, READER_SECRET, SECRET, Hdfs, Proxy, Seaweed, raw_s3, running_seaweed, wait_for

from holdfast.agent.uploads import Uploads
from holdfast.checkpoint.chunks import Store
from holdfast.checkpoint.commit import Shard, commit
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.found import list_complete, verify
from holdfast.checkpoint.layout import MANIFEST, RETIRED, Manifest, encode
from holdfast.checkpoint.remote import Remote
from holdfast.checkpoint.remote_address import open_remote, redacted
from holdfast.checkpoint.remote_files import PART_BYTES, Limits, RemoteRefused, RemoteUnavailable, Stopped
from holdfast.checkpoint.remove import Retention, prune, sweep_torn
from holdfast.errors import UserError

KiB, MiB = 1 << 10, 1 << 20
PATIENT = Limits(deadline_s=20.0, pause_s=0.02, pause_s_max=0.1)
HASTY = Limits(deadline_s=10.0, tries=2, pause_s=0.01)
SILENT = replace(HASTY, deadline_s=0.25)  # Where nothing will ever be answered.
EVER = Retention(last=100, restored=(1, 0))
TOKEN = "FwoGZXIvYXdzEXAMPLE+session/token=="
Stops = Callable[[], bool]


def save(checkpoints: Path, step: int, *contents: bytes, generation: int = 1, at: float = 0.0) -> Manifest:
    """A complete checkpoint of one rank with these chunks, on top of the newest."""
    found = list_complete(checkpoints)

    def fill(store: Store) -> str:
        store.put_all(contents)
        return store.put(f"the state at step {step}".encode()).digest

    shard = Shard(step=step, generation=generation, world_size=1, rank=0, at=at)
    manifest = commit(QuickDisk(), checkpoints, shard, fill, base=found[0].manifest if found else None)
    assert manifest is not None
    return manifest


def some_bytes(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


FROZEN = some_bytes(40 * KiB, 0)


def save_few(checkpoints: Path, *steps: int) -> list[Manifest]:
    """One for each step: some of it new, some as it was in the step before, some that never changes."""
    return [save(checkpoints, step, FROZEN, some_bytes(10 * KiB, step), some_bytes(5 * KiB, step // 20)) for step in steps]


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with running_seaweed(tmp_path_factory.mktemp("seaweed")) as store:
        yield store


@pytest.fixture
def s3(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An empty address, with credentials where they are usually found."""
    give_credentials(monkeypatch, endpoint=seaweed.endpoint)
    return f"s3://{BUCKET}/{request.node.name.replace('[', '/').replace(']', '')}"


def give_credentials(monkeypatch: pytest.MonkeyPatch, *, endpoint: str, key: str = KEY, secret: str = SECRET, token: str = "") -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    given = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": token, "AWS_ENDPOINT_URL": endpoint}
    given |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_EC2_METADATA_DISABLED": "true"}
    for name, value in given.items():
        if value:
            monkeypatch.setenv(name, value)


@pytest.fixture
def hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hdfs]:
    monkeypatch.setenv("HADOOP_USER_NAME", "holdfast")
    (tmp_path / "hdfs").mkdir()
    with Hdfs(tmp_path / "hdfs").running() as store:
        yield store


@pytest.fixture
def mounted(tmp_path: Path) -> str:
    (tmp_path / "mounted").mkdir()
    return str(tmp_path / "mounted")


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> str:
    """One of fsspec's that we know nothing about."""
    return f"memory://{request.node.name.partition('[')[0]}"


@pytest.fixture(scope="session", params=["mounted", "s3", "hdfs", "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        request.getfixturevalue("seaweed")  # Here, so that it belongs to the session and not to the first test that needs it.
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    """An empty store of each kind."""
    store = request.getfixturevalue(kind)
    return store.url if isinstance(store, Hdfs) else str(store)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def with_limits(remote: Remote, **changes: float) -> Remote:
    """The same store, for another who is patient in another way; its connections are shared, since S3's client takes half a second to make."""
    return Remote(remote._files, remote.url, replace(PATIENT, **changes))  # type: ignore[arg-type]


def names(remote: Remote) -> list[str]:
    return [one.name for one in remote.list()]


def same(one: Path, other: Path, manifest: Manifest) -> bool:
    return all((one / chunk.path).read_bytes() == (other / chunk.path).read_bytes() for chunk in manifest.chunks)


# On every kind of store.


def test_what_was_uploaded_comes_back_as_it_was(url: str, checkpoints: Path, tmp_path: Path) -> None:
    remote = open_remote(url, limits=PATIENT)
    assert remote.list() == ()
    for manifest in save_few(checkpoints, 10, 20, 30):
        assert remote.upload(checkpoints, manifest.name).manifest == manifest
    assert names(remote) == ["step-00000030.g1", "step-00000020.g1", "step-00000010.g1"]
    newest = remote.verify("step-00000030.g1")
    back = tmp_path / "back"
    assert remote.download(newest.name, back) == newest == verify(back / newest.name)
    assert same(checkpoints, back, newest)
    assert [found.name for found in list_complete(back)] == [newest.name]


def test_what_is_there_is_not_sent_again(url: str, checkpoints: Path) -> None:
    remote = open_remote(url, limits=PATIENT)
    first, second = save_few(checkpoints, 10, 20)
    assert remote.upload(checkpoints, first.name).sent_bytes == first.size_bytes
    assert remote.upload(checkpoints, second.name).sent_bytes == second.own_bytes < second.size_bytes / 2
    assert remote.upload(checkpoints, second.name).sent_bytes == 0


def test_what_is_there_in_another_size_is_sent_again(url: str, checkpoints: Path) -> None:
    remote = open_remote(url, limits=PATIENT)
    [manifest] = save_few(checkpoints, 10)
    for chunk, cut in zip(manifest.chunks, (b"short", FROZEN * 2), strict=False):
        remote._files.put(chunk.path, cut)
    assert remote.upload(checkpoints, manifest.name).sent_bytes == manifest.size_bytes
    assert remote.verify(manifest.name) == manifest


def test_what_a_skipped_checkpoint_wrote_is_sent_with_the_one_that_needs_it(url: str, checkpoints: Path, tmp_path: Path) -> None:
    remote = open_remote(url, limits=PATIENT)
    _, second = save_few(checkpoints, 10, 20)
    assert remote.upload(checkpoints, second.name).sent_bytes == second.size_bytes
    assert names(remote) == [second.name]
    remote.download(second.name, tmp_path / "back")
    assert verify(tmp_path / "back" / second.name) == second


def test_a_damaged_chunk_is_refused_with_its_name_and_an_older_checkpoint_is_used(url: str, checkpoints: Path, tmp_path: Path) -> None:
    remote = open_remote(url, limits=PATIENT)
    older, newer = save_few(checkpoints, 10, 20)
    for manifest in (older, newer):
        remote.upload(checkpoints, manifest.name)
    damaged = next(chunk for chunk in newer.chunks if chunk.home == newer.name)
    remote._files.remove(damaged.path)
    remote._files.put(damaged.path, bytes(damaged.size_bytes))
    for look in (lambda: remote.verify(newer.name), lambda: remote.download(newer.name, tmp_path / "back")):
        with pytest.raises(CheckpointCorrupt, match=f"{damaged.digest} is damaged.*Take {older.name} instead") as caught:
            look()
        assert caught.value.chunk == damaged
    assert list_complete(tmp_path / "back") == ()
    manifest, refused = remote.download_newest(tmp_path / "back")
    assert manifest == older == verify(tmp_path / "back" / older.name)
    assert [damaged.digest in why for why in refused] == [True]


def test_a_chunk_damaged_here_is_never_uploaded_and_is_repaired_from_the_store(url: str, checkpoints: Path) -> None:
    remote = open_remote(url, limits=PATIENT)
    first, second = save_few(checkpoints, 10, 20)
    remote.upload(checkpoints, first.name)
    frozen = next(chunk for chunk in second.chunks if chunk.size_bytes == len(FROZEN))
    own = next(chunk for chunk in second.chunks if chunk.home == second.name)
    for chunk in (frozen, own):
        (checkpoints / chunk.path).write_bytes(bytes(chunk.size_bytes))
    with pytest.raises(CheckpointCorrupt, match=own.digest):
        remote.upload(checkpoints, second.name)
    assert names(remote) == [first.name]
    assert own.digest not in remote._files.list(f"{second.name}/chunks")
    remote.repair(checkpoints, frozen, second.algorithm)
    assert (checkpoints / frozen.path).read_bytes() == FROZEN
    with pytest.raises(CheckpointCorrupt, match="missing"):
        remote.repair(checkpoints, own, second.algorithm)


def test_removing_one_never_takes_what_another_needs(url: str, checkpoints: Path) -> None:
    remote = open_remote(url, limits=PATIENT)
    for manifest in save_few(checkpoints, 10, 20, 30, 40):
        remote.upload(checkpoints, manifest.name)
    assert remote.prune(Retention(last=1, every=20), now=0.0) == ("step-00000010.g1",)
    assert remote.prune(Retention(last=2), now=0.0) == ("step-00000020.g1",)
    assert names(remote) == ["step-00000040.g1", "step-00000030.g1"]
    for name in names(remote):
        remote.verify(name)
    assert [name for name, size in remote._files.list("step-00000010.g1").items() if size is not None] == [RETIRED]
    assert len(remote._files.list("step-00000010.g1/chunks")) == 1, "the chunk that never changes"
    for name in names(remote):
        remote.remove(name)
    assert all(not remote._files.list(f"{name}/chunks") for name in remote._files.list(""))


def test_uploads_at_once_end_with_sound_checkpoints(url: str, checkpoints: Path) -> None:
    manifests = save_few(checkpoints, 10, 20, 30)
    one, other = open_remote(url, limits=PATIENT), open_remote(url, limits=PATIENT)
    errors: list[BaseException] = []

    def send(remote: Remote, order: list[Manifest]) -> None:
        try:
            for manifest in order:
                remote.upload(checkpoints, manifest.name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=send, args=given) for given in ((one, manifests), (other, manifests), (other, manifests[::-1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [one.verify(name) for name in names(one)] == manifests[::-1]
    assert all("uploading" not in entry for manifest in manifests for entry in one._files.list(manifest.name))


def test_another_runs_checkpoint_of_the_same_name_is_left_alone(url: str, checkpoints: Path, tmp_path: Path) -> None:
    remote = open_remote(url, limits=PATIENT)
    theirs, ours = save(tmp_path / "theirs", 10, b"theirs", at=1.0), save(checkpoints, 10, b"ours", at=2.0)
    remote.upload(tmp_path / "theirs", theirs.name)
    with pytest.raises(RemoteRefused, match="already the checkpoint of another run"):
        remote.upload(checkpoints, ours.name)
    assert remote.verify(theirs.name) == theirs


def test_a_damaged_manifest_is_no_checkpoint_and_is_replaced_by_the_next_upload(url: str, checkpoints: Path) -> None:
    remote = open_remote(url, limits=PATIENT)
    [manifest] = save_few(checkpoints, 10)
    remote._files.put(f"{manifest.name}/{MANIFEST}", encode(manifest)[:-5])
    assert remote.list() == ()
    with pytest.raises(CheckpointCorrupt, match="no older one"):
        remote.manifest(manifest.name)
    remote.upload(checkpoints, manifest.name)
    assert remote.verify(manifest.name) == manifest


# Whoever dies.


class Killed(BaseException):
    """What a process that is no more sees of its store."""


class DyingFiles:
    """Files of a store that can be reached so many times, and then never again: as if the process had been killed there."""

    def __init__(self, files: Any, left: list[int]) -> None:
        self._files, self._left = files, left

    def on_behalf_of(self, stop: Stops) -> DyingFiles:
        return DyingFiles(self._files.on_behalf_of(stop), self._left)

    def __getattr__(self, name: str) -> Any:
        def reach(*given: Any) -> Any:
            self._left[0] -= 1
            if self._left[0] < 0:
                raise Killed
            return getattr(self._files, name)(*given)

        return reach


def dying(remote: Remote, operations: int) -> Remote:
    return with_limits(Remote(DyingFiles(remote._files, [operations]), remote.url, PATIENT), at_a_time=1)


def test_an_upload_killed_anywhere_leaves_no_torn_checkpoint_and_is_gone_on_with(checkpoints: Path, tmp_path: Path) -> None:
    manifests = save_few(checkpoints, 10, 20)
    for operations in range(1000):
        place = tmp_path / f"store-{operations}"
        place.mkdir()
        remote = open_remote(str(place), limits=PATIENT)
        remote.upload(checkpoints, manifests[0].name)
        ended = True
        try:
            dying(remote, operations).upload(checkpoints, manifests[1].name)
        except Killed:
            ended = False
        assert [remote.verify(name) for name in names(remote)] in (manifests[:1], manifests[::-1])
        there = sum(remote._files.list(f"{manifests[1].name}/chunks").get(chunk.digest) is not None for chunk in manifests[1].chunks)
        again = remote.upload(checkpoints, manifests[1].name)
        assert again.sent_chunks == sum(chunk.home == manifests[1].name for chunk in manifests[1].chunks) - there
        assert [remote.verify(name) for name in names(remote)] == manifests[::-1]
        if ended:
            assert operations > 10
            return
    raise AssertionError


def test_a_removal_killed_anywhere_leaves_sound_checkpoints_and_is_finished_by_the_next(checkpoints: Path, tmp_path: Path) -> None:
    manifests = save_few(checkpoints, 10, 20, 30)
    full = tmp_path / "full"
    full.mkdir()
    for manifest in manifests:
        open_remote(str(full)).upload(checkpoints, manifest.name)
    for operations in range(1000):
        place = tmp_path / f"store-{operations}"
        shutil.copytree(full, place)
        remote = open_remote(str(place), limits=PATIENT)
        ended = True
        try:
            dying(remote, operations).remove(manifests[0].name)
        except Killed:
            ended = False
        assert names(remote)[:2] == [manifests[2].name, manifests[1].name]
        for name in names(remote):
            remote.verify(name)
        remote.remove(manifests[0].name)
        assert names(remote) == [manifests[2].name, manifests[1].name]
        assert [remote.verify(one.name) for one in manifests[1:]] == manifests[1:]
        assert garbage(place) == []
        if ended:
            assert operations > 10
            return
    raise AssertionError


def test_a_download_killed_anywhere_leaves_no_torn_checkpoint_and_is_gone_on_with(mounted: str, checkpoints: Path, tmp_path: Path) -> None:
    remote = open_remote(mounted, limits=replace(PATIENT, at_a_time=1))
    manifests = save_few(checkpoints, 10, 20)
    for manifest in manifests:
        remote.upload(checkpoints, manifest.name)

    def die() -> None:
        raise Killed

    for operations in range(1000):
        back = tmp_path / f"back-{operations}"
        ended = True
        try:
            remote.download(manifests[1].name, back, disk=counting_disk(operations, die))
        except Killed:
            ended = False
        for found in list_complete(back):
            verify(found.path)
        assert ended <= (len(list_complete(back)) == 1)
        remote.download(manifests[1].name, back)
        assert verify(back / manifests[1].name) == manifests[1]
        sweep_torn(Disk(), back, generation=2, restored_step=100)
        assert verify(back / manifests[1].name) == manifests[1]
        if ended:
            assert operations > 20
            return
    raise AssertionError


def test_a_downloaded_checkpoint_leaves_nothing_behind_when_training_removes_it(mounted: str, checkpoints: Path, tmp_path: Path) -> None:
    remote, back = open_remote(mounted, limits=PATIENT), tmp_path / "back"
    for manifest in save_few(checkpoints, 10, 20):
        remote.upload(checkpoints, manifest.name)
    remote.download("step-00000020.g1", back)
    assert (back / "step-00000010.g1" / RETIRED).exists()
    for step in (30, 40):
        save(back, step, b"other things")
    prune(Disk(), back, Retention(last=2, restored=(1, 20)), generation=1, now=0.0)
    assert [found.step for found in list_complete(back)] == [40, 30]
    assert garbage(back) == []


def test_a_checkpoint_that_training_has_removed_can_be_downloaded_again_and_stays(mounted: str, checkpoints: Path) -> None:
    remote = open_remote(mounted, limits=PATIENT)
    manifests = save_few(checkpoints, 30, 35, 40)
    remote.upload(checkpoints, manifests[0].name)
    prune(Disk(), checkpoints, Retention(last=2, restored=(1, 0)), generation=1, now=0.0)
    assert (checkpoints / manifests[0].name / RETIRED).exists(), "it is kept for what the others need of it"
    remote.download(manifests[0].name, checkpoints)
    save_few(checkpoints, 50)
    assert prune(Disk(), checkpoints, Retention(last=2, every=30, restored=(1, 0)), generation=1, now=0.0) == (manifests[1].name,)
    assert [verify(found.path).step for found in list_complete(checkpoints)] == [50, 40, 30]


def test_what_an_unfinished_upload_has_sent_stays_for_a_day_and_then_goes(mounted: str, checkpoints: Path, tmp_path: Path) -> None:
    remote = open_remote(mounted, limits=PATIENT)
    first, second, third = save_few(checkpoints, 10, 20, 30)
    remote.upload(checkpoints, first.name)
    with pytest.raises(Killed):
        dying(remote, 14).upload(checkpoints, third.name)
    sent = {home: len(remote._files.list(f"{home}/chunks")) for home in (second.name, third.name)}
    assert sum(sent.values()) > 0
    (Path(mounted) / third.name / "uploading.part-1-00000000.part-1-00000000").write_bytes(b"an announcement that was cut o")
    remote.remove(first.name)
    assert {home: len(remote._files.list(f"{home}/chunks")) for home in sent} == sent
    assert len(remote._files.list(f"{first.name}/chunks")) == 1, "the upload to come needs what never changes"
    with_limits(remote, stale_s=0.0).prune(Retention(), now=0.0)
    assert garbage(Path(mounted)) == []
    remote.upload(checkpoints, third.name)
    assert remote.verify(third.name) == third


class TakingFiles:
    """Files from which somebody takes a chunk at the last moment: a removal that looked before the upload had announced itself."""

    def __init__(self, files: Any, takes: list[str]) -> None:
        self._files, self._takes = files, takes

    def on_behalf_of(self, stop: Stops) -> TakingFiles:
        return TakingFiles(self._files.on_behalf_of(stop), self._takes)

    def __getattr__(self, name: str) -> Any:
        if name == "put_new" and self._takes:
            self._files.remove(self._takes.pop())
        return getattr(self._files, name)


def test_what_a_removal_takes_from_under_an_upload_is_sent_again(mounted: str, checkpoints: Path) -> None:
    remote = open_remote(mounted, limits=PATIENT)
    first, second = save_few(checkpoints, 10, 20)
    remote.upload(checkpoints, first.name)
    shared = next(chunk for chunk in second.chunks if chunk.home == first.name)
    uploaded = Remote(TakingFiles(remote._files, [shared.path]), remote.url, PATIENT).upload(checkpoints, second.name)
    assert uploaded.sent_bytes == second.own_bytes + shared.size_bytes
    assert remote.verify(second.name) == second


# S3.


def test_only_one_of_many_writes_a_name_that_must_be_new(s3: str, seaweed: Seaweed) -> None:
    files = open_remote(s3, limits=PATIENT)._files
    results: list[bool] = []
    threads = [threading.Thread(target=lambda text=text: results.append(files.put_new("name", text))) for text in (b"one", b"two", b"three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, False, True]
    assert files.put_new("name", b"four") is False
    assert files.get("name") in (b"one", b"two", b"three")


def test_a_large_chunk_goes_in_parts_and_long_dead_parts_are_swept(s3: str, seaweed: Seaweed, checkpoints: Path) -> None:
    manifest = save(checkpoints, 10, some_bytes(2 * PART_BYTES + 5, 1))
    large = max(manifest.chunks, key=lambda chunk: chunk.size_bytes)
    key = f"{s3.removeprefix(f's3://{BUCKET}/')}/{large.path}"
    raw_s3(seaweed, "create_multipart_upload", Key=key)
    remote = open_remote(s3, limits=PATIENT)
    assert remote.upload(checkpoints, manifest.name).swept == 0, "it may be somebody's who is at work"
    assert raw_s3(seaweed, "head_object", Key=key)["ETag"].strip('"').endswith("-3")
    assert with_limits(remote, stale_s=0.0).upload(checkpoints, manifest.name).swept == 1
    assert not raw_s3(seaweed, "list_multipart_uploads").get("Uploads")
    assert remote.verify(manifest.name) == manifest


def test_more_checkpoints_and_chunks_than_one_page_of_a_listing_has_are_all_found(s3: str) -> None:
    files: Any = open_remote(s3, limits=PATIENT)._files
    for number in range(5):
        files.put(f"many/{number}", b"x")
    files._fs._call_s3 = small_pages(files._fs._call_s3)
    assert sorted(files.list("many")) == ["0", "1", "2", "3", "4"]


def small_pages(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda method, **given: call(method, **given, **({"MaxKeys": 2} if method == "list_objects_v2" else {}))


# A bad road.


@pytest.fixture
def road(seaweed: Seaweed) -> Iterator[Proxy]:
    with Proxy(seaweed.port).running() as proxy:
        yield proxy


def test_connections_cut_in_the_middle_and_a_store_that_is_busy_cost_only_time(
    s3: str, road: Proxy, checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", road.endpoint)
    manifest = save(checkpoints, 10, *(some_bytes(700 * KiB, seed) for seed in range(6)), some_bytes(2 * PART_BYTES, 7))
    road.cuts, road.refusals = [100 * KiB, 300 * KiB, 500 * KiB, PART_BYTES // 2], 5
    remote = open_remote(s3, limits=replace(PATIENT, tries=10))
    remote.upload(checkpoints, manifest.name)
    assert (road.cuts, road.refusals) == ([], 0)
    road.refusals = 3
    assert remote.download(manifest.name, tmp_path / "back") == verify(tmp_path / "back" / manifest.name)


@pytest.mark.parametrize("after", [pytest.param(0, marks=pytest.mark.slow), 300 * KiB])
def test_a_store_that_falls_silent_is_given_up_in_time(s3: str, road: Proxy, checkpoints: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", road.endpoint)
    manifest = save(checkpoints, 10, *(some_bytes(200 * KiB, seed) for seed in range(6)))
    road.stall_after = after
    began = time.monotonic()
    with pytest.raises(RemoteUnavailable, match=r"no answer within 0\.25 s"):
        open_remote(s3, limits=SILENT).upload(checkpoints, manifest.name)
    assert time.monotonic() - began < 10.0
    road.stall_after = None
    assert open_remote(s3, limits=PATIENT).upload(checkpoints, manifest.name).manifest == manifest


def test_a_silent_webhdfs_server_is_given_up_in_time(hdfs: Hdfs, checkpoints: Path) -> None:
    [manifest] = save_few(checkpoints, 10)
    with Proxy(hdfs.name_node.port).running() as road:
        road.stall_after = 0
        with pytest.raises(RemoteUnavailable, match=r"no answer within 0\.25 s"):
            open_remote(f"webhdfs://127.0.0.1:{road.port}/run", limits=SILENT).upload(checkpoints, manifest.name)


def test_what_a_data_node_in_trouble_answers_is_not_taken_for_the_file(hdfs: Hdfs, checkpoints: Path, tmp_path: Path) -> None:
    [manifest] = save_few(checkpoints, 10)
    remote = open_remote(hdfs.url, limits=PATIENT)
    remote.upload(checkpoints, manifest.name)
    hdfs.troubles = 5
    assert remote.list() == (manifest,)
    assert remote.download(manifest.name, tmp_path / "back") == verify(tmp_path / "back" / manifest.name)
    assert hdfs.troubles == 0


def test_an_upload_is_stopped_at_once_also_when_the_store_is_silent(s3: str, road: Proxy, checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", road.endpoint)
    [manifest] = save_few(checkpoints, 10)
    road.stall_after = 0
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        open_remote(s3, limits=replace(HASTY, deadline_s=60.0)).upload(checkpoints, manifest.name, stop=stop.is_set)
    assert time.monotonic() - began < 5.0


def test_a_directory_that_hangs_is_given_up_in_time(tmp_path: Path, checkpoints: Path) -> None:
    """A manifest that is a pipe nobody writes to: reading it blocks in the kernel, as a dead mount does."""
    place = tmp_path / "mounted"
    (place / "step-00000010.g1").mkdir(parents=True)
    os.mkfifo(place / "step-00000010.g1" / MANIFEST)
    with pytest.raises(RemoteUnavailable, match=r"no answer within 0\.25 s"):
        open_remote(str(place), limits=SILENT).list()
    for _ in range(2):  # Let those who wait there go.
        os.close(os.open(place / "step-00000010.g1" / MANIFEST, os.O_RDWR | os.O_NONBLOCK))


def test_no_more_is_sent_in_a_second_than_was_asked_for(mounted: str, checkpoints: Path) -> None:
    manifest = save(checkpoints, 10, *(some_bytes(100 * KiB, seed) for seed in range(5)))
    began = time.monotonic()
    open_remote(mounted, limits=replace(PATIENT, bytes_per_s=1000 * KiB)).upload(checkpoints, manifest.name)
    assert time.monotonic() - began >= 0.4, "what comes last must wait until the four fifths before it have had their time"


UPLOAD = """
    import sys
    from pathlib import Path
    from holdfast.checkpoint.remote_address import open_remote
    open_remote(sys.argv[1]).upload(Path(sys.argv[2]), sys.argv[3])
"""


def test_an_upload_that_was_killed_is_gone_on_with_and_nothing_is_sent_twice(
    s3: str, road: Proxy, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", road.endpoint)
    manifest = save(checkpoints, 10, *(some_bytes(512 * KiB, seed) for seed in range(24)))
    road.stall_after = manifest.size_bytes // 2
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(UPLOAD), s3, str(checkpoints), manifest.name]) as process:
        wait_for(lambda: road.is_stalled, within_s=60.0, what="half of it is sent")
        process.send_signal(signal.SIGKILL)
    remote = open_remote(s3, limits=PATIENT)
    first_bytes, road.stall_after = road.up_bytes, None
    assert remote.list() == ()
    there = sum(size or 0 for size in remote._files.list(f"{manifest.name}/chunks").values())
    assert there >= manifest.size_bytes // 4
    before = road.up_bytes
    again = remote.upload(checkpoints, manifest.name)
    assert again.sent_bytes == manifest.size_bytes - there
    assert road.up_bytes - before <= again.sent_bytes + 100 * KiB, f"the rest and the words around it; {first_bytes} bytes went before the kill"
    assert remote.verify(manifest.name) == manifest


@pytest.mark.slow
def test_an_upload_that_is_killed_again_and_again_gets_done_without_sending_twice_what_is_there(
    s3: str, road: Proxy, checkpoints: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", road.endpoint)
    manifest = save(checkpoints, 10, *(some_bytes(256 * KiB, number) for number in range(64)), some_bytes(3 * PART_BYTES, 64))
    dice = random.Random(seed)
    remote, kills = open_remote(s3, limits=PATIENT), 0
    while not remote.list():
        there = sum(size or 0 for size in remote._files.list(f"{manifest.name}/chunks").values())
        before, road.stall_after = road.up_bytes, road.up_bytes + dice.randrange(manifest.size_bytes // 4, manifest.size_bytes)
        with subprocess.Popen([sys.executable, "-c", textwrap.dedent(UPLOAD), s3, str(checkpoints), manifest.name]) as process:
            wait_for(lambda process=process: road.is_stalled or process.poll() is not None, within_s=60.0, what="it is stopped in the middle, or done")
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
        road.stall_after = None
        assert road.up_bytes - before <= manifest.size_bytes - there + 200 * KiB
    assert kills
    assert remote.verify(manifest.name) == manifest
    assert with_limits(remote, stale_s=0.0).upload(checkpoints, manifest.name).sent_bytes == 0


# What is said when it cannot work.


def everything_said(error: BaseException, captured: str = "") -> str:
    return "".join(traceback.format_exception(error)) + str(error) + repr(error) + captured + "".join(repr(one) for one in chain(error))


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("key", "secret", "token", "word"),
    [
        (KEY, "the+wrong/secret", "", "SignatureDoesNotMatch"),
        ("AKIANOBODYKNOWSTHIS1", SECRET, "", "InvalidAccessKeyId"),
        (READER_KEY, READER_SECRET, "", "AccessDenied"),
        (KEY, SECRET, TOKEN, "InvalidAccessKeyId|AccessDenied|InvalidToken|403|ExpiredToken"),
    ],
    ids=["a wrong secret", "an unknown key", "one who may only read", "a token that is none"],
)
def test_credentials_that_will_not_do_are_told_in_a_sentence_without_them(
    s3: str,
    seaweed: Seaweed,
    checkpoints: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    key: str,
    secret: str,
    token: str,
    word: str,
) -> None:
    [manifest] = save_few(checkpoints, 10)
    give_credentials(monkeypatch, endpoint=seaweed.endpoint, key=key, secret=secret, token=token)
    with pytest.raises(RemoteRefused, match=rf"refused: the credentials .*({word}).* Set others, or allow them") as caught:
        open_remote(s3, limits=HASTY).upload(checkpoints, manifest.name)
    said = everything_said(caught.value, "".join(capfd.readouterr()))
    assert secret not in said
    assert not token or token not in said


def test_no_credentials_at_all_are_told_in_a_sentence(s3: str, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    give_credentials(monkeypatch, endpoint=seaweed.endpoint, key="", secret="")
    with pytest.raises(RemoteRefused, match=r"no credentials were found. Set AWS_ACCESS_KEY_ID"):
        open_remote(s3, limits=HASTY).list()


def test_a_missing_bucket_is_told_in_a_sentence(s3: str, checkpoints: Path) -> None:
    [manifest] = save_few(checkpoints, 10)
    remote = open_remote("s3://nobody-made-this/run", limits=HASTY)
    for look in (remote.list, lambda: remote.upload(checkpoints, manifest.name)):
        with pytest.raises(RemoteRefused, match=r"no such bucket .* Make it first"):
            look()


def test_a_server_that_is_not_there_is_told_in_a_sentence(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:and-my-password@127.0.0.1:1")
    with pytest.raises(RemoteUnavailable, match=r"failed 2 times, last because .* See whether the store is up") as caught:
        open_remote(s3, limits=HASTY).list()
    assert "and-my-password" not in everything_said(caught.value)


def test_a_full_store_is_told_in_a_sentence_and_what_is_complete_stays(hdfs: Hdfs, checkpoints: Path) -> None:
    remote = open_remote(hdfs.url, limits=HASTY)
    first, second = save_few(checkpoints, 10, 20)
    remote.upload(checkpoints, first.name)
    hdfs.quota_bytes = hdfs.used_bytes() + 6 * KiB
    with pytest.raises(RemoteRefused, match=r"full or its quota is used up. Make room"):
        remote.upload(checkpoints, second.name)
    assert names(remote) == [first.name]
    assert remote.verify(first.name) == first


@pytest.mark.root
def test_a_full_and_a_read_only_mount_are_told_in_a_sentence(tmp_path: Path, checkpoints: Path) -> None:
    place = tmp_path / "mounted"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)], capture_output=True, check=False).returncode:
        pytest.skip("needs permission to mount")
    try:
        manifest = save(checkpoints, 10, *(some_bytes(100 * KiB, seed) for seed in range(5)))
        with pytest.raises(RemoteRefused, match="full or its quota is used up"):
            open_remote(str(place), limits=HASTY).upload(checkpoints, manifest.name)
        remount = ["mount", "-o", "remount,ro", str(place)]  # Which must wait for those who were given up with a file open.
        wait_for(lambda: subprocess.run(remount, capture_output=True, check=False).returncode == 0, within_s=10.0, what="it can be made read-only")
        with pytest.raises(RemoteRefused, match="it is read-only"):
            open_remote(str(place), limits=HASTY).upload(checkpoints, manifest.name)
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.root
def test_a_full_s3_store_is_told_in_a_sentence_and_what_is_complete_stays(tmp_path: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SeaweedFS calls it an internal error, as it would any other; so it is tried again, and the sentence says to look for room."""
    data = tmp_path / "seaweed" / "data"
    data.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(data)], capture_output=True, check=False).returncode:
        pytest.skip("needs permission to mount")
    try:
        with running_seaweed(tmp_path / "seaweed") as store:
            give_credentials(monkeypatch, endpoint=store.endpoint)
            remote = open_remote(f"s3://{BUCKET}/run", limits=HASTY)
            [first] = save_few(checkpoints, 10)
            remote.upload(checkpoints, first.name)
            second = save(checkpoints, 20, *(some_bytes(4 * MiB, seed) for seed in range(16)))
            with pytest.raises(RemoteUnavailable, match=r"it answered InternalError 500. .* has room"):
                remote.upload(checkpoints, second.name)
            assert remote.verify(first.name) == first
            assert names(remote) == [first.name]
    finally:
        subprocess.run(["umount", "--lazy", str(data)], check=True)


def test_a_place_that_is_not_mounted_is_not_filled_instead(tmp_path: Path, checkpoints: Path) -> None:
    [manifest] = save_few(checkpoints, 10)
    remote = open_remote(f"file://{tmp_path}/not-mounted", limits=HASTY)
    for look in (remote.list, lambda: remote.upload(checkpoints, manifest.name)):
        with pytest.raises(RemoteRefused, match=r"no such directory. Mount it or make it first"):
            look()
    assert not (tmp_path / "not-mounted").exists()


def test_a_webhdfs_password_is_used_and_never_told(tmp_path: Path, checkpoints: Path, capfd: pytest.CaptureFixture[str]) -> None:
    [manifest] = save_few(checkpoints, 10)
    (tmp_path / "hdfs").mkdir()
    with Hdfs(tmp_path / "hdfs", owner="me", password="open-/sesame").running() as hdfs:
        right, wrong = (hdfs.url.replace("//", f"//me:{password}@") for password in ("open-%2fsesame", "open-barley"))
        assert open_remote(right, limits=HASTY).upload(checkpoints, manifest.name).manifest == manifest
        remote = open_remote(wrong, limits=HASTY)
        with pytest.raises(RemoteRefused, match=r"webhdfs://\*\*\*@127.*credentials") as caught:
            remote.upload(checkpoints, manifest.name)
    said = everything_said(caught.value, "".join(capfd.readouterr())) + repr(remote) + remote.url
    assert "open-" not in said


def test_one_who_may_not_write_to_webhdfs_is_told_so(hdfs: Hdfs, checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [manifest] = save_few(checkpoints, 10)
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    with pytest.raises(RemoteRefused, match="somebody has no permission"):
        open_remote(hdfs.url, limits=HASTY).upload(checkpoints, manifest.name)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("relative/path", "no address and no absolute path"),
        ("s3://", "expected s3://bucket/path"),
        ("s3://AKIA:hidden@bucket/run", "Credentials go into AWS_ACCESS_KEY_ID"),
        ("s3://AKIA:with/slash/hidden@bucket/run", "Credentials go into AWS_ACCESS_KEY_ID"),
        ("me:hidden@host/run", "no address and no absolute path"),
        ("webhdfs://host:hidden/run", "expected webhdfs://host:port/path"),
        ("webhdfs://me:hidden@host:9870", "expected webhdfs://host:port/path"),
        ("webhdfs://host:1/run[1]?token=hidden@", "fsspec takes for a pattern"),
        ("nosuch://me:hidden@host/run", "of a kind that fsspec does not know"),
    ],
)
def test_an_address_that_cannot_work_is_told_in_a_sentence(url: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        open_remote(url)
    assert "hidden@" not in everything_said(caught.value)


def test_an_address_is_shown_without_what_is_secret_in_it() -> None:
    assert redacted("webhdfs://me:hidden@host:1/run?delegation=hidden") == "webhdfs://***@host:1/run"
    assert redacted("s3://AKIA:hid/den@bucket/run") == "s3://***@bucket/run"
    assert redacted("me:hidden@host/run") == "***@host/run"
    assert redacted("s3://bucket/run") == "s3://bucket/run"
    assert redacted("/a/path") == "/a/path"


@pytest.mark.parametrize(("url", "package"), [("s3://bucket/run", "s3fs"), ("webhdfs://host:1/run", "requests"), ("s3://bucket/run", "fsspec")])
def test_a_missing_package_is_told_with_how_to_install_it(url: str, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from holdfast.checkpoint.remote_address import open_remote; open_remote({url!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "UserError" in done.stderr
    assert f"needs the package {package}" in done.stderr
    assert "pip install 'holdfast[remote]'" in done.stderr


@pytest.mark.parametrize("text", ["much", "-1", "0", "inf"])
def test_a_limit_in_the_environment_that_is_none_is_told_in_a_sentence(mounted: str, text: str) -> None:
    with pytest.raises(UserError, match=r"HOLDFAST_REMOTE_BYTES_PER_S is .*expected a number above 0"):
        open_remote(mounted, environ={"HOLDFAST_REMOTE_BYTES_PER_S": text})


# In the agent.


def in_a_loop(uploads: Uploads, until: Callable[[], object], *, within_s: float = 30.0) -> float:
    """Let the uploads run until something holds; how long their end took."""

    async def main() -> float:
        task = asyncio.create_task(uploads.run())
        end = time.monotonic() + within_s
        while not until():
            assert time.monotonic() < end, f"not within {within_s:g} s; {uploads.status}"
            await asyncio.sleep(0.01)
        began = time.monotonic()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return time.monotonic() - began

    return asyncio.run(main())


def test_the_agent_sends_the_newest_and_skips_what_it_came_too_late_for(mounted: str, checkpoints: Path) -> None:
    save_few(checkpoints, 10, 20, 30, 40, 50)
    said: list[str] = []
    uploads = Uploads(checkpoints, mounted, keep=Retention(last=1, every=20), say=said.append, look_every_s=0.01)
    remote = open_remote(mounted, limits=PATIENT)
    wanted = ["step-00000050.g1", "step-00000040.g1", "step-00000020.g1"]
    in_a_loop(uploads, lambda: names(remote) == wanted and not uploads.status.waiting and not uploads.status.sending)
    assert (uploads.status.step, uploads.status.error, said) == (50, "", [])


def test_the_agent_removes_in_the_store_what_no_rule_wants(mounted: str, checkpoints: Path) -> None:
    uploads = Uploads(checkpoints, mounted, keep=Retention(last=2), look_every_s=0.01)
    remote = open_remote(mounted, limits=PATIENT)
    steps = iter((10, 20, 30, 40))

    def next_step() -> bool:
        newest = list_complete(checkpoints)
        if newest and uploads.status.step != newest[0].step:
            return False
        step = next(steps, None)
        if step is not None:
            save_few(checkpoints, step)
        return step is None

    in_a_loop(uploads, next_step)
    assert names(remote) == ["step-00000040.g1", "step-00000030.g1"]
    assert [remote.verify(name).name for name in names(remote)] == names(remote)


def test_a_failing_store_is_told_once_and_once_more_when_it_works_again(tmp_path: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agent.uploads._PAUSE_S", 0.001)
    save_few(checkpoints, 10)
    place = tmp_path / "mounted"
    said: list[str] = []
    uploads = Uploads(checkpoints, str(place), say=said.append, look_every_s=0.01)

    def works_again() -> bool:
        if uploads.failures >= 3:
            place.mkdir(exist_ok=True)
        return uploads.status.step == 10

    in_a_loop(uploads, works_again)
    assert len(said) == 2, said
    assert said[0].startswith("checkpoints are not uploaded:")
    assert "no such directory" in said[0]
    assert said[1].startswith("uploading checkpoints works again, after ")
    assert uploads.status.error == ""


def test_a_silent_store_delays_neither_the_agent_nor_its_end(s3: str, road: Proxy, checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", road.endpoint)
    save(checkpoints, 10, *(some_bytes(200 * KiB, seed) for seed in range(6)))
    road.stall_after = 500 * KiB
    code = """
        import asyncio, sys, time
        from pathlib import Path
        from holdfast.agent.uploads import Uploads
        async def main():
            task = asyncio.create_task(Uploads(Path(sys.argv[2]), sys.argv[1], look_every_s=0.01).run())
            slowest, before = 0.0, time.monotonic()
            print("runs", flush=True)
            reader = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            while not reader.done():
                await asyncio.sleep(0.01)
                slowest, before = max(slowest, time.monotonic() - before), time.monotonic()
            print(slowest, flush=True)
        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(code), s3, str(checkpoints)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        assert process.stdout is not None
        wait_for(lambda: road.is_stalled, within_s=60.0, what="the store is silent in the middle")
        began = time.monotonic()
        process.stdin.write("end\n")
        process.stdin.flush()
        assert process.wait(timeout=30) == 0
        took = time.monotonic() - began
        slowest, said = float(process.stdout.read().split()[-1]), process.stderr.read()
    assert took < 3.0
    assert said == "", "an upload that is given up at the end is nothing to tell"
    assert slowest < 1.5, "the loop was kept from its work"


def test_what_the_agent_says_of_a_store_that_refuses_is_one_sentence_without_a_secret(
    s3: str, seaweed: Seaweed, checkpoints: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    give_credentials(monkeypatch, endpoint=seaweed.endpoint, secret="the+wrong/secret", token=TOKEN)
    monkeypatch.setattr("holdfast.agent.uploads._PAUSE_S", 0.001)
    save_few(checkpoints, 10)
    uploads = Uploads(checkpoints, s3, look_every_s=0.01)
    in_a_loop(uploads, lambda: uploads.failures >= 3)
    said = "".join(capfd.readouterr())
    assert said.count("\n") == 1
    assert said.startswith("holdfast agent: checkpoints are not uploaded: listing the checkpoints in s3://")
    assert "wrong" not in said + repr(uploads.status)
    assert TOKEN not in said + repr(uploads.status)


def test_a_checkpoint_that_training_removes_while_it_is_sent_is_given_up_for_a_newer_one(
    mounted: str, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_REMOTE_BYTES_PER_S", str(200 * KiB))
    first = save(checkpoints, 10, *(some_bytes(20 * KiB, seed) for seed in range(20)))
    said: list[str] = []
    uploads = Uploads(checkpoints, mounted, say=said.append, look_every_s=0.01)

    def removed() -> bool:
        if len(list_complete(checkpoints)) == 1 and list((Path(mounted) / first.name / "chunks").glob("*")):
            for step in (20, 30):
                save(checkpoints, step, b"other things")
            prune(Disk(), checkpoints, Retention(last=2, restored=(1, 10)), generation=1, now=0.0)
        return uploads.status.step == 30

    in_a_loop(uploads, removed)
    assert said == []
    assert names(open_remote(mounted)) == ["step-00000030.g1"]


def test_an_agent_without_a_remote_store_loads_nothing_of_it() -> None:
    code = "import sys, holdfast.agent.uploads; print(*sorted({'fsspec', 's3fs', 'requests', 'botocore', 'concurrent.futures.thread'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.split() == []
