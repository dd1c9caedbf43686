"""The warm parent, driven over its socket as an agent would, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast.agent.warm as warm_module
from holdfast.agent import tree
from holdfast.agent.warm import Output

WARM = Path(warm_module.__file__)
SCRIPTS = Path(__file__).parent / "scripts"
WAIT_S = 30.0

pytestmark = pytest.mark.unprivileged


class Warm:
    """A warm parent and a connection to it."""

    def __init__(self, directory: Path, *options: str, env: dict[str, str] | None = None, wait: bool = True) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.path = directory / "socket" / "warm"
        self.options = options
        self._orders = 0
        self.seen: list[dict[str, Any]] = []
        environment = {**os.environ, "HOLDFAST_JOB": f"job-{os.getpid()}-{id(self)}", "HOLDFAST_NODE": "node-0", **(env or {})}
        self.job = environment["HOLDFAST_JOB"]
        command = [sys.executable, "-u", str(WARM), "--socket", str(self.path), "--state", str(self.state), *options]
        self.log = directory / "warm.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.connect(wait=wait)

    def connect(self, *, wait: bool = True) -> None:
        self._buffer = b""
        until = time.monotonic() + WAIT_S
        while True:
            self._socket = socket.socket(socket.AF_UNIX)
            try:
                self._socket.connect(str(self.path))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                self._socket.close()
                assert time.monotonic() < until, f"no warm parent came up: {self.log.read_text()}"
                assert self.process.poll() is None, f"the warm parent ended: {self.log.read_text()}"
                time.sleep(0.01)
        if wait:
            self.ready = self.wait("ready")

    def say(self, do: str, **fields: Any) -> None:
        self._socket.sendall(json.dumps({"do": do, **fields}).encode() + b"\n")

    def say_raw(self, line: bytes) -> None:
        self._socket.sendall(line)

    def fork(self, *argv: str, generation: int = 1, rank: int = 0, role: str = "worker", **fields: Any) -> str:
        self._orders += 1
        order = f"order-{os.getpid()}-{self._orders}"
        self.say("fork", **{
            "id": order, "generation": generation, "rank": rank, "role": role, "how": "fork", "argv": list(argv), "module": False, "python": True,
            "env": {"HOLDFAST_GENERATION": str(generation)}, "cwd": str(self.directory), "log": str(self.directory / f"rank{rank}.log"),
            "stacks": str(self.directory / f"rank{rank}.stacks"), "error": str(self.directory / f"rank{rank}.error"), **fields,
        })  # fmt: skip
        return order

    def run(self, *argv: str, **fields: Any) -> dict[str, Any]:
        """Fork one worker and wait for its end."""
        order = self.fork(*argv, **fields)
        return self.wait("exited", id=order)

    def stop(self, generation: int = 1, *, grace_s: float = 5.0, how: str = "term") -> dict[str, Any]:
        self._orders += 1
        self.say("stop", id=f"stop-{self._orders}", generation=generation, grace_s=grace_s, how=how)
        return self.wait("stopped", id=f"stop-{self._orders}")

    def next(self, wait_s: float = WAIT_S) -> dict[str, Any] | None:
        """The next thing told; None when nothing comes in time."""
        until = time.monotonic() + wait_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._socket], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the warm parent hung up")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        self.seen.append(told)
        return told

    def wait(self, told: str, *, within_s: float = WAIT_S, **fields: Any) -> dict[str, Any]:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            message = self.next(until - time.monotonic())
            if message is not None and message["told"] == told and all(message.get(name) == value for name, value in fields.items()):
                return message
            assert message is None or message["told"] != "refused" or told == "refused", message
        raise AssertionError(f"never told {told} {fields}; seen: {self.seen[-5:]}; log: {self.log.read_text()}")

    def text(self, rank: int = 0) -> str:
        path = self.directory / f"rank{rank}.log"
        return path.read_text() if path.exists() else ""

    def hang_up(self) -> None:
        self._socket.close()

    def close(self) -> None:
        self._socket.close()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Warm]]:
    started: list[Warm] = []

    def begin(*options: str, **fields: Any) -> Warm:
        directory = tmp_path / f"warm{len(started)}"
        directory.mkdir()
        started.append(Warm(directory, *options, **fields))
        return started[-1]

    yield begin
    for warm in started:
        warm.close()


@pytest.fixture
def cold(start: Callable[..., Warm]) -> Warm:
    """Imports nothing, so it is there at once; it forks all the same."""
    return start("--no-warm", "--stop-grace-s", "1")


def script(directory: Path, text: str, name: str = "script.py") -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def until(condition: Callable[[], Any], wait_s: float = WAIT_S) -> Any:
    end = time.monotonic() + wait_s
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)


def test_a_forked_worker_runs_the_script_and_its_end_is_told(cold: Warm) -> None:
    ended = cold.run(script(cold.directory, "print('hello'); raise SystemExit(3)"))
    assert (ended["code"], ended["signal"], ended["core"], ended["rank"], ended["role"]) == (3, None, False, 0, "worker")
    assert ended["tail"] == "hello\n" == cold.text()
    assert ended["error"] is None
    recorded = [json.loads(line) for line in (cold.state / "exits.jsonl").read_text().splitlines()]
    assert recorded == [{name: value for name, value in ended.items() if name != "told"}]


def heed_all_signals() -> None:
    """What `nohup` and a shell's `&` ignore is handed down to every child; a worker is not to inherit it, and what it is compared with neither."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("method", ["script", "module"])
