"""`holdfast selftest`: does survival work on this machine, with its GPUs? The same training twice, in peace and through faults, must end alike."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from holdfast.chaos.faults import FAULTS
from holdfast.chaos.storm import LiveScene, Storm, Strike, Struck, ground_of, left_behind
from holdfast.cli.job import new_job
from holdfast.cli.live import Live
from holdfast.cli.options import check_fits, processes_per_node
from holdfast.cli.run import run_job
from holdfast.domain.job import UNDER_CHAOS, JobSpec, Outcome, Policy
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory
from holdfast.launch.local import LocalCluster

_STORM = (("worker_killed", 20), ("worker_stopped", 60), ("control_killed", 90))  # Of rank 0, which there always is.
_STEPS_ON_GPU = 5000  # A step takes a millisecond or two there, and the storm needs a few seconds.


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    ok: bool
    said: str


def run_selftest(root: Path, *, gpus: int, ranks: int, as_json: bool) -> int:
    """Run the checks and print them; 0 when all are well."""
    if importlib.util.find_spec("torch") is None:
        raise UserError("the self-test trains a model, and torch is not installed here: pip install 'holdfast[torch]'")
    if gpus and gpus > processes_per_node("gpu"):
        raise UserError(f"--gpus {gpus} asks for more GPUs than the {processes_per_node('gpu')} this machine has")
    name = f"selftest-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    checks: list[Check] = []
    digests = []
    for kind, strikes in (("peace", ()), ("storm", _STORM)):
        directory = new_job(root, f"{name}-{kind}")
        digest = directory.path / "digest"
        struck, said, outcome = _train(directory, digest, gpus=gpus, ranks=gpus or ranks, strikes=strikes)
        checks.append(Check(name=f"{kind}: training finishes", ok=outcome is Outcome.FINISHED, said=said))
        checks += [_struck_check(one) for one in struck]
        if strikes and len(struck) < len(strikes):
            checks.append(Check(name="storm: every fault comes", ok=False, said=f"{len(struck)} of {len(strikes)} faults could be struck"))
        left = left_behind(directory, ["node-0"])
        checks.append(Check(name=f"{kind}: nothing is left behind", ok=not left, said=", ".join(left) or "no process, no memory, no socket"))
        digests.append(digest.read_text() if digest.exists() else "")
    same = bool(digests[0]) and digests[0] == digests[1]
    checks.append(Check(name="same weights, bit for bit", ok=same, said=" and ".join(digest[:12] or "none" for digest in digests)))
    _print(checks, where=f"{gpus} GPUs, NCCL" if gpus else f"{ranks} ranks, gloo on the CPU", as_json=as_json)
    return 0 if all(check.ok for check in checks) else 1


def _train(
    directory: JobDirectory, digest: Path, *, gpus: int, ranks: int, strikes: Sequence[tuple[str, int]]
) -> tuple[Sequence[Struck], str, Outcome | None]:
    options = ("--gpu", "--steps", str(_STEPS_ON_GPU)) if gpus else ()
    spec = JobSpec(
        job=directory.job, run=secrets.token_hex(8), module=True, cwd=str(directory.path), ranks_per_node=ranks,
        argv=("holdfast.demo.selftest", "--digest", str(digest), *options), env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, chaos=True,
        policy=Policy(hang_limits=UNDER_CHAOS),
    )  # fmt: skip
    check_fits(spec)
    storms: list[Storm] = []
    tasks: list[asyncio.Task[None]] = []

    def started(cluster: LocalCluster) -> None:
        scene = LiveScene(directory=directory)
        made = [Strike(fault=FAULTS[key], step=step, rank=0) for key, step in strikes]
        storms.append(Storm(ground=ground_of(scene, directory.path), scene=scene, strikes=made, say=lambda text: None))
        tasks.append(asyncio.create_task(storms[0].run()))

    with open(os.devnull, "wb") as null:
        ended = run_job(directory, spec, Live(null, sys.stderr, mode="plain"), started=started)
    return storms[0].struck, ended.because, ended.outcome


def _struck_check(struck: Struck) -> Check:
    if struck.answered_at is None:
        return Check(name=f"storm: {struck.fault.name}", ok=False, said="not survived in time")
    return Check(name=f"storm: {struck.fault.name}", ok=True, said=f"{struck.said}; well again after {struck.answered_at - struck.at:.1f} s")


def _print(checks: Sequence[Check], *, where: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"where": where, "ok": all(check.ok for check in checks), "checks": [asdict(check) for check in checks]}, indent=2))
        return
    console = Console(highlight=False)
    console.print(f"Self-test on {where}")
    for check in checks:
        console.print(f"{'[green]✓[/]' if check.ok else '[bold red]✗[/]'} {check.name}: {check.said}")
