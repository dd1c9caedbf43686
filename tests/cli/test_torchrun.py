"""torchrun's own options, each in each spelling: honoured, passed over with a line, or refused with a sentence. None is unknown."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import typer
from end_to_end.jobs import command
from torch.distributed.run import get_args_parser

from holdfast.cli.starting import run
from holdfast.cli.torchrun import AsTorchrun
from holdfast.errors import UserError

ACTIONS = {action.option_strings[0]: action for action in get_args_parser()._actions if action.option_strings and action.dest != "help"}
HONOURED: dict[str, tuple[str, Any]] = {  # The option, a value, and what it becomes.
    "--nnodes": ("2:4", ("nodes", "2:4")), "--nproc-per-node": ("3", ("nproc", "3")), "--max-restarts": ("7", ("max_restarts", 7)),
    "-m": ("", ("module", True)), "--no-python": ("", ("no_python", True)), "--shutdown-timeout": ("12", ("stop_grace_s", 12.0)),
    "--standalone": ("", ("script", "train.py")),
}  # fmt: skip
PASSED_OVER = {
    "--rdzv-backend": "c10d", "--rdzv-endpoint": "localhost:29400", "--rdzv-id": "5", "--rdzv-conf": "timeout=900", "--node-rank": "0",
    "--master-addr": "127.0.0.1", "--master-port": "29501", "--local-addr": "127.0.0.1", "--monitor-interval": "0.1", "--start-method": "spawn",
    "--run-path": "", "--role": "trainer", "--log-dir": "logs", "-r": "3", "-t": "0:1,1:2", "--local-ranks-filter": "0",
    "--event-log-handler": "null", "--logs-specs": "default", "--signals-to-handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
}  # fmt: skip
REFUSED = {
    "--node-rank": "1", "--master-addr": "192.0.2.1", "--rdzv-endpoint": "192.0.2.1:29400", "--local-addr": "192.0.2.1",
    "--duplicate-stdout-filters": "loss", "--duplicate-stderr-filters": "loss", "--event-log-handler": "mine", "--logs-specs": "mine",
    "--numa-binding": "node", "--signals-to-handle": "SIGUSR1", "--virtual-local-rank": "",
}  # fmt: skip


def parsed(*given: str) -> dict[str, Any]:
    app = typer.Typer()
    app.command(cls=AsTorchrun, context_settings={"allow_interspersed_args": False})(run)
    return dict(typer.main.get_command(app).make_context("run", [*given, "train.py"]).params)


def spellings(option: str, value: str) -> list[list[str]]:
    """As one types it: with dashes or underscores, the value behind an equals sign or a space."""
    names = [option, *ACTIONS[option].option_strings]
    names += ["--" + name[2:].replace("-", "_") for name in names if name.startswith("--")]
    found = []
    for name in dict.fromkeys(names):
        found += [[name, value], [f"{name}={value}" if name.startswith("--") else name + value]] if value else [[name]]
    return found


def test_there_is_a_row_for_every_option_of_torchrun() -> None:
    assert set(ACTIONS) == {*HONOURED, *PASSED_OVER, *REFUSED}


@pytest.mark.parametrize("option", ACTIONS)
def test_a_row_gives_a_value_just_where_torchrun_takes_one(option: str) -> None:
    takes = ACTIONS[option].nargs != 0
    for value in (rows[option][0] if rows is HONOURED else rows[option] for rows in (HONOURED, PASSED_OVER, REFUSED) if option in rows):
        assert bool(value) == takes


@pytest.mark.parametrize("option", HONOURED)
def test_what_means_the_same_here_is_honoured(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    value, (name, becomes) = HONOURED[option]
    for given in spellings(option, value):
        assert parsed(*given)[name] == becomes, given
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("option", PASSED_OVER)
def test_what_changes_nothing_on_one_machine_is_passed_over_with_a_line_that_says_so(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for given in spellings(option, PASSED_OVER[option]):
        assert parsed(*given)["script"] == "train.py"
        said = capsys.readouterr().err
        assert said.count("\n") == 1, given
        assert said.startswith("holdfast: passed over, since it changes nothing here: --"), given


@pytest.mark.parametrize("option", REFUSED)
def test_what_cannot_be_honoured_is_refused_with_a_sentence(option: str) -> None:
    for given in spellings(option, REFUSED[option]):
        with pytest.raises(UserError, match=r"^--"):
            parsed(*given)


def test_a_launch_on_several_machines_is_refused_and_one_on_this_machine_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    here = socket.gethostname()
    for given in (["--rdzv-endpoint", f"{here}:29400"], ["--node-rank", "0"], ["--master-addr", here]):
        with pytest.raises(UserError, match="Holdfast runs on one machine for now"):
            parsed("--nnodes", "2", *given)
        assert parsed("--nnodes", "1", *given)["nodes"] == "1"
    assert parsed("--nnodes", "2", "--rdzv-endpoint", "localhost:29400")["nodes"] == "2"
    assert parsed("--nnodes", "1", "--master-addr", "[127.0.0.5]")["nodes"] == "1"
    assert capsys.readouterr().err.count("\n") == 5


def test_a_line_that_was_written_for_torchrun_runs_and_is_told_of_once(state: Path) -> None:
    script = state / "train.py"
    script.write_text("import os, sys; print(os.environ['WORLD_SIZE'], sys.argv[1:])")
    line = ["--nnodes=1", "--node_rank=0", "--nproc_per_node=2", "--master_addr=127.0.0.1", "--master_port", "29501"]
    line += ["--log-dir=logs", "--redirects", "3", "--tee", "3"]
    ran = command("run", "--state", state, *line, script, "--node_rank=3")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "2 ['--node_rank=3']\n", "what follows the script is its own"
    assert ran.stderr.count("passed over") == 1
    assert "each rank's output is kept with the job: `holdfast logs JOB --rank N`" in ran.stderr


@pytest.mark.parametrize(("ranks", "threads"), [(1, "unset"), (2, "1")])
def test_cores_are_divided_among_several_ranks_and_left_to_one_as_under_torchrun(
    state: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, threads: str
) -> None:
    script = state / "train.py"
    script.write_text("import os; print(os.environ.get('OMP_NUM_THREADS', 'unset'))")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert command("run", "--state", state, "--nproc", ranks, script).stdout == f"{threads}\n"