def test_a_forked_worker_cannot_tell_that_it_was_forked(cold: Warm, method: str) -> None:
    module = method == "module"
    arguments = ["facts" if module else str(SCRIPTS / "facts.py"), "--multiprocessing", "an argument"]
    fresh_file, forked_file = cold.directory / "fresh.json", cold.directory / "forked.json"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    command = [sys.executable, *(["-m"] if module else []), *arguments]
    with open(cold.directory / "fresh.log", "wb") as log:
        fresh = subprocess.run(
            command, cwd=SCRIPTS, env={**environment, "FACTS": str(fresh_file)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=WAIT_S, check=False,
            preexec_fn=heed_all_signals,
        )
    assert fresh.returncode == 0, (cold.directory / "fresh.log").read_text()
    ended = cold.run(*arguments, module=module, cwd=str(SCRIPTS), env={"FACTS": str(forked_file), "HOLDFAST_GENERATION": "1"})
    assert ended["code"] == 0, ended
    expected, found = json.loads(fresh_file.read_text()), json.loads(forked_file.read_text())
    expected["environ"].pop("FACTS")
    found["environ"].pop("FACTS")
    assert {name: (found[name], value) for name, value in expected.items() if found[name] != value} == {}


ENDINGS = {
    "nothing": "pass",
    "exit": "import sys; sys.exit()",
    "exit_none": "import sys; sys.exit(None)",
    "exit_number": "import sys; sys.exit(5)",
    "exit_large": "import sys; sys.exit(300)",
    "exit_text": "import sys; sys.exit('no such thing')",
    "exit_list": "import sys; sys.exit([1, 2])",
    "exit_now": "import os; os._exit(9)",
    "raise": "def f():\n    raise ValueError('bad')\nf()",
    "raise_chained": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('chained') from error",
    "raise_while_handling": "try:\n    {}['a']\nexcept KeyError:\n    import json\n    json.loads('{')",
    "raise_in_library": "import json\njson.loads('{')",
    "raise_group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "interrupt": "raise KeyboardInterrupt",
    "abort": "import os; os.abort()",
    "kill": "import os; os.kill(os.getpid(), 9)",
    "segfault": "import os; os.kill(os.getpid(), 11)",
    "syntax": "def f(:\n    pass",
    "encoding": "# coding: latin-1\nprint('\u00e9')",
    "hook": "import sys\nsys.excepthook = lambda kind, error, trace: print('hooked', error)\n1 / 0",
    "hook_raises": "import sys\ndef hook(kind, error, trace): raise TypeError('in the hook')\nsys.excepthook = hook\n1 / 0",
    "hook_exits": "import sys\nsys.excepthook = lambda kind, error, trace: sys.exit(4)\n1 / 0",
    "atexit": "import atexit\natexit.register(print, 'at exit')\nprint('body')\nraise SystemExit(2)",
    "thread": "import threading, time\ndef late():\n    time.sleep(0.1)\n    print('late')\nthreading.Thread(target=late).start()\nprint('main')",
    "thread_after_error": "import threading, time\ndef late():\n    time.sleep(0.1)\n    print('late')\nthreading.Thread(target=late).start()\n1 / 0",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\nprint('done')",
    "unflushed": "print('no newline', end='')",
    "finalizer": "class Last:\n    def __del__(self):\n        print('finalized')\nlast = Last()",
    "stderr": "import sys\nsys.stderr.write('to stderr')\nsys.stdout.write('')",
    "main_is_main": "import __main__, sys\nprint(__main__.__dict__ is globals(), sys.modules['__main__'] is __main__)",
    "globals": "print(sorted(globals()))",
    "stdin": "import sys\nprint(repr(sys.stdin.read()))",
    "last_error": "import atexit, sys\natexit.register(lambda: print(sys.last_type, sys.last_value))\n1 / 0",
    "first_file": "print(open('/dev/null').fileno())",
    "annotations": "value: int = 3\nprint(__annotations__)",
    "future": "import warnings\nwarnings.warn('look')",
}


def run_fresh(path: str, directory: Path) -> tuple[int, str]:
    """What `python script.py` does, with both outputs in one pipe, as a worker has them, and shown line by line."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, path], cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=WAIT_S, check=False, errors="replace",
    )  # fmt: skip
    return done.returncode, done.stdout


def test_workers_end_and_speak_as_under_plain_python(cold: Warm) -> None:
    for rank, (name, text) in enumerate(ENDINGS.items()):
        path = cold.directory / f"{name}.py"
        path.write_bytes(text.encode("latin-1"))
        expected = run_fresh(str(path), cold.directory)
        ended = cold.run(str(path), rank=rank)
        code = ended["code"] if ended["signal"] is None else -ended["signal"]
        assert (code, ended["tail"]) == expected, name


def test_a_script_that_is_not_there_is_said_as_python_says_it(cold: Warm) -> None:
    expected = run_fresh("missing.py", cold.directory)
    ended = cold.run("missing.py")
    assert (ended["code"], ended["tail"]) == expected


@pytest.mark.parametrize("kind", ["relative", "link", "directory", "archive"])
def test_scripts_are_found_wherever_python_finds_them(cold: Warm, kind: str) -> None:
    text = "import sys, neighbour\nprint(neighbour.VALUE, sys.argv, sys.path[0], __file__, __name__, __package__, __spec__ and __spec__.name)"
    home = cold.directory / "home"
    home.mkdir()
    (home / "neighbour.py").write_text("VALUE = 1")
    script(home, text, "__main__.py")
    path = {"relative": "home/__main__.py", "link": "link.py", "directory": "home", "archive": "home.zip"}[kind]
    if kind == "link":
        (cold.directory / path).symlink_to(home / "__main__.py")
    if kind == "archive":
        with zipfile.ZipFile(cold.directory / path, "w") as archive:
            for file in home.glob("*.py"):
                archive.write(file, file.name)
    ended = cold.run(path)
    assert (ended["code"], ended["tail"]) == run_fresh(path, cold.directory)
    assert ended["code"] == 0


def test_an_uncaught_exception_leaves_a_note(cold: Warm) -> None:
    ended = cold.run(script(cold.directory, "class Mine(Exception): pass\ndef deep():\n    raise Mine('why it failed')\ndeep()"))
    note = json.loads(ended["error"])
    assert (note["type"], note["message"]) == ("Mine", "why it failed")
    assert note["traceback"][0] == "Traceback (most recent call last):"
    assert "\n".join(note["traceback"]) + "\n" == ended["tail"]
    assert abs(note["at"] - time.time()) < 60


def test_a_note_that_was_there_first_stays_and_an_old_one_goes(cold: Warm) -> None:
    error = cold.directory / "rank0.error"
    error.write_text("of another life")
    assert cold.run(script(cold.directory, "pass"))["error"] is None
    text = f"open({str(error)!r}, 'w').write('written by the script'); 1 / 0"
    assert cold.run(script(cold.directory, text))["error"] == "written by the script"


def test_random_numbers_differ_between_workers(cold: Warm) -> None:
    path = script(cold.directory, "import random, tempfile, uuid\nprint(random.random(), uuid.uuid4(), tempfile.mktemp())")
    said = {value for rank in range(3) for value in cold.run(path, rank=rank)["tail"].split()}
    assert len(said) == 9


def test_the_environment_is_what_c_and_children_see_too(cold: Warm) -> None:
    text = "import ctypes, os, subprocess\ngetenv = ctypes.CDLL(None).getenv\ngetenv.restype = ctypes.c_char_p\n"
    text += "print(getenv(b'MINE'), getenv(b'HOME'), 'HOME' in os.environ)\n"
    text += "print(subprocess.run(['env'], capture_output=True, text=True).stdout.count('MINE=yes'))"
    ended = cold.run(script(cold.directory, text), env={"MINE": "yes", "HOME": None})
    assert ended["tail"] == "b'yes' None False\n1\n"


def test_a_program_and_a_plain_start_are_executed(cold: Warm) -> None:
    shell = cold.run("sh", "-c", "echo $MINE $0; exit 4", "name", python=False, how="exec", env={"MINE": "yes"})
    assert (shell["code"], shell["tail"], shell["how"]) == (4, "yes name\n", "exec")
    path = script(
        cold.directory,
        "import os, signal, sys\nprint(sys.argv[1:], signal.getsignal(signal.SIGINT) is signal.default_int_handler, os.getsid(0) == os.getpid())",
    )
    plain = cold.run(path, "an argument", how="exec")
    assert (plain["code"], plain["tail"]) == (0, "['an argument'] True True\n")
    module = cold.run("this_is_no_module", module=True, how="exec")
    assert (module["code"], "No module named" in module["tail"]) == (1, True)


def test_what_cannot_be_started_says_so_and_ends_with_the_codes_of_a_shell(cold: Warm) -> None:
    missing = cold.run("no-such-program", python=False, how="exec")
    assert (missing["code"], "no such program on the PATH" in missing["tail"]) == (127, True)
    gone = cold.run("./no-such-program", python=False, how="exec")
    assert (gone["code"], "No such file" in gone["tail"]) == (127, True)
    (cold.directory / "plain.txt").write_text("not a program")
    refused = cold.run("./plain.txt", python=False, how="exec")
    assert (refused["code"], "Permission denied" in refused["tail"]) == (126, True)
    lost = cold.run(script(cold.directory, "pass"), cwd="/no/such/directory")
    assert (lost["code"], "/no/such/directory" in lost["tail"]) == (126, True)


def test_a_rank_that_differs_in_what_libraries_read_at_load_time_gets_a_plain_start(cold: Warm) -> None:
    path = script(cold.directory, "import os; print(os.environ['OMP_NUM_THREADS'])")
    order = cold.fork(path, env={"OMP_NUM_THREADS": "3"})
    started = cold.wait("started", id=order)
    assert started["how"] == "exec"
    assert "OMP_NUM_THREADS" in started["because"]
    assert cold.wait("exited", id=order)["tail"] == "3\n"


# Leaves a grandchild behind that has its own session and a parent that is gone, and one with a wiped environment; then does what it is told.
BUSY_FAMILY = """
import os, signal, subprocess, sys, time
def detach(wipe):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if wipe:
                os.execve(sys.executable, [sys.executable, "-c", "import time; print('wiped', flush=True); time.sleep(600)"], {})
            print("detached", flush=True)
            time.sleep(600)
        os._exit(0)
    os.wait()
detach(False)
detach(True)
if os.fork() == 0:
    print("child", flush=True)
    time.sleep(600)
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
"""
FAMILY_SAYS = ("detached", "wiped", "child", "deaf")


def family(warm: Warm, then: str, generation: int = 1, rank: int = 0) -> list[int]:
    """Start such a family, wait until all of it is there, and return all pids."""
    path = script(warm.directory, BUSY_FAMILY + then, f"family{rank}.py")
    warm.fork(path, generation=generation, rank=rank)
    pid = warm.wait("started", rank=rank)["pid"]
    log = warm.directory / f"rank{rank}.log"
    until(lambda: log.exists() and all(word in log.read_text() for word in FAMILY_SAYS))
    below = [process.pid for process in tree.descendants(warm.process.pid)]
    assert pid in below or "leave" in then
    return below


@pytest.mark.parametrize("how", ["term", "kill"])
def test_a_stop_ends_the_whole_family(cold: Warm, how: str) -> None:
    pids = family(cold, "time.sleep(600)")
    assert len(pids) == 5
    stopped = cold.stop(how=how, grace_s=3)
    assert stopped["left"] == []
    assert stopped["seconds"] < 6
    assert not any(map(alive, pids))


def test_a_worker_that_forks_and_leaves_leaves_nothing_after_the_stop(cold: Warm) -> None:
    pids = family(cold, "os._exit(0)  # leave")
    assert cold.wait("exited", rank=0)["code"] == 0
    assert any(map(alive, pids))
    assert cold.stop(how="kill")["left"] == []
    assert not any(map(alive, pids))


def test_a_stop_leaves_other_generations_alone(cold: Warm) -> None:
    family(cold, "time.sleep(600)", generation=1, rank=0)
    cold.fork(
        script(cold.directory, "import os\nif os.fork() == 0:\n    os.setsid()\nprint('here', flush=True)\nimport time; time.sleep(600)"), generation=2, rank=1
    )
    other = cold.wait("started", rank=1)["pid"]
    until(lambda: cold.text(1).count("here") == 2)
    assert cold.stop(1, how="kill")["left"] == []
    left = [process.pid for process in tree.descendants(cold.process.pid)]
    assert other in left
    assert len(left) == 2
    assert cold.stop(2, how="kill")["left"] == []
    assert tree.descendants(cold.process.pid) == []


def test_a_stop_spares_those_who_are_kept_and_they_go_over_to_the_next_generation_with_all_that_is_theirs(cold: Warm) -> None:
    """A worker that lives through two generations is ended with the second, also what it detached in the first."""
    family(cold, "time.sleep(600)", generation=1, rank=0)
    cold.say("list", id="who")
    (who,) = cold.wait("list", id="who")["running"]
    kept = who["pid"]
    lost_text = "import os, time\nprint('up' if os.fork() else 'orphan', flush=True)\ntime.sleep(600)"
    cold.fork(script(cold.directory, lost_text, "lost.py"), generation=1, rank=1)
    lost = cold.wait("started", rank=1)["pid"]
    until(lambda: all(word in cold.text(1) for word in ("orphan", "up")))
    os.kill(lost, signal.SIGKILL)
    cold.wait("exited", rank=1)
    cold.say("stop", id="part", generation=1, how="kill", grace_s=0, keep=[kept])
    assert cold.wait("stopped", id="part")["left"] == []
    assert alive(kept)
    assert len(tree.descendants(cold.process.pid)) == 5, "the family of the kept one is there, and the orphan of the lost one is not"
    cold.say("renew", id="e9", generation=2, places=[{"pid": kept, "rank": 0}])
    assert cold.wait("renewed", id="e9")["pids"] == [kept]
    cold.say("list", id="l")
    (row,) = cold.wait("list", id="l")["running"]
    assert (row["id"], row["generation"], row["born"]) == ("e9/0", 2, 1)
    assert cold.stop(1, how="kill")["left"] == []
    assert alive(kept), "the generation it was born in is over, and it is not of that any more"
    assert cold.stop(2, how="kill")["left"] == []
    assert tree.descendants(cold.process.pid) == []


def test_one_that_has_another_rank_in_the_next_generation_writes_to_its_log_and_is_known_by_both(cold: Warm) -> None:
    text = "import time\nprint('born', flush=True)\nwhile True:\n    time.sleep(0.01)\n    print('lives', flush=True)"
    cold.fork(script(cold.directory, text), generation=1, rank=2)
    pid = cold.wait("started", rank=2)["pid"]
    until(lambda: "lives" in cold.text(2))
    cold.say("stop", id="part", generation=1, how="kill", grace_s=0, keep=[pid])
    cold.wait("stopped", id="part")
    cold.say("renew", id="e9", generation=2, places=[{"pid": pid, "rank": 1, "log": str(cold.directory / "elsewhere.log")}])
    cold.wait("renewed", id="e9")
    assert command_line(pid).endswith(f"[holdfast {cold.job} rank 1]".encode())
    until(lambda: (cold.directory / "elsewhere.log").exists() and "lives" in (cold.directory / "elsewhere.log").read_text())
    before = cold.text(2)
    os.kill(pid, signal.SIGKILL)
    row = cold.wait("exited", rank=1)
    assert (row["id"], row["generation"], row["born"], row["born_rank"]) == ("e9/1", 2, 1, 2)
    assert cold.text(2) == before, "what it printed after the change is in the log it had before"
    cold.say("renew", id="bad", generation=3, places=[pid])
    assert "places is a list of objects" in cold.wait("refused", id="bad")["why"]


def test_one_that_has_ended_cannot_go_over_to_the_next_generation(cold: Warm) -> None:
    ended = cold.run(script(cold.directory, "pass"))
    cold.say("renew", id="r", generation=2, places=[{"pid": ended["pid"], "rank": 0}])
    assert "cannot go on in generation 2" in cold.wait("refused", id="r")["why"]


def test_a_stopped_worker_is_woken_to_leave_gracefully(cold: Warm) -> None:
    text = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint('up', flush=True)\ntime.sleep(600)"
    cold.fork(script(cold.directory, text))
    pid = cold.wait("started")["pid"]
    until(lambda: "up" in cold.text())
    os.kill(pid, signal.SIGSTOP)
    until(lambda: tree.state(pid) == "T")
    cold.say("stop", id="s", generation=1, grace_s=20, how="term")
    ended = cold.wait("exited")
    assert (ended["code"], ended["stopping"]) == (7, True)
    assert cold.wait("stopped", id="s")["left"] == []


def test_a_deaf_worker_is_killed_when_its_grace_is_over_or_a_second_stop_says_so(cold: Warm) -> None:
    path = script(cold.directory, "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)")
    cold.fork(path)
    until(lambda: "up" in cold.text())
    began = time.monotonic()
    assert cold.stop(1, grace_s=0.4)["left"] == []
    assert 0.4 <= time.monotonic() - began < 5
    cold.fork(path, generation=2, rank=1)
    until(lambda: "up" in cold.text(1))
    cold.say("stop", id="slow", generation=2, grace_s=600, how="term")
    cold.say("stop", id="fast", generation=2, grace_s=0, how="kill")
    assert cold.wait("stopped", id="slow")["left"] == []
    assert cold.wait("stopped", id="fast")["left"] == []


def test_a_graceful_stop_asks_the_worker_and_not_its_helpers(cold: Warm) -> None:
    text = """
import os, signal, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
def leave(*_):
    time.sleep(0.3)
    print("helper is there:", helper.poll() is None, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(600)
"""
    cold.fork(script(cold.directory, text))
    until(lambda: "up" in cold.text())
    assert cold.stop(grace_s=10)["left"] == []
    assert "helper is there: True" in cold.text()


def test_a_generation_that_was_stopped_is_not_started_again(cold: Warm) -> None:
    cold.stop(4)
    cold.fork(script(cold.directory, "pass"), generation=4)
    assert "generation 4 is over" in cold.wait("refused")["why"]
    assert cold.run(script(cold.directory, "pass"), generation=5)["code"] == 0


def test_deaths_are_told_at_once_and_in_order(cold: Warm) -> None:
    path = script(cold.directory, "import time\nprint('up', flush=True)\ntime.sleep(600)")
    pids = []
    for rank in range(4):
        cold.fork(path, rank=rank)
        pids.append(cold.wait("started", rank=rank)["pid"])
    for rank in range(4):
        until(lambda rank=rank: "up" in cold.text(rank))
    order = [2, 0, 3, 1]
    late_s = []
    for rank in order:
        killed_ns = time.monotonic_ns()
        os.kill(pids[rank], signal.SIGKILL)
        ended = cold.wait("exited")
        late_s.append((time.monotonic_ns() - killed_ns) / 1e9)
        assert (ended["rank"], ended["signal"], ended["code"]) == (rank, 9, None)
        assert killed_ns <= ended["at_ns"] <= time.monotonic_ns()
    assert min(late_s) < 0.1, late_s
    recorded = [json.loads(line)["rank"] for line in (cold.state / "exits.jsonl").read_text().splitlines()]
    assert recorded == order


def test_a_restarted_agent_finds_what_runs_and_what_ended_meanwhile(cold: Warm) -> None:
    path = script(cold.directory, "import sys, time\ntime.sleep(600 if sys.argv[1] == 'stay' else 0)")
    stay = cold.fork(path, "stay", rank=0)
    pid = cold.wait("started", rank=0)["pid"]
    cold.fork(path, "go", rank=1)
    cold.hang_up()
    until(lambda: (cold.state / "exits.jsonl").read_text().count("\n") == 1)
    cold.connect()
    cold.say("list", id="l")
    listed = cold.wait("list", id="l")
    assert [(row["id"], row["pid"], row["generation"], row["rank"], row["role"]) for row in listed["running"]] == [(stay, pid, 1, 0, "worker")]
    assert [(row["rank"], row["code"]) for row in listed["exits"]] == [(1, 0)]
    # An order sent again, because the agent does not know whether it arrived, is carried out once.
    cold.say("fork", id=stay, generation=1, rank=0, argv=[path, "stay"])
    assert cold.wait("started", id=stay)["pid"] == pid
    assert len(tree.descendants(cold.process.pid)) == 1


def test_a_new_connection_replaces_the_old_one(cold: Warm) -> None:
    old = cold._socket
    cold.connect()
    old.settimeout(WAIT_S)
    assert old.recv(1) == b""
    old.close()
    assert cold.run(script(cold.directory, "pass"))["code"] == 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{\n", "not a line of JSON"),
        (b"[]\n", "a command is an object"),
        (b"\xff\xfe\n", "not a line of JSON"),
        (b"[" * 100_000 + b"\n", "not a line of JSON"),
        (b'{"do": "dance"}\n', "unknown command 'dance'"),
        (b"{}\n", "unknown command None"),
        (b'{"do": "fork"}\n', "argv is a list"),
        (b'{"do": "fork", "id": "a", "argv": ["x"]}\n', "generation is missing"),
        (b'{"do": "fork", "id": "a", "generation": true, "rank": 0, "argv": ["x"]}\n', "generation is missing or not a whole number"),
        (b'{"do": "fork", "id": "a", "generation": 1, "argv": ["x"], "role": "king"}\n', "role is"),
        (b'{"do": "fork", "id": "a", "generation": 1, "argv": ["x"], "how": "magic"}\n', "how is"),
        (b'{"do": "fork", "id": "a", "generation": 1, "argv": ["x"], "env": {"A": 1}}\n', "env is"),
        (b'{"do": "fork", "id": "a", "generation": 1, "argv": ["x"], "env": {"A=": "1"}}\n', "env"),
        (b'{"do": "fork", "id": "a", "generation": 1, "argv": ["x"], "log": "/no/such/directory/log"}\n', "the log /no/such/directory/log cannot be opened"),
        (b'{"do": "stop", "id": "a"}\n', "generation is missing"),
        (b'{"do": "stop", "id": "a", "generation": 1, "grace_s": "long"}\n', "grace_s is"),
        (b'{"do": "stop", "id": "a", "generation": 1, "how": "softly"}\n', "how is"),
    ],
)  # fmt: skip
def test_a_bad_command_is_refused_and_harms_nobody(cold: Warm, line: bytes, why: str) -> None:
    cold.say_raw(line)
    assert why in cold.wait("refused")["why"]
    assert cold.run(script(cold.directory, "pass"))["code"] == 0


def test_a_line_without_end_is_refused_and_the_next_agent_is_served(cold: Warm) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(40):
            cold.say_raw(b"x" * (1 << 16))
    cold.hang_up()
    cold.connect()
    assert cold.run(script(cold.directory, "pass"))["code"] == 0


def test_only_this_user_can_reach_the_socket(cold: Warm) -> None:
    assert cold.path.stat().st_mode & 0o777 == 0o600
    assert cold.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_socket_in_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    command = [sys.executable, str(WARM), "--no-warm", "--socket", str(tmp_path / "warm"), "--state", str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1
    assert "is open to others (mode 755" in done.stderr


def test_a_second_warm_parent_at_the_same_socket_is_refused(cold: Warm) -> None:
    command = [sys.executable, str(WARM), "--no-warm", "--socket", str(cold.path), "--state", str(cold.state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert "another warm parent already serves" in done.stderr
    cold.hang_up()
    cold.connect()
    assert cold.run(script(cold.directory, "pass"))["code"] == 0


def test_without_a_renewed_lease_the_whole_tree_ends(start: Callable[..., Warm]) -> None:
    warm = start("--no-warm", "--orphan-grace-s", "1.5", "--stop-grace-s", "0.5")
    pids = family(warm, "time.sleep(600)")
    for _ in range(5):
        warm.say("lease")
        assert warm.next(0.4) is None
    assert all(map(alive, pids))
    assert warm.process.wait(WAIT_S) == 75
    assert not any(map(alive, pids))
    assert "no agent renewed the lease" in warm.log.read_text()
    assert not warm.path.exists()


def test_time_in_which_the_warm_parent_was_stopped_itself_is_not_taken_from_its_lease(start: Callable[..., Warm]) -> None:
    """A laptop that sleeps, a terminal that is suspended: the agent could not speak either."""
    warm = start("--no-warm", "--orphan-grace-s", "5", "--stop-grace-s", "0.5")
    pids = family(warm, "time.sleep(600)")
    warm.say("lease")
    os.kill(warm.process.pid, signal.SIGSTOP)
    time.sleep(7.0)  # Longer than the lease: that is the fault.
    os.kill(warm.process.pid, signal.SIGCONT)
    assert warm.next(1.0) is None
    assert all(map(alive, pids))
    warm.say("lease")
    assert warm.process.wait(WAIT_S) == 75, "and then it ends as ever"


@pytest.mark.parametrize("way", ["end", "SIGTERM"])
def test_the_end_takes_everything_along(cold: Warm, way: str) -> None:
    pids = family(cold, "time.sleep(600)")
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(cold.process.pid, number)
    if way == "end":
        cold.say("end", how="kill")
    else:
        cold.process.terminate()
    assert cold.process.wait(WAIT_S) == 0
    assert not any(map(alive, pids))


def test_workers_die_with_a_killed_warm_parent_and_the_rest_is_found_by_its_mark(cold: Warm) -> None:
    pids = family(cold, "time.sleep(600)")
    worker = cold.seen[-1]["pid"]
    cold.process.kill()
    cold.process.wait(WAIT_S)
    until(lambda: not alive(worker))
    left = tree.marked(cold.job, "node-0")
    wiped = [pid for pid in pids if alive(pid) and pid not in left]
    assert len(left) == 3
    assert tree.end_marked(cold.job, "node-0") == []
    for pid in wiped:
        os.kill(pid, signal.SIGKILL)  # It carries no mark and has no parent of ours: nobody could know whose it is.
    until(lambda: not any(map(alive, pids)))


def test_the_generation_is_visible_from_outside_in_a_forked_worker_and_below(cold: Warm) -> None:
    cold.fork(script(cold.directory, "import os, time\nos.fork()\nprint('up', flush=True)\ntime.sleep(600)"), generation=17)
    until(lambda: cold.text().count("up") == 2)
    pids = [process.pid for process in tree.descendants(cold.process.pid)]
    assert len(pids) == 2
    for pid in pids:
        assert b"\0HOLDFAST_GENERATION=17\0" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()


def test_stacks_come_by_signal_even_when_the_interpreter_is_held(cold: Warm) -> None:
    text = "import re\ndef held_for_ever():\n    print('up', flush=True)\n    re.match(r'(a+)+$', 'a' * 64 + 'b')\nheld_for_ever()"
    cold.fork(script(cold.directory, text))
    pid = cold.wait("started")["pid"]
    until(lambda: "up" in cold.text())
    stacks = cold.directory / "rank0.stacks"
    os.kill(pid, signal.SIGRTMIN + 11)
    until(lambda: "held_for_ever" in stacks.read_text())
    # A plain start has no handler for it, and is not ended by it.
    cold.fork("sleep", "600", python=False, how="exec", rank=1)
    plain = cold.wait("started", rank=1)["pid"]
    until(lambda: Path(f"/proc/{plain}/comm").read_text() == "sleep\n")
    os.kill(plain, signal.SIGRTMIN + 11)
    assert cold.stop(how="kill")["left"] == []
    assert {row["signal"] for row in cold.seen if row["told"] == "exited"} == {9}


def test_output_passes_byte_for_byte_with_one_endless_line_and_invalid_text(cold: Warm) -> None:
    text = "import os, sys\nblock = bytes(range(128, 256)) * 8192\nfor _ in range(40): sys.stdout.buffer.write(block)\n"
    text += "sys.stdout.flush()\nos.write(2, b'\\xffend')"
    before_kib = peak_kib(cold.process.pid)
    ended = cold.run(script(cold.directory, text))
    assert ended["code"] == 0
    assert ended["tail"].endswith("end")
    log = cold.directory / "rank0.log"
    until(lambda: log.stat().st_size == 40 * (1 << 20) + 4)
    assert log.read_bytes() == bytes(range(128, 256)) * 8192 * 40 + b"\xffend"
    assert peak_kib(cold.process.pid) - before_kib < 16 << 10


def peak_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0])


def test_logs_rotate_and_nothing_between_the_files_is_lost(start: Callable[..., Warm]) -> None:
    warm = start("--no-warm", "--log-bytes", "100000", "--log-files", "3")
    lines = "".join(f"line {number}\n" for number in range(100_000))
    warm.run(script(warm.directory, "for number in range(100_000): print('line', number)"))
    log = warm.directory / "rank0.log"
    until(lambda: log.read_text().endswith("line 99999\n"))
    kept = "".join(path.read_text() for path in (Path(f"{log}.2"), Path(f"{log}.1"), log))
    assert lines.endswith(kept)
    assert len(kept) > 100_000
    assert not Path(f"{log}.3").exists()


def test_a_full_disk_stops_no_worker_and_is_mentioned_once_there_is_room(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    output = Output(read_fd, str(tmp_path / "log"), log_bytes=1 << 20, log_files=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        os.write(write_fd, b"before\n")
        assert not output.pump(1 << 20)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        os.write(write_fd, b"lost: no room for this\n")
        assert not output.pump(1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    os.write(write_fd, b"after\n")
    os.close(write_fd)
    assert output.pump(1 << 20)
    output.close()
    text = (tmp_path / "log").read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert text.count("bytes of output were not logged here: File too large") == 1
    assert output.tail == b"before\nlost: no room for this\nafter\n"


def test_a_log_on_a_full_device_does_not_stop_the_worker(cold: Warm) -> None:
    ended = cold.run(script(cold.directory, "print('x' * 1000000); print('done')"), log="/dev/full")
    assert (ended["code"], ended["tail"][-5:]) == (0, "done\n")


def test_a_grandchild_that_holds_the_output_does_not_delay_the_news(cold: Warm) -> None:
    text = "import os, time\nif os.fork() == 0:\n    time.sleep(1)\n    print('later', flush=True)\n    os._exit(0)\nprint('main')"
    began = time.monotonic()
    ended = cold.run(script(cold.directory, text))
    assert time.monotonic() - began < 0.9
    assert ended["tail"] == "main\n"
    until(lambda: "later" in cold.text())


def test_output_appears_line_by_line_while_the_worker_runs(cold: Warm) -> None:
    cold.fork(script(cold.directory, "import time\nprint('first line')\nprint('bar 10 %', end='\\r')\ntime.sleep(600)"))
    until(lambda: (cold.directory / "rank0.log").exists() and cold.directory.joinpath("rank0.log").read_bytes() == b"first line\nbar 10 %\r")


def test_nothing_is_left_open_after_many_workers(cold: Warm) -> None:
    path = script(cold.directory, "pass")
    cold.run(path)
    fds = Path(f"/proc/{cold.process.pid}/fd")
    before = len(list(fds.iterdir()))
    for _ in range(20):
        cold.run(path)
    until(lambda: len(list(fds.iterdir())) == before)


def test_an_idle_warm_parent_uses_no_processor_time(cold: Warm) -> None:
    cold.fork(script(cold.directory, "import time; time.sleep(600)"))
    cold.wait("started")
    before = tree.cpu_seconds([cold.process.pid])
    assert cold.next(1.0) is None
    assert tree.cpu_seconds([cold.process.pid]) - before <= 0.02


@pytest.fixture
def gated(start: Callable[..., Warm], tmp_path: Path) -> Callable[..., Warm]:
    """A parent whose template imports until the test makes the file `gate`: what is torch here waits for it."""
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'gate')!r}).exists(): time.sleep(0.01)\n"
    script(tmp_path, wait + "class cuda: is_initialized = lambda: False\nclass default_generator: seed = lambda: 0\n__version__ = '0'", "torch.py")
    return lambda *options: start(*options, "--stop-grace-s", "1", env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}, wait=False)


WHERE = "import os, sys\nprint('torch' in sys.modules, os.getppid(), flush=True)\n"


def template_of(warm: Warm) -> int:
    """The parent's only child without a worker."""
    return int(until(lambda: [p.pid for p in tree.descendants(warm.process.pid) if b"holdfast template" in command_line(p.pid)])[0])


def command_line(pid: int) -> bytes:
    """Empty for a process that has ended since it was seen."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
    except OSError:
        return b""


def test_first_workers_start_while_the_template_imports_and_the_next_are_its_forks_and_children_of_the_same_parent(
    gated: Callable[..., Warm], tmp_path: Path
) -> None:
    warm = gated()
    path = script(warm.directory, WHERE + "import time\nif sys.argv[1:]: time.sleep(600)\nraise SystemExit(3)")
    first = warm.fork(path)
    assert warm.wait("started", id=first)["because"] == "what it needs is still being imported"
    ended = warm.wait("exited", id=first)
    assert (ended["code"], ended["how"], ended["tail"]) == (3, "fork", f"False {warm.process.pid}\n")
    warm.fork(path, "stay", rank=1)
    staying = warm.wait("started", rank=1)["pid"]
    (tmp_path / "gate").touch()
    assert warm.wait("ready")["torch"] == "0"
    second = warm.run(path, generation=2)
    assert (second["code"], second["how"], second["tail"]) == (3, "fork", f"True {warm.process.pid}\n")
    # One that was forked before is the parent's like those that came after, and its end is told like theirs.
    os.kill(staying, signal.SIGKILL)
    assert warm.wait("exited", rank=1)["signal"] == signal.SIGKILL
    assert [json.loads(line)["code"] for line in (warm.state / "exits.jsonl").read_text().splitlines()] == [3, 3, None]


def test_a_restarted_agent_adopts_what_was_started_while_the_template_imports(gated: Callable[..., Warm], tmp_path: Path) -> None:
    warm = gated()
    order = warm.fork(script(warm.directory, "import time; time.sleep(600)"))
    pid = warm.wait("started")["pid"]
    warm.hang_up()
    warm.connect(wait=False)
    warm.say("list", id="l")
    assert [(row["id"], row["pid"]) for row in warm.wait("list", id="l")["running"]] == [(order, pid)]
    (tmp_path / "gate").touch()
    warm.wait("ready")
    warm.hang_up()
    warm.connect()
    os.kill(pid, signal.SIGKILL)
    assert warm.wait("exited", id=order)["signal"] == signal.SIGKILL


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("way", ["end", "SIGTERM", "SIGKILL", "lease"])
def test_the_template_goes_with_the_parent(gated: Callable[..., Warm], tmp_path: Path, way: str, ready: bool) -> None:
    warm = gated("--orphan-grace-s", "1" if way == "lease" else "30")
    if ready:
        (tmp_path / "gate").touch()
        warm.wait("ready")
    template = template_of(warm)
    warm.fork(script(warm.directory, "import time; time.sleep(600)"))
    worker = warm.wait("started")["pid"]
    if way == "end":
        warm.say("end", how="kill")
    elif way != "lease":
        warm.process.send_signal(signal.Signals[way])
    assert warm.process.wait(WAIT_S) == {"end": 0, "SIGTERM": 0, "SIGKILL": -9, "lease": 75}[way]
    until(lambda: not alive(template) and not alive(worker))


def test_a_stop_spares_the_template(gated: Callable[..., Warm], tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    warm = gated()
    warm.wait("ready")
    template = template_of(warm)
    family(warm, "time.sleep(600)", generation=1)
    assert warm.stop(how="kill")["left"] == []
    assert [process.pid for process in tree.descendants(warm.process.pid)] == [template]
    assert alive(template)
    assert warm.run(script(warm.directory, WHERE), generation=2)["tail"].startswith("True")


def test_a_template_that_is_killed_takes_nobody_along_and_is_replaced(gated: Callable[..., Warm], tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    warm = gated()
    warm.wait("ready")
    path = script(warm.directory, WHERE + "import time\ntime.sleep(600 if sys.argv[1:] else 0)")
    warm.fork(path, "stay")
    worker = warm.wait("started")["pid"]
    (tmp_path / "gate").unlink()
    template = template_of(warm)
    os.kill(template, signal.SIGKILL)
    until(lambda: template_of(warm) != template)
    assert alive(worker)
    assert warm.run(path, rank=1)["tail"].startswith("False")
    (tmp_path / "gate").touch()
    warm.wait("ready")
    assert warm.run(path, rank=2)["tail"].startswith("True")
    assert not alive(template)


def test_a_template_that_does_not_answer_is_done_without(gated: Callable[..., Warm], tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    warm = gated("--template-wait-s", "0.3")
    warm.wait("ready")
    template = template_of(warm)
    os.kill(template, signal.SIGSTOP)
    assert warm.run(script(warm.directory, WHERE))["tail"].startswith("False")
    assert not alive(template), "else it would start the same worker once more when it goes on"
    until(lambda: warm.run(script(warm.directory, WHERE))["tail"].startswith("True"))


def test_a_template_that_ends_while_it_imports_is_not_tried_again(start: Callable[..., Warm], tmp_path: Path) -> None:
    script(tmp_path, "import os; os._exit(3)", "torch.py")
    warm = start(env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    assert "has ended" in warm.ready["unsafe"]
    assert warm.run(script(warm.directory, WHERE))["tail"].startswith("False")
    until(lambda: tree.descendants(warm.process.pid) == [])  # An end is told before it is reaped.


def test_the_port_of_a_store_is_known_before_it_has_imported_torch_and_who_calls_waits(gated: Callable[..., Warm]) -> None:
    warm = gated()
    order = warm.fork(role="store", host="127.0.0.1", log=str(warm.directory / "store.log"))
    port = warm.wait("store", id=order)["port"]
    socket.create_connection(("127.0.0.1", port), timeout=WAIT_S).close()
    warm.say("list", id="l")
    assert [(row["id"], row["port"]) for row in warm.wait("list", id="l")["running"]] == [(order, port)]
    warm.say("fork", id="elsewhere", generation=1, role="store", host="192.0.2.1")
    assert "no store can listen at 192.0.2.1" in warm.wait("refused", id="elsewhere")["why"]


def test_where_there_is_no_torch_there_is_no_store(start: Callable[..., Warm], tmp_path: Path) -> None:
    script(tmp_path, "raise ImportError('it is broken')", "torch.py")
    warm = start(env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    order = warm.fork(role="store", host="127.0.0.1")
    assert warm.wait("store", id=order)["port"] is None
    assert warm.run(script(warm.directory, "print('fine')"))["tail"] == "fine\n"


def test_who_looks_at_the_processes_sees_script_job_and_rank(gated: Callable[..., Warm], tmp_path: Path) -> None:
    warm = gated()
    path = script(warm.directory, "import sys, time\nprint(sys.argv[1:], flush=True)\ntime.sleep(600)", "train.py")
    mark = f"[holdfast {warm.job} rank".encode()
    seen: dict[str, bytes] = {}

    def show(what: str, rank: int, *arguments: str, **fields: Any) -> int:
        warm.fork(path, *arguments, rank=rank, **fields)
        pid: int = warm.wait("started", rank=rank)["pid"]
        until(lambda: warm.text(rank).endswith("\n"))
        assert warm.text(rank) == f"{list(arguments)}\n", "the script's own arguments are as they were given"
        seen[what] = command_line(pid)
        # The environment, which lies behind the arguments, is as it was: it is how everything of a job is found.
        assert pid in tree.marked(warm.job, "node-0")
        assert f"HOLDFAST_GENERATION={fields.get('generation', 1)}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return pid

    cold = show("before the template is ready", 0, "--lr", "3e-4")
    (tmp_path / "gate").touch()
    warm.wait("ready")
    forked = show("a fork of the template", 1, "--lr", "3e-4", generation=12)
    show("with many arguments", 2, *("x" * 100 for _ in range(100)))
    show("a plain start", 3, "--lr", "3e-4", how="exec")
    python = os.path.basename(sys.executable).encode()
    for rank, what in enumerate(("before the template is ready", "a fork of the template")):
        assert seen[what] == python + f" {path} --lr 3e-4 ".encode() + mark + f" {rank}]".encode()
    assert seen["with many arguments"].startswith(python + f" {path} xxx".encode())
    assert seen["with many arguments"].endswith(mark + b" 2]")
    plain = seen["a plain start"].split(b"\0")
    assert plain == [os.fsencode(sys.executable), b"-u", b"-X", b"holdfast=" + mark + b" 3]", path.encode(), b"--lr", b"3e-4"]
    assert [Path(f"/proc/{pid}/comm").read_text() for pid in (cold, forked)] == ["train.py\n"] * 2
    found = subprocess.run(["pgrep", "-f", f"{path} --lr"], capture_output=True, text=True, check=False).stdout.split()
    assert {cold, forked} < set(map(int, found))
    assert command_line(warm.process.pid) == f"holdfast parent [{warm.job} on node-0]".encode()
    assert command_line(template_of(warm)) == f"holdfast template [{warm.job} on node-0]".encode()


def test_a_module_that_starts_threads_makes_plain_starts_of_forks(start: Callable[..., Warm], tmp_path: Path) -> None:
    script(tmp_path, "raise ImportError('left out, so that this test need not wait for it')", "torch.py")
    script(tmp_path, "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True, name='pump').start()", "threaded.py")
    search = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    warm = start("--preimport", "threaded", "--preimport", "no_such_module", env={"PYTHONPATH": search})
    assert "started threads (pump)" in warm.ready["unsafe"]
    assert (warm.ready["imports"]["no_such_module"], warm.ready["torch"]) == (None, None)
    started = warm.fork(script(warm.directory, "import sys, threading\nprint('threaded' in sys.modules, threading.active_count())"))
    assert "started threads (pump)" in warm.wait("started", id=started)["because"]
    assert warm.wait("exited", id=started)["tail"] == "False 1\n"
    until(lambda: tree.descendants(warm.process.pid) == [])  # What had been imported was of no use.


@pytest.mark.parametrize("ready", [False, True], ids=["while the template imports", "forks of the template"])
def test_four_forked_ranks_finish_a_step_together(start: Callable[..., Warm], ready: bool) -> None:
    pytest.importorskip("torch")
    warm = start("--orphan-grace-s", "600", env={"OMP_NUM_THREADS": "1"}, wait=False)
    if ready:
        told = warm.wait("ready", within_s=120.0)
        assert (bool(told["torch"]), told["unsafe"]) == (True, "")
    warm.fork(generation=3, role="store", host="127.0.0.1", log=str(warm.directory / "store.log"))
    store = warm.wait("store")
    began = time.monotonic()
    for rank in range(4):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store["port"]),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        warm.fork(str(SCRIPTS / "ddp_step.py"), generation=3, rank=rank, env=variables)
    ended = [warm.wait("exited", within_s=120.0, role="worker") for _ in range(4)]
    print(f"four ranks forked, stepped and gone in {time.monotonic() - began:.3f} s")
    assert [(row["code"], row["how"]) for row in ended] == [(0, "fork")] * 4, "\n".join(f"{row}" for row in ended)
    assert all(f"step of rank {row['rank']} of 4 finished" in row["tail"] for row in ended)
    assert warm.stop(3)["left"] == []
    if not ready:
        return
    seeds = script(warm.directory, "import numpy, torch\nprint(torch.initial_seed(), torch.rand(1).item(), numpy.random.rand())")
    first, second = (warm.run(seeds, generation=4, rank=rank)["tail"].split() for rank in range(2))
    # As in processes started afresh: torch and numpy draw a seed of their own in each.
    assert len({*first, *second}) == 6


def test_a_worker_is_in_its_groups_before_its_first_line_runs_and_in_spite_of_one_that_is_gone_it_runs(cold: Warm) -> None:
    # Who writes "0" to the kernel's file is moved; in a plain file it shows that the worker did it, and when.
    (cold.directory / "cgroup.procs").touch()
    look = script(cold.directory, f"print(open({str(cold.directory / 'cgroup.procs')!r}).read())")
    assert cold.run(look, groups=[str(cold.directory / "cgroup.procs")])["tail"] == "0\n"
    ended = cold.run(look, groups=["/no/such/group/cgroup.procs"])
    assert ended["code"] == 0
    assert ended["tail"].startswith("holdfast: this worker runs outside of its control group: /no/such/group/cgroup.procs: No such file or directory\n")


@pytest.mark.parametrize("how", ["fork", "exec"])
def test_a_limit_of_a_process_holds_for_the_worker_and_not_for_its_parent(cold: Warm, how: str) -> None:
    path = script(cold.directory, "import os\nprint(os.nice(0))\nx = bytearray(1 << 30)")
    ended = cold.run(path, how=how, data_bytes=512 << 20, nice=3)
    assert (ended["code"], ended["tail"].splitlines()[0], ended["tail"].splitlines()[-1]) == (1, str(os.nice(0) + 3), "MemoryError")
    assert cold.run(path, how=how)["code"] == 0


@pytest.mark.parametrize("groups", ["text", [1], [""], ["a\0b"], {"a": "b"}])
def test_groups_that_are_no_list_of_files_are_refused(cold: Warm, groups: object) -> None:
    cold.fork(script(cold.directory, "pass"), groups=groups)
    assert "groups is a list of files" in cold.wait("refused")["why"]
