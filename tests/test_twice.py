"""Who fails twice fails the run; who fails once is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from twice import MOST

TWICE = Path(__file__).with_name("twice.py")
ONCE = "import pathlib\ndef test_{name}():\n    seen = pathlib.Path('{name}.seen')\n    before = seen.exists()\n    seen.touch()\n    assert before\n"
ALWAYS = "def test_{name}():\n    assert False\n"


def run(directory: Path, **tests: str) -> subprocess.CompletedProcess[str]:
    for name, text in tests.items():
        (directory / f"test_{name}.py").write_text(text.format(name=name))
    (directory / "test_good.py").write_text("def test_good():\n    pass\n")
    return subprocess.run([sys.executable, str(TWICE), "-q"], cwd=directory, capture_output=True, text=True, check=False, timeout=120)


def test_a_test_that_fails_once_is_named_and_does_not_fail_the_run(tmp_path: Path) -> None:
    ran = run(tmp_path, moody=ONCE)
    assert ran.returncode == 0, ran.stdout
    assert "UNSTEADY, failed and then passed alone: test_moody.py::test_moody" in ran.stdout


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    ran = run(tmp_path, moody=ONCE, broken=ALWAYS)
    assert ran.returncode == 1
    assert "UNSTEADY" not in ran.stdout


def test_what_cannot_be_collected_fails_the_run_at_once(tmp_path: Path) -> None:
    ran = run(tmp_path, lost="import pathlib\nimport seen_nowhere\n", moody=ONCE)
    assert ran.returncode != 0
    assert "once more" not in ran.stdout


def test_many_failures_are_not_asked_again(tmp_path: Path) -> None:
    ran = run(tmp_path, **{f"moody_{number}": ONCE for number in range(MOST + 1)})
    assert ran.returncode == 1
    assert f"{MOST + 1} tests failed, which is more than chance makes" in ran.stdout
