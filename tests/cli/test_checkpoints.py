"""`holdfast checkpoint`, as a person at a shell meets it: what it says, what it refuses, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end.jobs import command, environment
from torch import nn
from typer.testing import CliRunner

import holdfast
from holdfast.checkpoint.commit import Shard, commit
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import list_complete, newest_complete, verify
from holdfast.checkpoint.state import put_value
from holdfast.cli import app
from holdfast.cli.job import hold
from holdfast.errors import HoldfastError
from holdfast.launch.layout import JobDirectory

FROZEN_BYTES = 4 * (300 * 300)


def train(checkpoints: Path, steps: int, *, keep: Any = 10) -> None:
    """A trained layer, a frozen one that is large enough for chunks of its own, and a few values. The loss is lowest at step 4."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(300, 300).requires_grad_(False), nn.Linear(300, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    seen: dict[str, Any] = {"names": ["a", "b"]}
    run = holdfast.guard(model=model, optimizer=optimizer, seen=seen, checkpoints=checkpoints, save_every=2, keep=keep)
    for step in run.steps(steps):
        model(torch.ones(2, 300)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen["step"] = step
        run.report(loss=0.5 + abs(step - 3))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 4 to 10 are complete, step 2 is retired, step 12 is torn."""
    checkpoints = tmp_path_factory.mktemp("made") / "runs"
    train(checkpoints, 10, keep=4)
    (checkpoints / "step-00000012.g1").mkdir()
    return checkpoints


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs"))


@pytest.fixture
def job(made: Path, state: Path) -> JobDirectory:
    """A job with those checkpoints, which does not run."""
    directory = JobDirectory(state / "jobs" / "resnet")
    directory.path.mkdir(parents=True)
    directory.journal.touch()
    shutil.copytree(made, directory.checkpoints)
    return directory


@dataclass(frozen=True)
class Ran:
    code: int
    said: str

    @property
    def json(self) -> Any:
        return json.loads(self.said)


def checkpoint(*words: object) -> Ran:
    """The command in this process, where torch is loaded already."""
    result = CliRunner().invoke(app, ["checkpoint", *map(str, words)])
    if isinstance(result.exception, HoldfastError):
        return Ran(result.exception.exit_code, str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.output)


def refused(*words: object) -> str:
    ran = checkpoint(*words)
    assert ran.code == 2, ran.said
    return ran.said


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def own_chunk(checkpoints: Path, name: str) -> Path:
    return max((checkpoints / name / "chunks").iterdir(), key=lambda chunk: chunk.stat().st_size)


# Without torch.


MANY = """
import json, sys
from typer.testing import CliRunner
from holdfast.cli import app
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, ["checkpoint", *words])
    print(json.dumps([result.exit_code, repr(result.exception)]))
