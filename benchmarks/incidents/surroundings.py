"""What stands around an error in life: prefixes, progress, warnings, frames, other ranks' echoes, a launcher's clean-up, and where the log is cut.

Nothing here says what the cause is. It misleads as it does in life: echoes and clean-up follow every kind of cause, and warnings stand before it.
The texts are in `around/`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from incidents.blanks import filled, sections

START = frozenset({
    "checkpoint_mismatch", "config_error", "gpu_driver_mismatch", "gpu_unavailable", "import_missing", "nccl_invalid_usage", "permission_denied", "port_in_use",
    "rendezvous_timeout", "version_incompat",
})  # fmt: skip
"""Causes that mostly strike before the first step."""
NO_SEQUEL = frozenset({"healthy", "unknown", "hang", "loss_divergence", "numeric_nan", "node_fail", "preempted", "time_limit", "user_cancelled"})
"""What no launcher's table follows of itself: the message says it all, or there is none."""

_OWN = (
    ("main", "main(args)"), ("train", "train(model, loader, optimizer, epoch)"), ("train_one_epoch", "loss = model(batch)"), ("run", "self.fit()"),
    ("<module>", "main()"), ("forward", "x = self.layers(x)"), ("training_step", "out = self(batch)"), ("worker", "fn(rank, *args)"),
)  # fmt: skip
_PROGRAM_ROOTS = ("/workspace/", "/home/{user}/project/", "", "/app/", "/opt/ml/code/")
_LIBRARY_ROOTS = (
    "/usr/local/lib/python3.10/dist-packages", "/opt/conda/lib/python3.11/site-packages", "/home/{user}/miniconda3/envs/llm/lib/python3.9/site-packages",
    "/app/.venv/lib/python3.12/site-packages", "/usr/lib/python3/dist-packages",
)  # fmt: skip
_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def settled(draw: random.Random, cause: str, error: Sequence[str], name: str) -> tuple[tuple[str, str], ...]:
    """The error's lines where they stand in life, as files: path and text."""
    if draw.random() < 0.25:  # As people quote it: the error alone.
        return ((f"{name}.log", "\n".join(error) + "\n"),)
    ranks = draw.choice((1, 1, 1, 2, 4, 8, 8, 64))
    marked = prefix(draw) if ranks > 1 or draw.random() < 0.3 else lambda rank: ""
    guilty = draw.randrange(ranks)
    middle = [marked(guilty) + line for line in error]
    if ranks > 1 and cause not in NO_SEQUEL and draw.random() < 0.3:  # The same on several ranks.
        for rank in draw.sample(range(ranks), min(ranks, 3)):
            middle += [marked(rank) + line for line in error]
    lines = [*before(draw, cause), *middle, *(() if cause in NO_SEQUEL else after(draw, ranks, marked, guilty))]
    if draw.random() < 0.06 and cause not in NO_SEQUEL:
        lines = as_json(draw, lines)
    return ((f"{name}.{draw.choice(('log', 'out', 'err', 'txt'))}", "\n".join(lines) + ("\n" if draw.random() < 0.9 else "")),)


def frames(draw: random.Random, family: str, exception: str) -> list[str]:
    """An exception inside a traceback: the job's own frames, then those of the library it came from; sometimes cut."""
    if draw.random() < 0.12:
        return exception.split("\n")
    program = filled(draw, draw.choice(_PROGRAM_ROOTS)) + draw.choice(sections("programs")[""])
    lines = ["Traceback (most recent call last):"]
    for function, source in [("<module>", "main()"), *draw.sample(_OWN, draw.randint(0, 2))]:
        lines += [f'  File "{program}", line {draw.randint(3, 900)}, in {function}', f"    {source}"]
    root = filled(draw, draw.choice(_LIBRARY_ROOTS))
    for frame in sections("frames").get(family, ()):
        path, function, *source = frame.split("\t")
        lines += [f'  File "{root}/{path}", line {draw.randint(20, 3000)}, in {function}', *(f"    {text}" for text in source if text)]
    if draw.random() < 0.08:
        lines = lines[draw.randint(1, len(lines) - 1) :]
    return [*lines, *exception.split("\n")]


