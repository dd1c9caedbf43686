"""Which job is meant: by its name, by the beginning of it, and the newest where nothing is said and nothing can be hurt."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from end_to_end.jobs import command

from holdfast.cli.job import known_job
from holdfast.errors import UserError


def made(state: Path, *names: str) -> None:
    """Newest last."""
    for number, name in enumerate(names):
        directory = state / "jobs" / name
        directory.mkdir(parents=True)
        (directory / "journal.db").touch()
        os.utime(directory / "journal.db", (1000.0 + number, 1000.0 + number))


def test_a_job_is_known_by_the_beginning_of_its_name_where_no_other_begins_so(tmp_path: Path) -> None:
    made(tmp_path, "train-1119-a", "train-1119-b", "eval", "eval-2")
    assert known_job(tmp_path, "train-1119-a").job == "train-1119-a"
    assert known_job(tmp_path, "eval").job == "eval", "a whole name goes before the beginning of another"
    assert known_job(tmp_path, "eval-").job == "eval-2"
    with pytest.raises(UserError, match="2 jobs begin with 'train': train-1119-b, train-1119-a; give more of the name"):
        known_job(tmp_path, "train")
    with pytest.raises(UserError, match="there is no job 'evil'; did you mean 'eval'"):
        known_job(tmp_path, "evil")


def test_only_who_asks_for_it_gets_the_newest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no job was ever started"):
        known_job(tmp_path, "", newest=True)
    made(tmp_path, "old", "new")
    assert known_job(tmp_path, "", newest=True).job == "new"
    with pytest.raises(UserError, match="there is no job ''"):
        known_job(tmp_path, "")


def test_the_commands_that_look_take_the_newest_and_those_that_act_take_a_beginning_only(state: Path) -> None:
    script = state / "hello.py"
    script.write_text("print('hello')")
    for name in ("first-run", "second-run"):
        assert command("run", "--state", state, "--name", name, script).returncode == 0
    own = {"HOLDFAST_STATE": str(state)}
    assert json.loads(command("show", "--json", **own).stdout)["job"] == "second-run"
    assert json.loads(command("show", "first", "--json", **own).stdout)["job"] == "first-run"
    assert command("logs", **own).stdout == "hello\n"
    assert command("logs", "first", **own).stdout == "hello\n"
    assert "WorkerExited" in command("replay", **own).stdout
    assert "node-0" in command("nodes", **own).stdout
    assert "No checkpoints in second-run" in command("checkpoint", "list", **own).stdout
    assert "No checkpoints in first-run" in command("checkpoint", "list", "first", **own).stdout
    for verb in (["stop"], ["cordon"], ["chaos"], ["resume"], ["checkpoint", "prune"]):
        assert command(*verb, **own).returncode == 2, f"{verb} could hurt the wrong job"
    assert "job 'first-run' is not running" in command("stop", "first", **own).stderr


def test_the_version_is_said_by_an_option_too() -> None:
    assert command("--version").stdout == command("version").stdout


def test_the_help_has_headings_and_every_command_and_option_stands_under_one() -> None:
    said = command("--help", COLUMNS="100").stdout
    assert all(f"─ {heading} ─" in said for heading in ("Run", "Look", "Act", "Find what is wrong", "Plan and share"))
    assert "─ Other ─" not in said, "a new command needs a heading in cli/panels.py"
    assert "─ Commands ─" not in said
    options = command("run", "--help", COLUMNS="100").stdout
    assert all(f"─ {heading} ─" in options for heading in ("What is run", "Saving", "When something fails", "Who is told"))
    rest = options.partition("─ Options ─")[2].partition("╰")[0]
    assert rest.count("--") == 1, f"only --help has no heading, a new option needs one in cli/panels.py:{rest}"
    assert "nodes" in said
    assert "all on this machine" in " ".join(options.replace("│", " ").split())
