"""A training that meets a limit of its machine, or breaks its own process; what happens is chosen by name. Needs no torch, so that it starts at once."""

from __future__ import annotations

import ctypes
import faulthandler
import http.client
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

CHOSEN, *GIVEN = json.loads(os.environ["JOB"])  # Not from the command line, which shells and launchers quote.


def steps(count, start=0, pause_s=0.005):
    for step in range(start, start + count):
        print(f"epoch {step // 50} step {step} loss {2.0 / (1 + step / 20) + random.random() / 10:.4f}", flush=True)
        time.sleep(pause_s)


def steps_only():
    steps(60)
    print("Training completed.")


def gather_features():
    held = []
    for step in range(10_000):
        held.append(bytearray(b"\x01" * (8 << 20)))
        if step % 2 == 0:
            steps(1, step, 0.0)


def build_table():
    import numpy

    steps(5)
    numpy.ones((int(GIVEN[0]), 1_000_000))


def open_shards():
    held = []
    for step in range(100_000):
        held.append(open("/proc/self/status"))  # noqa: SIM115
        if step % 20 == 0:
            steps(1, step, 0.0)


def connect_workers():
    held = []
    for step in range(100_000):
        held.append(socket.socketpair())
        if step % 20 == 0:
            steps(1, step, 0.0)


def start_loaders():
    steps(10)
    held = []
    while True:
        held.append(subprocess.Popen(["/bin/sleep", "5"], stdout=subprocess.PIPE))


def native_step():
    if "faulthandler" in GIVEN:
        faulthandler.enable()
    steps(20)
    ctypes.string_at(0)


def native_thread():
    faulthandler.enable()
    steps(20)
    worker = threading.Thread(target=lambda: ctypes.memmove(8, b"abc", 3))
    worker.start()
    worker.join()


def native_finish():
    if "faulthandler" in GIVEN:
        faulthandler.enable()
    steps(20)
    if "free" in GIVEN:
        library = ctypes.CDLL(None)
        library.free.argtypes = [ctypes.c_void_p]
        library.malloc.restype = ctypes.c_void_p
        place = library.malloc(64)
        library.free(place)
        library.free(place)
        library.free(place)
    os.abort()


def save_checkpoints():
    directory = Path(GIVEN[0])
    for step in range(0, 2000, 10):
        steps(2, step, 0.0)
        with (directory / f"checkpoint_{step}.bin").open("wb") as file:
            file.write(os.urandom(256 << 10))
            file.flush()
            os.fsync(file.fileno())


def log_metrics():
    with (Path(GIVEN[0]) / "metrics.jsonl").open("a", buffering=1) as file:
        for step in range(0, 2000, 10):
            steps(1, step, 0.0)
            file.write(json.dumps({"step": step, "values": [random.random() for _ in range(2000)]}) + "\n")


def numpy_save():
    import numpy

    for step in range(0, 2000, 10):
        steps(2, step, 0.0)
        numpy.save(Path(GIVEN[0]) / f"features_{step}.npy", numpy.ones(100_000))


def sqlite():
    import sqlite3

    with sqlite3.connect(Path(GIVEN[0]) / "runs.db") as database:
        database.execute("create table runs (step int, note text)")
        for step in range(0, 5000, 10):
            steps(1, step, 0.0)
            database.execute("insert into runs values (?, ?)", (step, "x" * 30_000))
            database.commit()


def read_all():
    for number, path in enumerate(sorted(path for path in Path(GIVEN[0]).iterdir() if path.is_file())):
        steps(2, number * 2, 0.0)
        path.read_bytes()


def make():
    steps(5)
    (Path(GIVEN[0]) / "run_7").mkdir()


def listen():
    port = int(os.environ["INCIDENT_PORT"])
    print(f"starting the metrics server on port {port}", flush=True)
    if "http" in GIVEN:
        from http.server import HTTPServer, SimpleHTTPRequestHandler

        HTTPServer.allow_reuse_address = False
        HTTPServer(("127.0.0.1", port), SimpleHTTPRequestHandler)
    elif "asyncio" in GIVEN:
        import asyncio

        asyncio.run(asyncio.start_server(lambda *_: None, "127.0.0.1", port))
    else:
        server = socket.socket()
        server.bind(("127.0.0.1", port))
    steps(5)


def fetch():
    way, url = GIVEN
    steps(10)
    print(f"downloading {url}", flush=True)
    if way == "requests":
        import requests

        answer = requests.get(url, timeout=2)
        answer.raise_for_status()
        answer.json()
    elif way == "aiohttp":
        import asyncio

        import aiohttp

        async def go():
            async with aiohttp.ClientSession() as session, session.get(url, timeout=aiohttp.ClientTimeout(total=2)) as answer:
                answer.raise_for_status()
                await answer.json()

        asyncio.run(go())
    elif way == "client":
        rest = url.removeprefix("http://")
        host, _, path = rest.partition("/")
        connection = http.client.HTTPConnection(host, timeout=2)
        connection.request("GET", "/" + path)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConnectionError(f"{url} answered {answer.status} {answer.reason}")
        json.loads(answer.read())
    else:
        with urllib.request.urlopen(url, timeout=2) as answer:
            json.load(answer)
    steps(10)


def import_one():
    importlib.import_module(GIVEN[0])


def import_name():
    module, name = GIVEN
    getattr(importlib.import_module(module), name)


def from_import():
    module, name = GIVEN
    exec(f"from {module} import {name}")


def run_tool():
    print("preparing", flush=True)
    subprocess.run(GIVEN, check=True)


def open_one():
    print("reading the index", flush=True)
    with open(GIVEN[0]) as file:
        json.load(file)


def wait():
    for step in range(100_000):
        steps(1, step, 0.03)


def wait_for_lock():
    faulthandler.dump_traceback_later(1.0, exit=True)
    steps(20)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def native_signal():
    steps(20)
    os.kill(os.getpid(), getattr(signal, GIVEN[0]))
    time.sleep(5)


if __name__ == "__main__":
    globals()[CHOSEN]()
