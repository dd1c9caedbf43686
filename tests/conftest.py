"""What every test gets: a private state directory, a seed it can print, and somebody who looks whether it cleaned up.

Fixtures    `state`          an empty directory of the test's own, which HOLDFAST_STATE points to
            `seed`           this run's seed, printed first and in the closing summary; HOLDFAST_SEED repeats a run
            `soak_seconds`   how long a soaking test may go on
            `leaves_nothing` used by every test: processes, shared memory and sockets left behind fail it
"""

from __future__ import annotations

import datetime
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import leftovers
import pytest

from holdfast.launch.namespaces import own_shared_memory

# Two shared cores make a property's running time mean nothing; the blob in a failure repeats the example.
hypothesis.settings.register_profile("holdfast", deadline=None, print_blob=True)
hypothesis.settings.load_profile("holdfast")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast")
    group.addoption("--soak-seconds", type=float, default=600.0, help="how long each soaking test goes on at most (default: %(default)s)")


def pytest_configure(config: pytest.Config) -> None:
    """Of several runners at once each has shared memory of its own, or it would be asked for what a test of another one left there."""
    if hasattr(config, "workerinput") and not own_shared_memory():
        raise pytest.UsageError("tests run side by side only where each runner may have shared memory of its own, which root may: leave out -n")


def seed_of_this_run() -> int:
    """HOLDFAST_SEED, or today's date: everyone soaks the same slice on one day, and another one on the next."""
    given = os.environ.get("HOLDFAST_SEED", "")
    if not given:
        return int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))
    if not given.isdecimal():
        raise pytest.UsageError(f"HOLDFAST_SEED is {given!r}; expected a whole number such as 20260101. Set one, or unset it for a seed made from the date.")
    return int(given)


def pytest_report_header(config: pytest.Config) -> str:
    return f"holdfast: seed {seed_of_this_run()} (HOLDFAST_SEED=… repeats a run), uid {os.getuid()}, soak at most {config.getoption('soak_seconds'):g} s"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Soak last, so that a plain mistake is not found after minutes of faults; skip what needs root for others."""
    items.sort(key=lambda item: item.get_closest_marker("soak") is not None)
    if os.getuid() != 0:
        for item in items:
            if item.get_closest_marker("root") is not None:
                item.add_marker(pytest.mark.skip(reason="needs root"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the skips by reason, so that a skip is never mistaken for a pass, and say the seed again beside any failure."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"holdfast: skipped {count}: {reason}")
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"holdfast: to repeat, run with HOLDFAST_SEED={seed_of_this_run()}")


@pytest.fixture(scope="session")
def seed() -> int:
    return seed_of_this_run()


@pytest.fixture
def soak_seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("soak_seconds"))


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private state directory with a short name: the path of a Unix socket may have 107 bytes, and pytest's own names use them up."""
    directory = Path(tempfile.mkdtemp(prefix="hf-"))
    monkeypatch.setenv("HOLDFAST_STATE", str(directory))
    monkeypatch.setenv("XDG_STATE_HOME", str(directory / "xdg"))
    yield directory
    sockets = leftovers.sockets_under(directory)
    shutil.rmtree(directory)
    assert not sockets, f"the test left {len(sockets)} socket files behind: {', '.join(sockets)}. Whoever binds a socket must unlink it."


@pytest.fixture(scope="session", autouse=True)
def session_leaves_nothing() -> Iterator[None]:
    """The same for what fixtures of a wider scope started."""
    yield from leftovers.watch(mark=f"{os.getpid()}")


@pytest.fixture(autouse=True)
def leaves_nothing(session_leaves_nothing: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves processes or shared memory behind, and end what it left so that the next test is not disturbed."""
    yield from leftovers.watch(mark=f"{os.getpid()}/{request.node.name}")