assert "torch" not in sys.modules
"""


def test_what_only_looks_needs_no_torch(made: Path) -> None:
    where = str(made)
    expected = {
        ("list", where): 0, ("list", where, "--json"): 0, ("show", where, "newest", "--all"): 0, ("show", where, "--json"): 0, ("verify", where, "--all"): 0,
        ("prune", where, "--last", "2", "--dry-run"): 0, ("diff", where, "8", "10"): 1, ("diff", where, "10", "10"): 0,
    }  # fmt: skip
    ran = subprocess.run([sys.executable, "-c", MANY, json.dumps([*expected])], env=environment(), capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line)[0] for line in ran.stdout.splitlines()] == [*expected.values()], ran.stdout


def test_the_program_itself_ends_with_the_right_code_and_says_how_to_get_torch(made: Path, tmp_path: Path) -> None:
    ran = command("checkpoint", "verify", made, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["sound"]
    ran = command("checkpoint", "export", made, "--to", tmp_path / "out", "--format", "torch")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == 'holdfast: this needs torch, which is not installed here: pip install "holdfast[torch]"\n'


def test_other_commands_do_not_pay_for_this_one() -> None:
    code = "import sys, holdfast.cli; assert not {'holdfast.cli.checkpoints', 'holdfast.checkpoint.exchange', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True, timeout=60)


# Which ones.


def test_a_job_is_found_by_its_name_and_its_directories_by_their_paths(job: JobDirectory) -> None:
    expected = checkpoint("list", job.job, "--json").json
    assert [row["name"] for row in expected][1] == "step-00000010.g1"
    for where in (job.path, job.checkpoints, f"{job.checkpoints}/"):
        assert [row["name"] for row in checkpoint("list", where, "--json").json] == [row["name"] for row in expected]


def test_a_checkpoint_is_named_by_name_by_step_or_is_the_newest(made: Path) -> None:
    for which, name in (("newest", "step-00000010.g1"), ("6", "step-00000006.g1"), ("step-00000008.g1", "step-00000008.g1")):
        assert checkpoint("show", made, which, "--json").json["name"] == name
    assert checkpoint("show", made, "--json").json["name"] == "step-00000010.g1"


def test_what_is_not_there_is_said_with_what_is(made: Path, job: JobDirectory, tmp_path: Path) -> None:
    assert "there is no checkpoint '5' in" in refused("show", made, 5)
    assert refused("show", made, 5).endswith("The newest is step-00000010.g1, the nearest step-00000006.g1.")
    assert "the nearest step-00000004.g1" in refused("show", made, "step-00000003.g1")
    assert "The newest is step-00000010.g1." in refused("show", made, "latest")
    assert "checkpoint step-00000002.g1 was removed, and only chunks that others need are left" in refused("show", made, "step-00000002.g1")
    assert "did you mean 'resnet'?" in refused("list", "resnt")
    assert f"there is no directory {tmp_path / 'missing'}" in refused("list", tmp_path / "missing")
    assert f"Give {made} and then step-00000010.g1" in refused("show", made / "step-00000010.g1")
    (tmp_path / "file").touch()
    assert "is a file: expected a job's name or a directory of checkpoints" in refused("list", tmp_path / "file")
    torn = checkpoint("show", made, "step-00000012.g1")
    assert torn.code == 76
    assert "it has no manifest, so it was never completed" in torn.said


def test_a_job_without_checkpoints_lists_none_and_has_none_to_show(job: JobDirectory) -> None:
    shutil.rmtree(job.checkpoints)
    assert checkpoint("list", "resnet").said == "No checkpoints in resnet yet.\n"
    assert checkpoint("list", "resnet", "--json").json == []
    for words in (["show", "resnet"], ["verify", "resnet"], ["verify", "resnet", "--all"], ["prune", "resnet", "--last", 2], ["diff", "resnet", 1, 2]):
        assert "there is no complete checkpoint in resnet" in refused(*words)
    (job.checkpoints / "step-00000002.g1").mkdir(parents=True)
    assert "what is there cannot be used, and `holdfast checkpoint list` says why" in refused("show", "resnet")


# list and show.


def test_list_says_what_each_is_and_what_is_left_of_others(copied: Path) -> None:
    (copied / "step-00000008.g1" / "manifest.json").write_text("{}")
    rows = checkpoint("list", copied, "--json").json
    assert [(row["name"][:13], row["status"]) for row in rows] == [
        ("step-00000012", "torn"), ("step-00000010", "complete"), ("step-00000008", "unreadable"), ("step-00000006", "complete"),
        ("step-00000004", "complete"), ("step-00000002", "retired"),
    ]  # fmt: skip
    newest = rows[1]
    assert (newest["step"], newest["generation"], newest["ranks"], newest["numbers"]) == (10, 1, 1, {"loss": 6.5})
    assert newest["size_bytes"] - newest["own_bytes"] == FROZEN_BYTES == rows[-1]["bytes_there"], "the frozen layer was written once, for step 2"
    assert "its checksum is not that of what it says" in rows[2]["because"]
    said = checkpoint("list", copied).said
    assert "loss 6.5" in said
    assert "kept for others" in said
    assert "never" in said


def test_show_says_what_a_checkpoint_holds(made: Path) -> None:
    about = checkpoint("show", made, "--json").json
    assert about["shared_bytes"] == FROZEN_BYTES
    assert about["homes"] == {"step-00000002.g1": FROZEN_BYTES}
    assert [(piece["name"], piece["tensors"], piece["values"]) for piece in about["pieces"]] == [("model", 8, 0), ("optimizer", 18, 12), ("seen", 0, 2)]
    tensors = {one["name"]: one for one in about["tensors"]}
    assert tensors["model.0.weight"] == {
        "rank": 0, "part": "pieces", "name": "model.0.weight", "shared": False, "dtype": "float32", "shape": [300, 300], "bytes": FROZEN_BYTES,
    }  # fmt: skip
    assert tensors["optimizer.state.0.step"]["shape"] == []
    values = {one["name"]: one["value"] for one in about["values"]}
    assert values["seen.names"] == ["a", "b"]
    assert values["seen.step"] == 9
    assert values["optimizer.param_groups.0.lr"] == 0.001
    assert sum(one["bytes"] for one in about["tensors"]) <= about["size_bytes"]
    said = checkpoint("show", made).said
    assert "360 kB shared with step-00000002.g1" in said
    assert "optimizer.state.*.exp_avg" in said
    assert "(0.9, 0.999)" in said
    assert "optimizer.state.3.exp_avg" in checkpoint("show", made, "--all").said


def test_show_and_list_know_what_is_sharded_and_what_is_shared(tmp_path: Path) -> None:
    whole = torch.rand(3, 2)
    for rank, local in enumerate(whole.chunk(2)):
        mesh, placements = ((2,), (0, 1), ()), [("shard", 0)]
        note = {"__holdfast__": "dtensor", "local": local, "shape": [3, 2], "stride": [2, 1], "placements": placements, "mesh": mesh}
        own = {"pieces": {"model": {"w": note | {"dtype": local.dtype, "offset": [2 * rank, 0]}}}, "shared": ["ema"], "randomness": {}, "progress": {}}

        def fill(store: Any, rank: int = rank, own: Any = own) -> str:
            notes = {"own": put_value(store, own)} | ({"shared": put_value(store, {"ema": {"w": torch.ones(2)}})} if rank == 0 else {})
            return store.put(json.dumps(notes).encode()).digest

        commit(Disk(), tmp_path, Shard(step=1, generation=0, world_size=2, rank=rank), fill)
    about = checkpoint("show", tmp_path, "--json").json
    assert [(one["rank"], one["name"], one["shape"], one["bytes"]) for one in about["tensors"]] == [
        (0, "model.w", [3, 2], 16), (0, "ema.w", [2], 8), (1, "model.w", [3, 2], 8),
    ]  # fmt: skip
    assert about["tensors"][2]["sharded"]["offset"] == [2, 0]
    said = checkpoint("show", tmp_path).said
    assert "3×2, sharded" in said
    assert "shared by all ranks" in said
    assert "of 2 ranks" in said


# verify.


def test_verify_reads_every_byte_and_names_what_to_use_instead(copied: Path) -> None:
    for words in ([], ["--all"], ["6"]):
        ran = checkpoint("verify", copied, *words, "--json")
        assert ran.code == 0
        assert ran.json["sound"]
    whole = checkpoint("verify", copied, "--all", "--json").json
    assert whole["bytes"] == sum(file.stat().st_size for file in copied.rglob("chunks/*")), "what is shared is read once"
    assert "GB/s" in checkpoint("verify", copied).said
    chunk = own_chunk(copied, "step-00000010.g1")
    damage(chunk)
    ran = checkpoint("verify", copied, "--json")
    assert ran.code == 1
    (one,) = ran.json["checkpoints"]
    (seen,) = one["damaged"]
    assert seen["chunk"].endswith(chunk.name)
    assert "is damaged: expected xxh3_128" in seen["because"]
    assert "model.1.weight" in seen["holds"]
    assert ran.json["instead"] == "step-00000008.g1"
    said = checkpoint("verify", copied, "--all").said
    assert "sound: step-00000008.g1, step-00000006.g1, step-00000004.g1" in said
    assert "use step-00000008.g1 instead" in said


def test_what_several_share_is_damaged_for_all_of_them(copied: Path) -> None:
    own_chunk(copied, "step-00000002.g1").unlink()
    ran = checkpoint("verify", copied, "--json")
    assert (ran.code, ran.json["instead"]) == (1, None), "the older ones refer to the same chunk"
    assert ran.json["checkpoints"][0]["damaged"][0]["holds"] == ["model.0.weight"]
    assert "there is no other to use instead" in checkpoint("verify", copied, "--all").said


def test_what_cannot_be_used_at_all_is_found_by_verify(copied: Path) -> None:
    assert checkpoint("verify", copied, "step-00000012.g1").code == 1
    assert checkpoint("verify", copied, "--all").code == 0, "a torn directory is no checkpoint, and no damage"
    damage(copied / "step-00000008.g1" / "manifest.json")
    ran = checkpoint("verify", copied, "--all")
    assert ran.code == 1
    assert "unusable: step-00000008.g1" in ran.said
    assert "use step-00000010.g1 instead" in ran.said
    state = newest_complete(copied)
    assert state is not None
    (copied / state.manifest.by_digest()[state.manifest.states[0]].path).unlink()
    assert "the state of rank 0" in checkpoint("verify", copied).said
    assert checkpoint("show", copied).code == 76


# prune.


def test_prune_removes_what_no_rule_wants_and_frees_what_it_says(copied: Path) -> None:
    before = chunk_bytes(copied)
    dry = checkpoint("prune", copied, "--last", 1, "--best", 1, "--dry-run", "--json").json
    assert dry == {"doomed": ["step-00000006.g1"], "kept": ["step-00000010.g1", "step-00000008.g1", "step-00000004.g1"], "freed_bytes": dry["freed_bytes"],
                   "removed": False}  # fmt: skip
    assert chunk_bytes(copied) == before
    ran = checkpoint("prune", copied, "--last", 1, "--best", 1)
    assert ran.code == 0
    assert "goes: step-00000006.g1" in ran.said
    assert "removed 1 checkpoint" in ran.said
    assert before - chunk_bytes(copied) == dry["freed_bytes"]
    assert [one.name for one in list_complete(copied)] == ["step-00000010.g1", "step-00000008.g1", "step-00000004.g1"]
    checkpoint("prune", copied, "--last", 1, "--every", 4)
    assert [one.step for one in list_complete(copied)] == [10, 8, 4]
    checkpoint("prune", copied, "--last", 1, "--yes")
    assert [one.step for one in list_complete(copied)] == [10, 8], "the newest two always stay"
    assert "nothing to remove: all 2 are wanted by a rule" in checkpoint("prune", copied, "--last", 1).said
    for one in list_complete(copied):
        verify(one.path)


def chunk_bytes(checkpoints: Path) -> int:
    return sum(file.stat().st_size for file in checkpoints.rglob("chunks/*"))


def test_prune_refuses_a_metric_that_nobody_reported_and_a_job_that_runs(job: JobDirectory) -> None:
    assert "no checkpoint in resnet carries the number 'lss'; they carry loss" in refused("prune", "resnet", "--last", 2, "--best", 1, "--metric", "-lss")
    with hold(job):
        for where in ("resnet", job.checkpoints, job.path):
            assert "job 'resnet' runs, and nobody may prune its checkpoints meanwhile" in refused("prune", where, "--last", 2)
        for where in ("resnet", job.checkpoints):
            assert "nobody may import into its checkpoints" in refused("import", job.journal, "--to", where)
        assert checkpoint("list", "resnet").code == checkpoint("verify", "resnet").code == 0, "looking is always allowed"
    assert len(list_complete(job.checkpoints)) == 4
    assert checkpoint("prune", "resnet", "--last", 2).code == 0
    assert len(list_complete(job.checkpoints)) == 2
    assert checkpoint("prune", "resnet").code == 2, "--last must be given"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    leader, follower = pty.openpty()
    yield leader, follower
    os.close(leader)


def test_prune_asks_on_a_terminal(copied: Path, terminal: tuple[int, int]) -> None:
    leader, follower = terminal
    line = [sys.executable, "-m", "holdfast.cli", "checkpoint", "prune", str(copied), "--last", "2"]
    with subprocess.Popen(line, env=environment(TERM="xterm"), stdin=follower, stdout=follower, stderr=follower) as asking:
        os.close(follower)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(leader, 1 << 16)
        os.write(leader, b"n\n")
        assert asking.wait(60.0) == 0
    assert b"Remove 2 checkpoints?" in said
    assert len(list_complete(copied)) == 4


# diff.


def test_diff_tells_what_changed_from_what_only_moved(copied: Path, tmp_path: Path) -> None:
    same = checkpoint("diff", copied, 10, "newest", "--json")
    assert (same.code, same.json["changes"]) == (0, [])
    ran = checkpoint("diff", copied, 8, 10, "--values", "--json")
    assert ran.code == 1
    changes = {one["name"]: one for one in ran.json["changes"]}
    assert "model.0.weight" not in changes, "frozen"
    assert "model.0.bias" not in changes, "frozen, and in a chunk with others that are not"
    assert 0 < changes["model.1.weight"]["max_abs"] < 0.01
    assert changes["optimizer.state.0.step"]["max_abs"] == 2.0
    assert changes["seen.step"] == {"what": "value", "rank": 0, "part": "pieces", "name": "seen.step", "old": {"value": 7}, "new": {"value": 9}}
    assert "seen.names" not in changes
    said = checkpoint("diff", copied, 8, 10).said
    assert "differ in" in said
    assert "7 → 9" in said

    theirs = {"model": {"0.weight": torch.zeros(2, 2), "0.bias": torch.zeros(300, dtype=torch.bfloat16), "new": torch.zeros(1)}}
    torch.save(theirs, tmp_path / "theirs.pt")
    assert checkpoint("import", tmp_path / "theirs.pt", "--to", copied, "--step", 3).code == 0
    changes = {one["name"]: one for one in checkpoint("diff", copied, 10, 3, "--json").json["changes"]}
    assert [changes[f"model.{name}"]["what"] for name in ("0.weight", "0.bias", "1.weight", "new")] == ["shape", "dtype", "removed", "added"]
    assert changes["model.0.weight"]["new"] == {"dtype": "float32", "shape": [2, 2]}
    assert "float32 [300] → bfloat16 [300]" in checkpoint("diff", copied, 10, 3, "--all").said


# export and import.


@pytest.mark.parametrize("format", ["torch", "safetensors", "dcp"])
def test_export_and_import_say_what_they_did(made: Path, tmp_path: Path, format: str) -> None:
    to, back = tmp_path / "out", tmp_path / "back"
    words = ["export", made, 8, "--to", to, "--format", format]
    assert "step-00000008.g1 is in" in checkpoint(*words).said
    assert "is there already" in refused(*words)
    done = checkpoint(*words, "--force", "--json").json
    assert (done["checkpoint"], done["format"], done["tensors"]) == ("step-00000008.g1", format, 26)
    trust = ["--trust"] if format == "dcp" else []
    done = checkpoint("import", to, "--to", back, "--step", 5, *trust, "--json").json
    assert (done["checkpoint"], done["step"]) == ("step-00000005.g0", 5)
    assert done["pieces"] == (["model"] if format == "safetensors" else ["model", "optimizer", "seen"])
    assert checkpoint("verify", back).code == 0
    said = checkpoint("import", to, "--to", back, *trust).said
    assert "guard(model=…" in said
    assert "goes on from step 8" in said
    assert ("left out: optimizer" in said) is (format == "safetensors")


@pytest.mark.slow
def test_the_program_itself_exports_and_imports_into_a_job(job: JobDirectory, tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    ran = command("checkpoint", "export", "resnet", "--to", out, "--format", "torch", "--json", torch=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["tensors"] == 26
    assert not ran.stderr
    done = checkpoint("import", out, "--to", "resnet", "--json").json
    assert done["checkpoint"] == "step-00000010.g2"
    assert checkpoint("diff", "resnet", "step-00000010.g1", "newest").code == 0, "the same to the last bit"


def test_bad_targets_and_sources_are_refused_with_a_sentence(made: Path, job: JobDirectory, tmp_path: Path) -> None:
    assert "expected" in refused("export", made, "--to", tmp_path / "missing" / "out.pt", "--format", "torch")
    assert "is a directory" in refused("export", made, "--to", tmp_path, "--format", "safetensors")
    assert checkpoint("export", made, "--to", tmp_path / "out", "--format", "onnx").code == 2
    assert "has no rank 1" in refused("export", made, "--to", tmp_path / "out", "--format", "torch", "--rank", 1)
    torch.save({"a": torch.ones(2)}, tmp_path / "in.pt")
    assert "did you mean 'resnet'?; for a new directory give a path: ./resnt" in refused("import", tmp_path / "in.pt", "--to", "resnt")
    assert "is the name of one checkpoint" in refused("import", tmp_path / "in.pt", "--to", tmp_path / "step-00000001.g0")
    assert "is not there" in refused("import", tmp_path / "missing.pt", "--to", tmp_path / "new")
    (tmp_path / "in.pt").write_bytes((tmp_path / "in.pt").read_bytes()[:300])
    assert "may be cut short or damaged" in refused("import", tmp_path / "in.pt", "--to", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_manifest_that_cannot_be_read_is_listed_and_the_next_older_checkpoint_is_the_newest(copied: Path) -> None:
    manifest = copied / "step-00000010.g1" / "manifest.json"
    manifest.unlink()
    manifest.mkdir()
    assert checkpoint("show", copied).said.startswith("step-00000008.g1: step 8")
    rows = checkpoint("list", copied, "--json").json
    assert (rows[1]["status"], rows[1]["because"]) == ("unreadable", "its manifest cannot be read: Is a directory"), "the others are listed all the same"
