"""Run pytest as somebody who is not root: `python tests/as_user.py [pytest's arguments]`.

Nothing in Holdfast may need root, and a test that runs as root proves nothing about that. So when root runs the tests, those marked
`unprivileged` run a second time under another uid, in a private copy of the tree with a home and an environment of their own.

Exits 0 and says why when there is nothing to do: for a user who is not root (all tests run unprivileged anyway), and where no interpreter
can be reached by others (one that lives below a closed home directory). tests/test_project.py counts the latter as a skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

UID = GID = 65534  # "nobody" wherever there is a nobody, and in no group that could open anything.
PACKAGES = Path(next(path for path in sys.path if path.endswith("site-packages")))
ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "bench-results", "build", "dist", "shared")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
NEEDED = f"import sys; sys.path.append({str(PACKAGES)!r}); import pytest, hypothesis; sys.exit('{VERSION}' != '%d.%d' % sys.version_info[:2])"


def main(arguments: list[str]) -> int:
    if os.getuid() != 0:
        print(f"holdfast: uid {os.getuid()} is not root, so nothing has to be run a second time")
        return 0
    interpreter = reachable_interpreter()
    if interpreter is None:
        print(f"holdfast: SKIPPED the tests under another uid: {unreachable()}")
        return 0
    with tempfile.TemporaryDirectory(prefix="hf-user-") as name:
        return run_in(Path(name), interpreter, arguments)


def run_in(directory: Path, interpreter: str, arguments: list[str]) -> int:
    """Copy the tree, make the environment, run. The copy spares us the question whether the checkout can be read by others."""
    tree, home, temporary = directory / "tree", directory / "home", directory / "tmp"
    shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
    for made in (home, temporary):
        made.mkdir()
    hand_over(directory)
    environment = make_environment(directory, interpreter)
    print(f"holdfast: the tests that must pass for any user, now as uid {UID} with {interpreter}", flush=True)
    command = [str(directory / "venv/bin/python"), "tests/twice.py", *arguments]
    return subprocess.run(command, cwd=tree, env=environment, check=False, **as_nobody()).returncode


def make_environment(directory: Path, interpreter: str) -> dict[str, str]:
    """A virtual environment of the user's own, which takes its packages from ours and Holdfast from the copy."""
    venv = directory / "venv"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "XDG_", "SUDO_"))}
    environment |= {"HOME": str(directory / "home"), "TMPDIR": str(directory / "tmp"), "USER": "nobody", "LOGNAME": "nobody"}
    environment |= {"PATH": f"{venv}/bin:{os.environ['PATH']}", "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "tmp/hypothesis")}
    subprocess.run([interpreter, "-m", "venv", "--without-pip", str(venv)], env=environment, cwd=directory, check=True, timeout=60, **as_nobody())
    (venv / f"lib/python{VERSION}/site-packages/holdfast.pth").write_text(f"{directory}/tree/src\n{PACKAGES}\n")
    script = venv / "bin/holdfast"
    script.write_text(f"#!{venv}/bin/python\nimport sys\nfrom holdfast.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    return environment


def hand_over(directory: Path) -> None:
    for parent, _, files in os.walk(directory):
        for path in (parent, *(os.path.join(parent, file) for file in files)):
            os.chown(path, UID, GID, follow_symlinks=False)


def reachable_interpreter() -> str | None:
    """Ours if others can run it, else another one of the same version, which can load the same compiled packages."""
    candidates = (os.path.realpath(sys.executable), f"/usr/bin/python{VERSION}", f"/usr/local/bin/python{VERSION}")
    return next((candidate for candidate in candidates if can_be_run(candidate)), None)


def can_be_run(interpreter: str) -> bool:
    try:
        return subprocess.run([interpreter, "-c", NEEDED], cwd="/", env={}, capture_output=True, check=False, timeout=60, **as_nobody()).returncode == 0
    except OSError:  # It is not there, or not for others.
        return False


def unreachable() -> str:
    return (
        f"uid {UID} can run neither {os.path.realpath(sys.executable)} nor another Python {VERSION} with the packages in {PACKAGES}. "
        "Make the environment with an interpreter and in a place that others can read, for instance: make PYTHON=/usr/bin/python3 VENV=/opt/holdfast-venv test"
    )


def as_nobody() -> dict[str, Any]:
    return {"user": UID, "group": GID, "extra_groups": [], "umask": 0o022}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
