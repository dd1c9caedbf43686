"""Say, as JSON, everything by which a process could tell whether Python was started for it alone."""

import inspect
import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import sys
import threading


class Pickled:
    value = 7


def square(number: int) -> int:
    return number * number


def facts() -> dict[str, object]:
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "path": sys.path,
        "main_names": sorted(name for name in vars(main) if name.startswith("__")),
        "file": main.__file__,
        "name": __name__,
        "spec": [getattr(main.__spec__, name, None) for name in ("name", "origin", "parent", "cached")],
        "package": main.__package__,
        "cached": main.__cached__,
        "loader": type(main.__loader__).__name__,
        "builtins": type(main.__builtins__).__name__,
        "cwd": os.getcwd(),
        "executable": sys.executable,
        "fds": sorted(fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}") and int(fd) < 250),
        "stdin": os.readlink("/proc/self/fd/0"),
        "threads": [threading.active_count(), len(os.listdir("/proc/self/task"))],
        "handlers": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals() if number != signal.SIGRTMIN + 11},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "wakeup_fd": signal.set_wakeup_fd(-1),
        "umask": os.umask(os.umask(0o22)),
        "environ": {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "TORCHELASTIC_", "PYTEST_"))},
        "limits": [resource.getrlimit(number) for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_STACK)],
        "oom_score_adj": open("/proc/self/oom_score_adj").read(),
        "nice": os.nice(0),
        "stdio": [[stream.encoding, stream.errors, stream.newlines, type(stream.buffer).__name__] for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "stdio_is_own": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__],
        "flags": str(sys.flags),
        "pickled": pickle.loads(pickle.dumps(Pickled())).value,
        "pickled_as": pickle.dumps(Pickled).count(b"__main__"),
        "source": inspect.getsource(square),
        "original_directory": multiprocessing.process.ORIGINAL_DIR,
        "exec_in_main": eval("square(4)", vars(main)),
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "gc": __import__("gc").isenabled(),
        "recursion": sys.getrecursionlimit(),
        "neighbour": __import__("neighbour").VALUE,
    }


def multiprocessed() -> dict[str, object]:
    results: dict[str, object] = {}
    for method in ("spawn", "forkserver", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            results[method] = pool.map(square, [3])
    return results


if __name__ == "__main__":
    told = facts()
    if "--multiprocessing" in sys.argv:
        told["multiprocessing"] = multiprocessed()
    random.seed()
    with open(os.environ["FACTS"], "w") as file:
        json.dump(told, file)