def prefix(draw: random.Random) -> Callable[[int], str]:
    chosen = draw.choice(sections("prefixes")[""])
    shown = {"pid": str(draw.randint(300, 99_999)), "ip": f"10.0.0.{draw.randint(2, 250)}"}
    return lambda rank: filled(draw, chosen, rank=str(rank), **shown)


def before(draw: random.Random, cause: str) -> list[str]:
    """The start of a run, its warnings, and often some progress."""
    chosen = draw.sample(sections("banners")[""], draw.randint(0, 6)) + draw.sample(sections("warnings")[""], draw.randint(0, 4))
    draw.shuffle(chosen)
    lines = [line for text in chosen for line in filled(draw, text).split("\n")]
    if draw.random() < (0.1 if cause in START else 0.65):
        lines += progress(draw, draw.randint(1, 25))
    return lines


def went_on(lines: Sequence[str]) -> bool:
    """Whether any of these lines is a sign of progress, as `progress` makes them."""
    return any("oss" in line and any(character.isdigit() for character in line) for line in lines[-3:])


def progress(draw: random.Random, count: int) -> list[str]:
    shape, step, by = draw.choice(sections("progress")[""]), draw.randint(0, 900), draw.choice((1, 10, 50))
    return [filled(draw, shape, step=str(step + number * by)) for number in range(count)]


def after(draw: random.Random, ranks: int, marked: Callable[[int], str], guilty: int) -> list[str]:
    """What comes of an error elsewhere: other ranks' echoes, a launcher's clean-up, its table."""
    lines: list[str] = []
    if ranks > 1 and draw.random() < 0.7:
        for rank in draw.sample([one for one in range(ranks) if one != guilty], min(ranks - 1, draw.randint(1, 8))):
            lines += [marked(rank) + line for line in filled(draw, draw.choice(sections("echoes")[""]), rank=str(rank)).split("\n")]
    if draw.random() < 0.35:
        lines += [filled(draw, draw.choice(sections("clean_up")[""]), rank=str(guilty)) for _ in range(draw.randint(1, 3))]
    if draw.random() < 0.3:
        lines += table(draw, guilty, draw.choice((1, 1, 1, 1, -6)))
    return lines


def table(draw: random.Random, rank: int, code: int, *, host: str = "node7", at: str = "2026-03-04_05:06:07", pid: int | None = None) -> list[str]:
    """What torchrun says of a child that failed."""
    pid = pid or draw.randint(100, 99_999)
    if code < 0:
        said = f"Signal {-code} ({_SIGNALS.get(-code, 'unknown')}) received by PID {pid}"
    else:
        said = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    where = "torch/distributed/elastic/multiprocessing/api.py:869]"
    return [
        f"E1116 04:05:06.000000 {pid} {where} failed (exitcode: {code}) local_rank: {rank % 8} (pid: {pid}) of binary: /usr/bin/python3",
        "Traceback (most recent call last):",
        '  File "/usr/local/bin/torchrun", line 33, in <module>',
        "    sys.exit(load_entry_point('torch', 'console_scripts', 'torchrun')())",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60, f"{draw.choice(sections('programs')[''])} FAILED", "-" * 60, "Failures:", "  <NO_OTHER_FAILURES>", "-" * 60,
        "Root Cause (first observed failure):", "[0]:", f"  time      : {at}", f"  host      : {host}",
        f"  rank      : {rank} (local_rank: {rank % 8})", f"  exitcode  : {code} (pid: {pid})", "  error_file: <N/A>", f"  traceback : {said}", "=" * 60,
    ]  # fmt: skip


def as_json(draw: random.Random, lines: Sequence[str]) -> list[str]:
    """The same lines as a structured log has them."""
    message, level, word = draw.choice((("message", "level", "error"), ("msg", "severity", "ERROR"), ("log", "stream", "stderr")))
    return [json.dumps({"time": f"2026-03-04T05:{n // 60 % 60:02d}:{n % 60:02d}Z", level: word, message: line}) for n, line in enumerate(lines)]
