"""A training that goes well although its log does not read so: real errors, caught, tried again or gone around. What it meets is chosen by name."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import random
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
import warnings
from pathlib import Path

CHOSEN, *GIVEN = json.loads(os.environ["JOB"])  # Not from the command line, which a log may quote.
log = logging.getLogger("trainer")


def steps(count, start=0):
    for step in range(start, start + count):
        loss = 2.0 / (1 + step / 20) + random.random() / 10
        style = len(CHOSEN) % 4
        if style == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        elif style == 1:
            log.info("iter: %d, total_loss: %.4f, lr: 0.0003", step, loss)
        elif style == 2:
            print({"loss": round(loss, 4), "epoch": round(step / 100, 2)}, flush=True)
        else:
            sys.stderr.write(f"\r{step:3d}%|{'█' * (step // 10):10s}| {step}/100 [00:{step % 60:02d}<00:30, 9.1it/s, loss={loss:.3f}]")
            sys.stderr.flush()
        time.sleep(0.002)


def fetched(url, attempts=5):
    for attempt in range(attempts):
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError) as error:
            log.warning("request to %s failed: %s, retrying in 0.05 s (attempt %d/%d)", url, error, attempt + 1, attempts)
            time.sleep(0.05)
    return None


def retried_request():
    fetched(GIVEN[0])
    steps(40)


def tracker_gone():
    steps(10)
    if fetched(GIVEN[0], 3) is None:
        log.error("the tracker is not reachable, metrics are kept locally from now on")
    steps(40, 10)


def next_port():
    port = int(GIVEN[0])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        for candidate in (port, 0):
            server = socket.socket()
            try:
                server.bind(("127.0.0.1", candidate))
                break
            except OSError as error:
                print(f"ERROR: {error}: port {candidate} is taken, trying the next one", flush=True)
        steps(40)


def bad_samples():
    for number in range(5):
        steps(8, number * 8)
        try:
            if number % 2:
                json.loads('{"text": "cut')
            else:
                pickle.loads(b"\x80\x04nonsense")
        except Exception as error:
            log.warning("sample %d is damaged (%s: %s), skipping it", number, type(error).__name__, error)


def validate():
    steps(10)
    try:
        {}["validation"]
    except KeyError:
        log.exception("validation failed, training goes on without it")
    steps(40, 10)


def draw_plot():
    steps(10)
    try:
        [].pop()
    except IndexError:
        traceback.print_exc()
        print("no plot this time", flush=True)
    steps(40, 10)


def optional_import():
    try:
        import flash_attention_that_is_not_here  # noqa: F401
    except ImportError as error:
        print(f"WARNING: {error}; using the plain implementation", flush=True)
    steps(40)


def missing_cache():
    try:
        Path("cache/index.json").read_text()
    except FileNotFoundError as error:
        print(f"{error}; the index is built anew", flush=True)
    steps(40)


def no_permission():
    with contextlib.suppress(OSError):
        os.makedirs("/proc/cache")
    try:
        Path("/proc/sys/cache").write_text("")
    except OSError as error:
        log.error("cannot write the cache: %s; using memory", error)
    steps(40)


def warned():
    warnings.warn("detected call of lr_scheduler.step() before optimizer.step(); this is an error in most cases", UserWarning, stacklevel=1)
    warnings.warn("this API is deprecated and will fail in the next version", DeprecationWarning, stacklevel=1)
    warnings.warn("CUDA out of memory is likely with this batch size", ResourceWarning, stacklevel=1)
    steps(40)


def skipped_nan():
    for number in range(4):
        steps(8, number * 8)
        print(f"found nan in gradients, skipping this step; loss scale reduced to {32768 >> number}", flush=True)
    steps(20, 40)


def worker_again():
    for attempt in range(3):
        steps(5, attempt * 5)
        ended = subprocess.run([sys.executable, "-c", f"import os, sys; sys.stderr.write('loader worker crashed\\n'); os._exit({1 if attempt < 2 else 0})"])
        print(f"loader worker exited with code {ended.returncode}" + (", starting it again" if ended.returncode else ""), flush=True)
    steps(40, 15)


def killed_worker():
    steps(5)
    helper = subprocess.Popen(["/bin/sleep", "30"])
    helper.kill()
    print(f"prefetch worker {helper.pid} was killed by signal {-helper.wait()}; restarted", flush=True)
    steps(40, 5)


def smaller_batch():
    for batch in (4096, 1024, 256):
        try:
            if batch > 256:
                bytearray(1 << 62)
            print(f"batch size {batch} fits", flush=True)
            break
        except (MemoryError, OverflowError) as error:
            print(f"{type(error).__name__}: out of memory with batch size {batch}, trying a smaller one", flush=True)
    steps(40)


def upload():
    steps(5)
    thread = threading.Thread(target=lambda: 1 / 0, name="uploader")
    thread.start()
    thread.join()
    print("the uploader thread failed; uploads are off", flush=True)
    steps(40, 5)


def partial_load():
    have, want = {"encoder.weight": 3, "old_head.weight": 2}, {"encoder.weight": 3, "head.weight": 4, "head.bias": 4}
    print(f"Missing keys: {sorted(set(want) - set(have))}, unexpected keys: {sorted(set(have) - set(want))}", flush=True)
    print("size mismatch for head.weight: the parameter of the checkpoint is left out", flush=True)
    steps(40)


def many_words():
    print("error_rate=0.01 failure_threshold=3 abort_on_nan=False kill_timeout=30 oom_score_adj=0", flush=True)
    print("tests of the error handling: 12 passed, 0 failed", flush=True)
    steps(40)
    print("word error rate: 0.12, top-1 error: 0.23, exceptions seen: 0, fatal: none", flush=True)


def broken_pipe():
    steps(5)
    left, right = socket.socketpair()
    right.close()
    try:
        left.sendall(b"x" * 10)
    except OSError as error:
        log.warning("live view closed: %s", error)
    steps(40, 5)


def timeout_then_fine():
    try:
        subprocess.run(["/bin/sleep", "3"], timeout=0.1, check=True)
    except subprocess.TimeoutExpired as error:
        log.warning("%s; asked again", error)
    steps(40)


def group():
    try:
        raise ExceptionGroup("uploads", [ConnectionResetError(104, "Connection reset by peer"), TimeoutError("timed out")])
    except ExceptionGroup as error:
        log.warning("some uploads failed and are put back into the queue: %s", "; ".join(map(str, error.exceptions)))
    steps(40)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    globals()[CHOSEN]()
    ends = ["Training completed.", "Finished training, model saved to out/model.bin", "Done. Best loss 0.21"]
    print(random.Random(CHOSEN).choice(ends), flush=True)
