"""The project keeps its promises: a small public face, a light install, no trace of the machine it was made on, and a page for every room."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import as_user
import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "holdfast"
ROOMS = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PUBLIC = ["Sampler", "Stream", "__version__", "gauge", "guard", "rejoin", "tune"]
LIGHT = {"msgspec", "numpy", "nvidia-ml-py", "psutil", "pyyaml", "rich", "sqlalchemy", "typer", "xxhash"}
IMPORTED_AS = {"PyYAML": "yaml", "nvidia-ml-py": "pynvml"}
HEAVY = {"msgspec", "numpy", "psutil", "rich", "torch", "typer"}
IMPORT_MS_MAX = 50.0
DEFAULT_INSTALL_BYTES_MAX = 120 * 1000 * 1000

# What would tell where this was made, or work only there. The words are put together here so that this file does not find itself.
TRACES = {
    "a home directory": re.compile(r"/(?:root|home/(?!me/|user/)[a-z][\w.-]*|Users/[A-Za-z][\w.-]*)/"),  # An example may say /home/me/.
    "a package registry's address": re.compile(r"https?://[^\s\"'<>]*(?:pypi" + r"\.org|python" + "hosted|artifactory|/sim" + "ple)"),
    "a folder of packages": re.compile("file:" + "///|/opt/" + "wheels|/opt/" + "pypi"),
}
NOT_OURS = {".git", ".venv", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".import_linter_cache", "__pycache__", "bench-results", "shared"}


def files_of_the_tree() -> list[Path]:
    """What git would commit; without git, what lies here and was not made by a tool."""
    ask = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(ask, cwd=ROOT, capture_output=True, check=False, timeout=30) if shutil.which("git") and (ROOT / ".git").exists() else None
    if listed is not None and listed.returncode == 0:
        return sorted(path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file())
    return sorted(path for path in ROOT.rglob("*") if path.is_file() and not NOT_OURS & set(path.relative_to(ROOT).parts))


def fresh_python(code: str) -> str:
    """What a new interpreter prints, with nothing inherited that would change what it imports."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOLDFAST"))}
    environment["PYTHONPATH"] = str(SOURCE.parent)
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_public_names_are_exactly_these_and_sorted() -> None:
    import holdfast

    assert list(holdfast.__all__) == sorted(PUBLIC)
    assert all(hasattr(holdfast, name) for name in PUBLIC)


def test_the_version_is_the_one_of_the_project() -> None:
    import holdfast

    assert holdfast.__version__ == PROJECT["version"]


def test_importing_holdfast_brings_in_nothing_heavy() -> None:
    loaded = set(fresh_python("import sys, holdfast; print(*sorted({name.partition('.')[0] for name in sys.modules}))").split())
    assert not loaded & HEAVY


def test_importing_holdfast_is_quick() -> None:
    # The best of several, because other work on the machine can only make it slower.
    code = "import time; begin = time.perf_counter(); import holdfast; print((time.perf_counter() - begin) * 1000)"
    took = min(float(fresh_python(code)) for _ in range(5))
    assert took < IMPORT_MS_MAX


def test_the_default_install_stays_light() -> None:
    names = {re.split(r"[\s<>=!~\[;]", requirement, maxsplit=1)[0].lower() for requirement in PROJECT["dependencies"]}
    assert names <= LIGHT


@pytest.mark.slow
def test_the_default_install_is_small_and_works_by_itself(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
    packages = next((venv / "lib").glob("python*/site-packages"))
    before = size_bytes(packages)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile", "-c", str(ROOT / "constraints.txt"), str(ROOT)]
    subprocess.run(pip, check=True, timeout=600)
    assert size_bytes(packages) - before < DEFAULT_INSTALL_BYTES_MAX
    said = subprocess.run([str(venv / "bin/holdfast"), "version"], check=True, capture_output=True, text=True, timeout=60, cwd=tmp_path).stdout
    assert PROJECT["version"] in said


def size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    imported = {name for path in SOURCE.rglob("*.py") for name in imports_of(path)} - set(sys.stdlib_module_names) - {"holdfast"}
    always = {re.split(r"[\s<>=!~\[;]", requirement, maxsplit=1)[0] for requirement in PROJECT["dependencies"]}
    always = {IMPORTED_AS.get(name, name) for name in always}
    extras = {re.split(r"[\s<>=!~\[;]", one, maxsplit=1)[0] for group, some in PROJECT["optional-dependencies"].items() if group != "dev" for one in some}
    assert always <= imported, f"declared and never imported: {sorted(always - imported)}"
    assert imported <= always | extras, f"imported and not declared: {sorted(imported - always - extras)}"


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_room_explains_itself(room: Path) -> None:
    page = room / "README.md"
    assert page.is_file(), f"src/holdfast/{room.name}/README.md is missing: it defines the room's words before its code, and draws its flow"
    assert len(page.read_text().split()) > 30


def test_the_readme_names_what_a_newcomer_needs() -> None:
    text = (ROOT / "README.md").read_text()
    missing = [word for word in ("make demo", "make test", "make bench", "holdfast run", "import holdfast", "docs/", "Apache") if word not in text]
    assert not missing


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT / "benchmarks")))
def test_what_a_benchmark_takes_from_holdfast_is_there(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "holdfast":
            module = importlib.import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}"), f"{node.module} has no {name.name}"


def test_every_make_target_is_explained_and_phony() -> None:
    text = (ROOT / "Makefile").read_text()
    explained = set(re.findall(r"^([a-z-]+):.*##", text, flags=re.MULTILINE))
    phony = set(re.search(r"^\.PHONY:(.*)$", text, flags=re.MULTILINE)[1].split())  # type: ignore[index]
    assert explained == phony


def test_the_tree_holds_no_trace_of_the_machine_it_was_made_on() -> None:
    found = []
    for path in files_of_the_tree():
        text = path.read_bytes().decode(errors="replace")
        found += [f"{path.relative_to(ROOT)}: {what}: {seen[0]}" for what, pattern in TRACES.items() if (seen := pattern.search(text))]
    assert not found, "\n".join(found)


def test_continuous_integration_runs_make_test_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[-1] == "exec make test"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_what_must_pass_for_any_user_can_be_run_as_another_one() -> None:
    if os.getuid() == 0 and as_user.reachable_interpreter() is None:
        pytest.skip(as_user.unreachable())
