"""A suite under another launcher: one is made up here that starts all ranks again when one of them exits, and sees nothing else, as torchrun does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.agent import tree
from holdfast.chaos import foreign
from holdfast.errors import UserError

LAUNCHER = """
import os, subprocess, sys, time
count, script = int(sys.argv[sys.argv.index("--nproc-per-node") + 1]), sys.argv[sys.argv.index("--max-restarts") + 2:]
while True:
    ranks = [subprocess.Popen([sys.executable, *script], env={**os.environ, "RANK": str(rank)}) for rank in range(count)]
    while all(rank.poll() is None for rank in ranks):
        time.sleep(0.01)
    for rank in ranks:
        rank.kill()
        rank.wait()
"""
SCRIPT = """
import time
from holdfast.chaos.listen import Listener
orders = Listener()
for step in range(1_000_000):
    orders.listen(step)
    time.sleep(0.005)
"""


def test_what_ends_a_rank_is_survived_and_what_hangs_it_is_not_and_nothing_counts_as_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_launcher.py").write_text(LAUNCHER)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(Path(holdfast.__file__).parents[1]))))
    monkeypatch.setattr(foreign, "LAUNCHERS", {"made up": "made_up_launcher"})
    monkeypatch.setattr(foreign, "KEYS", ("worker_killed", "rank_asleep", "exception"))
    monkeypatch.setattr(foreign, "_BACK_S", 5.0)
    said: list[str] = []
    done = foreign.run_suite("made up", [str(tmp_path / "script.py")], ranks=2, scratch=tmp_path, seed=1, say=said.append)
    assert {one.fault: one.recovered for one in done.tried} == {"worker_killed": True, "rank_asleep": False, "exception": True}
    assert not any(one.found for one in done.tried)
    assert all((one.lost_s is not None) == one.recovered for one in done.tried)
    assert said.count("storm: not survived") == 1


def test_a_script_that_comes_to_its_end_says_nothing_against_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_launcher.py").write_text(LAUNCHER.replace("while True:", "for again in range(2):"))
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(Path(holdfast.__file__).parents[1]))))
    monkeypatch.setattr(foreign, "LAUNCHERS", {"made up": "made_up_launcher"})
    monkeypatch.setattr(foreign, "KEYS", ("worker_killed", "exception"))
    with pytest.raises(UserError, match=r"came to its end at step [0-9]+, under exception"):
        foreign.run_suite("made up", [str(tmp_path / "script.py")], ranks=2, scratch=tmp_path, seed=1, say=lambda text: None)


KILLED = """
import sys
from pathlib import Path
from holdfast.chaos import foreign
foreign.LAUNCHERS = {"made up": "made_up_launcher"}
foreign.run_suite("made up", [sys.argv[1]], ranks=2, scratch=Path(sys.argv[2]), seed=1, say=lambda text: print(text, flush=True))
"""


def test_when_the_suite_is_killed_the_launcher_and_its_ranks_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_launcher.py").write_text(LAUNCHER)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(Path(holdfast.__file__).parents[1]))))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "script.py"), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as suite:
        assert suite.stdout is not None
        assert suite.stdout.readline().startswith(b"storm: ")
        deadline = time.monotonic() + 30.0
        while len(below := [one.pid for one in tree.descendants(suite.pid)]) < 3:  # The launcher and two ranks, one of which may just have been struck.
            assert time.monotonic() < deadline
            time.sleep(0.01)
        suite.kill()
    while any(tree.read(pid) is not None for pid in below):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_launcher_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--launcher is one of torchrun, not 'catapult'"):
        foreign.run_suite("catapult", ["x.py"], ranks=1, scratch=tmp_path, seed=0, say=lambda text: None)


def test_a_script_that_is_not_there_is_refused_before_the_launcher_is_started(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no script 'nothing\.py' in .*; with --launcher JOB is a script"):
        foreign.run_suite("torchrun", ["nothing.py"], ranks=1, scratch=tmp_path, seed=0, say=lambda text: None)
    assert not list(tmp_path.iterdir())
