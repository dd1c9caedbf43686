"""Jobs under `holdfast run`: start one, read its journal while it runs, find its processes, take a node away from it."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from harness.processes import Launched, Process, kill, wait_until
from holdfast.chaos.steps import StepLogs
from holdfast.control.journal import Entry, Journal, JournalUnusable
from holdfast.domain.incident import Incident
from holdfast.domain.state import State
from holdfast.launch.groups import homes
from holdfast.launch.layout import JobDirectory

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@contextlib.contextmanager
def scratch_directory(*, keep: bool) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    try:
        yield path
    finally:
        if keep:
            print(f"kept: {path}")
        else:
            shutil.rmtree(path, ignore_errors=True)


class Gang(Launched):
    """Ranks of one script under some launcher. The script's first argument is the directory for its step logs."""

    def __init__(self, directory: Path, name: str, command: Sequence[str], *, world_size: int, env: Mapping[str, str] | None = None) -> None:
        self.name, self.scratch, self.world_size = name, directory, world_size
        self.scratch.mkdir(parents=True)
        self.steps = StepLogs(self.scratch, world_size)
        super().__init__(command, log=self.scratch / "launch.log", cwd=self.scratch, env=env)

    def __enter__(self) -> Self:
        return self

    def wait_for_steps(self, count: int, *, old: set[int] | None = None, within_s: float = 120.0) -> None:
        """Until every rank has finished `count` steps in processes that are not among `old`."""
        before = old or set()
        wait_until(
            lambda: self.steps.fewest_since(before) >= count or self.process.poll() is not None,
            within_s=within_s, what=f"{count} steps of every rank of {self.name}",
        )  # fmt: skip
        if self.steps.fewest_since(before) < count:
            raise RuntimeError(f"{self.name} left with code {self.process.returncode} before every rank made {count} steps; it said:\n{self.last_words()}")


class Torchrun(Gang):
    """The peer, as it comes or with variables of its own."""

    def __init__(self, scratch: Path, name: str, script: str, *arguments: str, nproc: int, env: Mapping[str, str] | None = None) -> None:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc), "--max-restarts", "10"]
        directory = scratch / name
        super().__init__(directory, name, [*launcher, str(SCRIPTS / script), str(directory), *arguments], world_size=nproc, env=env)


class Job(Gang):
    """The same under `holdfast run`."""

    def __init__(
        self, scratch: Path, name: str, script: str, *arguments: str, nproc: int = 1, nodes: int = 1, spares: int = 0, options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.ranks_per_node = nproc
        self.directory = JobDirectory(scratch / "state" / "jobs" / name)
        self.temporary = Path(tempfile.mkdtemp(prefix="holdfast-tmp-"))  # Of its own, so that all that is left in it is the job's; short, for sockets.
        directory = scratch / name
        command = [
            sys.executable, "-m", "holdfast.cli", "run", "--state", str(scratch / "state"), "--name", name, "--nproc", str(nproc), "--nodes", str(nodes),
            "--spares", str(spares), "--max-restarts", "100000", "--stop-grace-s", "3", *options, str(SCRIPTS / script), str(directory), *arguments,
        ]  # fmt: skip
        # torch keeps a cache among the temporary files, for whoever comes next.
        self.surroundings = {"TMPDIR": str(self.temporary), "TORCHINDUCTOR_CACHE_DIR": str(directory / "cache"), **(env or {})}
        super().__init__(directory, name, command, world_size=nproc * nodes, env=self.surroundings)

    def end(self, *, patience_s: float = 30.0) -> int:
        killed = super().end(patience_s=patience_s)
        shutil.rmtree(self.temporary, ignore_errors=True)
        return killed

    def left(self) -> list[str]:
        """Also what its nodes had, sockets, shared memory, control groups and temporary files."""
        return [*super().left(), *(str(path) for path in self._files_left())]

    def _files_left(self) -> list[Path]:
        directory, prefix = self.directory, self.directory.shared_memory_prefix
        own = [path for path in (directory.nodes, directory.control_socket, *directory.path.glob("*.sock")) if path.exists()]
        groups = {path for home in homes().values() for path in home.directory.glob(f"{prefix}*")}
        return [*own, *Path("/dev/shm").glob(f"{prefix}*"), *sorted(groups), *self.temporary.iterdir()]

    # What the journal says. It is read beside control, which is not asked and not slowed down.

    def state(self) -> State | None:
        """As of now; None before anything was written down."""
        with self._journal() as journal:
            return journal.load().state if journal is not None else None

    def entries(self) -> list[Entry]:
        with self._journal() as journal:
            return list(journal.entries()) if journal is not None else []

    def incidents(self) -> list[Incident]:
        state = self.state()
        return state.incidents if state is not None else []

    @contextlib.contextmanager
    def _journal(self) -> Iterator[Journal | None]:
        journal = None
        with contextlib.suppress(JournalUnusable):  # Not made yet.
            journal = Journal(self.directory.journal, read_only=True)
        try:
            yield journal
        finally:
            if journal is not None:
                journal.close()

    def wait_for_incident(self, after: int, *, within_s: float) -> Incident:
        """The first incident beyond the first `after` ones."""
        found: list[Incident] = wait_until(lambda: self.incidents()[after:], within_s=within_s, what=f"an incident of job {self.name}", every_s=0.1)
        return found[0]

    def wait_for_close(self, id: int, *, within_s: float = 120.0) -> Incident:
        """The incident once it is over."""
        return wait_until(  # type: ignore[no-any-return]
            lambda: next((one for one in self.incidents() if one.id == id and not one.is_open), None),
            within_s=within_s, what=f"the end of incident {id} of job {self.name}", every_s=0.1,
        )  # fmt: skip

    # Its processes.

    def control_pid(self) -> int | None:
        found = self.find("holdfast.control")
        return found[0].pid if found else None

    def agents(self) -> dict[str, Process]:
        """By node."""
        found = {}
        for one in self.find("holdfast.agent", str(self.directory.nodes)):
            found[one.command.partition(f"{self.directory.nodes}/")[2].partition("/")[0]] = one
        return found

    def lose_node(self, node: str, workers: Sequence[int]) -> bytes:
        """Take a node away as a power cut does: its directories first, so that nobody starts its agent again, then every process of it. With what it gives
        back `bring_back` makes it anew."""
        spec, processes = self.directory.node_spec(node).read_bytes(), self.processes()
        parents = {one.parent for one in processes if one.pid in workers}
        gone = [one.pid for one in processes if one.pid in parents or f"{self.directory.nodes / node}/" in f"{one.command}/"]
        shutil.rmtree(self.directory.nodes / node, ignore_errors=True)
        shutil.rmtree(self.directory.node_shared_memory(node), ignore_errors=True)
        for pid in (*gone, *workers):
            kill(pid, signal.SIGKILL)
        return spec

    def bring_back(self, node: str, spec: bytes) -> None:
        """The machine is there again, empty."""
        for path in (self.directory.node_state(node), self.directory.node_scratch(node), self.directory.node_shared_memory(node)):
            path.mkdir(parents=True, mode=0o700, exist_ok=True)
        part = self.directory.node_spec(node).with_suffix(".part")
        part.write_bytes(spec)
        part.rename(self.directory.node_spec(node))
