"""The command line. Each command is a few lines here; what it does is in the module it names, which is imported when the command is run: a command that
answers at once should also start at once.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast import __version__
from holdfast.cli.plan import plan
from holdfast.cli.queueing import queue, shares, why
from holdfast.domain.job import JobSpec, Policy
from holdfast.domain.learned import Learned
from holdfast.domain.profile import STEPS
from holdfast.errors import HoldfastError, UserError
from holdfast.launch.layout import JobDirectory, past_database
from holdfast.settings import alerts_file, remote_root, state_root

if TYPE_CHECKING:
    from holdfast.cli.live import Live

app = typer.Typer(
    no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help="Holdfast keeps training running: `holdfast run train.py`.",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

State = Annotated[Path | None, typer.Option("--state", help="Where jobs are kept.", show_default="$HOLDFAST_STATE, or holdfast in the XDG state directory")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Detached = Annotated[bool, typer.Option("--detach", help="Run in the background.")]
RemoteRoot = Annotated[
    str | None,
    typer.Option(
        "--remote", metavar="URL", help="Keep checkpoints a second time below s3://bucket/path, webhdfs://host:port/path or /a/mounted/path; '' for nowhere.",
        show_default="$HOLDFAST_REMOTE, or nowhere",
    ),
]  # fmt: skip
AlertsFile = Annotated[
    str | None,
    typer.Option("--alerts", metavar="FILE", help="Tell people of incidents as this file says; '' for nobody.", show_default="$HOLDFAST_ALERTS, or nobody"),
]
TimeLimit = Annotated[str, typer.Option("--time-limit", metavar="TIME", help="The job should be run no longer than this, such as 12h.", show_default="none")]
NoLearning = Annotated[bool, typer.Option("--no-learning", help="Use nothing that was learned from earlier jobs.")]
Name = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as `holdfast ps` lists it.")]


class _Run(TyperCommand):
    """Flags of torchrun that mean nothing here are known, so that the error can say why."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from holdfast.cli.options import REFUSED

        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            flag = str(getattr(error, "option_name", "")).replace("_", "-")
            if flag not in REFUSED:
                raise
            raise UserError(f"{flag} is torchrun's and cannot be honoured: {REFUSED[flag]}") from error


@app.command(cls=_Run, context_settings={"allow_interspersed_args": False})
def run(
    script: Annotated[str, typer.Argument(help="The training script; with -m a module, with --no-python a program.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Passed on as they are.")] = None,
    nproc: Annotated[str, typer.Option("--nproc-per-node", "--nproc_per_node", "--nproc", help="Ranks a node: a number, `gpu`, `cpu` or `auto`.")] = "1",
    nodes: Annotated[str, typer.Option("--nnodes", "--nodes", help="Nodes, all on this machine; MIN:MAX: no fewer than MIN while others are lost.")] = "1",
    spares: Annotated[int, typer.Option(min=0, help="Nodes kept ready to take the place of one that is lost.")] = 0,
    domains: Annotated[
        int, typer.Option(min=0, help="Failure domains, dealt round the nodes: a copy of a node's state is held in another.", show_default="one each")
    ] = 0,
    own_network: Annotated[
        bool, typer.Option("--own-network", help="Each node in a network namespace of its own, from which only the other nodes are reached. Needs root.")
    ] = False,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="All workers of a node together may have this much, such as 8GB.", show_default="no limit")] = "",
    memory_high: Annotated[
        str, typer.Option(metavar="SIZE", help="Above this the kernel holds the job up and takes memory back, and kills nobody.", show_default="no limit")
    ] = "",
    memory_per_worker: Annotated[str, typer.Option(metavar="SIZE", help="Each worker may have this much.", show_default="no limit")] = "",
    cpus: Annotated[float | None, typer.Option(metavar="NUMBER", help="Cores' worth of time on each node, such as 1.5.", show_default="no limit")] = None,
    cpu_weight: Annotated[int | None, typer.Option(metavar="1-10000", help="Against others when cores are short.", show_default="100")] = None,
    max_processes: Annotated[int | None, typer.Option(metavar="NUMBER", help="Processes and threads on each node.", show_default="no limit")] = None,
    gpus: Annotated[str, typer.Option(metavar="0,1,…", help="The GPUs the job may see, dealt to the nodes.", show_default="all")] = "",
    private: Annotated[bool, typer.Option("--private", help="Temporary files and shared memory of the job's own on each node, gone with it.")] = False,
    name: Annotated[str, typer.Option(help="Name the job. Run again with the same name, it goes on from its newest checkpoint.", show_default="made up")] = "",
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module.")] = False,
    no_python: Annotated[bool, typer.Option("--no-python", "--no_python", help="SCRIPT is a program to execute as it is.")] = False,
    no_warm: Annotated[bool, typer.Option("--no-warm", help="Start every worker as a fresh interpreter.")] = False,
    preimport: Annotated[list[str] | None, typer.Option(help="Import this in the warm parent, so that workers start with it. May be given often.")] = None,
    max_restarts: Annotated[int | None, typer.Option("--max-restarts", "--max_restarts", min=0, help="At most this many.", show_default="per cause")] = None,
    resize_every_s: Annotated[
        float, typer.Option(min=0.0, help="With --nnodes MIN:MAX: seconds at least between two changes of a gang that runs.")
    ] = Policy().resize_every_s,
    policy: Annotated[
        str, typer.Option(metavar="auto|ask|advise", help="What is planned is done; waits for `holdfast approve`; or is only said, while the gang runs.")
    ] = "auto",
    never: Annotated[
        list[str] | None, typer.Option(metavar="RUNG", help="Never do this: rejoin, respawn, replace, shrink, roll_back. May be given often.")
    ] = None,
    budget: Annotated[
        list[str] | None, typer.Option(metavar="[RUNG:]COUNT/TIME", help="At most so many remedies, such as replace:3/1h. May be given often.")
    ] = None,
    skip_batches: Annotated[
        int | None,
        typer.Option(min=0, help="The data of so many steps may be left out, in all, when training goes wrong with it.", show_default="8, for NaN alone"),
    ] = None,
    may_change: Annotated[
        str,
        typer.Option(metavar="LIMITS", help="When training goes wrong: how far a remedy may go, such as lr=0.1,clip=1.0,warmup=500.", show_default="nothing"),
    ] = "",
    stage: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH[=TARGET]", help="Copied to every node's own disk before ranks start there, below $HOLDFAST_STAGED. May be given often."),
    ] = None,
    power_cap: Annotated[
        float | None,
        typer.Option(metavar="MIN_WATTS", min=1.0, help="A GPU throttled for heat gets a lower power limit, no lower than this.", show_default="left alone"),
    ] = None,
    notice_file: Annotated[
        str,
        typer.Option(
            "--notice-file", metavar="PATH", help="A node is left before it goes once this file says so; {node} is its name.",
            show_default="`notice` in the node's state directory",
        ),
    ] = "",
    stop_grace_s: Annotated[float, typer.Option(min=0.0, help="Seconds workers get to save and leave when the job is stopped.")] = Policy().stop_grace_s,
    save_every: Annotated[
        str,
        typer.Option(
            "--checkpoint-every",
            help="Save every so many steps, or in a time such as 30s or 5m, whatever the script says; `auto`: as often as is best.",
            show_default="as the script says, else auto",
        ),
    ] = "",
    time_limit: TimeLimit = "",
    epoch_limit: Annotated[str, typer.Option(metavar="TIME", help="An epoch should take no longer than this.", show_default="none")] = "",
    target: Annotated[
        str, typer.Option(metavar="METRIC<=VALUE", help="What the job is run for: 'validation_loss<=0.5', 'accuracy_ratio>=0.9'.", show_default="none")
    ] = "",
    within: Annotated[str, typer.Option(metavar="TIME", help="The target should be reached within this.", show_default="no limit")] = "",
    at_limit: Annotated[
        str, typer.Option(metavar="report|stop", help="Beyond a limit: say so and why, and go on; or save, stop, and be ready to be resumed.")
    ] = "report",
    no_profile: Annotated[bool, typer.Option("--no-profile", help="Take no profile by itself when something is slow.")] = False,
    no_learning: NoLearning = False,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="What decides how much memory it needs, such as batch=32; runs of one shape are compared.")
    ] = None,
    remote: RemoteRoot = None,
    alerts: AlertsFile = None,
    rules: Annotated[list[Path] | None, typer.Option("--rules", metavar="FILE", help="Rules of your own beside the shipped ones; may be given often.")] = None,
    metrics: Annotated[
        str, typer.Option(metavar="[HOST:]PORT", help="Answer Prometheus at this port with the series of all nodes; 0 for a free port.", show_default="nowhere")
    ] = "",
    agent_metrics: Annotated[
        int | None, typer.Option(metavar="PORT", min=1, max=65535, help="Agents answer too, each for its node: node N at PORT + N.", show_default="nowhere")
    ] = None,
    metrics_token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Scrapers must know the token in it.")] = None,
    metrics_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate, in PEM: metrics over HTTPS.")] = None,
    metrics_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Examine the machine first, as `holdfast doctor` does, and start nothing on a bad one.")] = False,
    chaos: Annotated[bool, typer.Option("--chaos", help="Faults may be injected into this job: see `holdfast chaos`.")] = False,
    standalone: Annotated[bool, typer.Option("--standalone", hidden=True, help="As torchrun spells it; a job here always is.")] = False,
    detached: Detached = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Run a training script and keep it running."""
    from holdfast.cli.address import address_for, reached
    from holdfast.cli.alerting import checked_alerts
    from holdfast.cli.job import new_job
    from holdfast.cli.metrics import metrics_at
    from holdfast.cli.options import (
        budgets_of,
        check_fits,
        checkpoint_every,
        gpus_of,
        limits_of,
        may_change_of,
        mode_of,
        never_of,
        nodes_of,
        notice_file_of,
        processes_per_node,
        resources_of,
        shape_of,
        stages_of,
    )

    root = state_root(state)
    least, most = nodes_of(nodes)
    asked = resources_of(
        memory=memory, memory_high=memory_high, memory_per_worker=memory_per_worker, cpus=cpus, cpu_weight=cpu_weight, max_processes=max_processes
    )
    spec = JobSpec(
        job=name or _made_up_name(script), run=secrets.token_hex(8), argv=(script, *(arguments or ())), module=module, python=not no_python, cwd=os.getcwd(),
        nodes=most, min_nodes=least if least < most else 0,
        spares=spares, ranks_per_node=processes_per_node(nproc), warm=not no_warm, preimport=tuple(preimport or ()),
        resources=asked, gpus=gpus_of(gpus, most + spares), private=private, domains=domains, own_network=own_network,
        save_every=checkpoint_every(save_every), notice_file=notice_file_of(notice_file), stage=stages_of(stage or []), power_cap_watts=power_cap,
        limits=limits_of(time_limit=time_limit, epoch_limit=epoch_limit, target=target, within=within, at_limit=at_limit),
        policy=Policy(
            max_restarts=max_restarts, stop_grace_s=stop_grace_s, profile_every_s=None if no_profile else Policy().profile_every_s,
            resize_every_s=resize_every_s, mode=mode_of(policy), never=never_of(never or []), budgets=budgets_of(budget or []),
            skip_batches=skip_batches, may_change=may_change_of(may_change),
        ),
        shape=shape_of(shape or []), chaos=chaos,
    )  # fmt: skip
    _check_script(spec)
    check_fits(spec)
    at = metrics_at(metrics, agent_metrics or 0, token_file=metrics_token_file, cert_file=metrics_cert, key_file=metrics_key, spec=spec)
    spec = dataclasses.replace(spec, metrics=at, alerts=checked_alerts(alerts_file(alerts)), rules=_checked_rules(rules or []))
    spec = dataclasses.replace(spec, learned=None if no_learning else _learned(root, spec))
    if check:
        from holdfast.cli.doctor import check_before

        check_before(root, spec, sys.stderr)
    directory = new_job(root, spec.job)
    _run(directory, reached(dataclasses.replace(spec, remote=address_for(remote_root(remote), spec.job))), as_json=as_json, detached=detached)


@app.command()
def resume(
    job: Name,
    remote: Annotated[str | None, typer.Option("--remote", metavar="URL", help="Another remote store; '' for none.", show_default="as it was")] = None,
    alerts: Annotated[str | None, typer.Option("--alerts", metavar="FILE", help="Tell others of incidents; '' for nobody.", show_default="as it was")] = None,
    time_limit: Annotated[str | None, typer.Option(metavar="TIME", help="Another time limit, in all; '' for none.", show_default="as it was")] = None,
    at_limit: Annotated[str | None, typer.Option(metavar="report|stop", help="Beyond a limit: say so, or stop.", show_default="as it was")] = None,
    no_learning: NoLearning = False,
    detached: Detached = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Run a job again as it was, from its newest checkpoint."""
    import msgspec

    from holdfast.cli.address import address_for, reached
    from holdfast.cli.alerting import checked_alerts
    from holdfast.cli.job import known_job
    from holdfast.cli.options import limited_anew

    directory = known_job(state_root(state), job)
    spec = msgspec.json.decode(directory.spec.read_bytes(), type=JobSpec)
    told = spec.alerts if alerts is None else checked_alerts(alerts)
    spec = dataclasses.replace(spec, run=secrets.token_hex(8), alerts=told, remote=spec.remote if remote is None else address_for(remote, job))
    spec = dataclasses.replace(spec, limits=limited_anew(spec.limits, time_limit, at_limit))
    spec = dataclasses.replace(spec, learned=None if no_learning else _learned(state_root(state), spec))
    _run(directory, reached(spec, again=True), as_json=as_json, detached=detached)


def _run(directory: JobDirectory, spec: JobSpec, *, as_json: bool, detached: bool) -> None:
    from holdfast.cli.job import hold
    from holdfast.cli.run import detach, exit_code, run_job

    if spec.chaos:
        from holdfast.cli.chaos import prepared

        spec = prepared(directory, spec)
    if detached:
        with hold(directory):
            pass  # Said here rather than in the background, where nobody reads it.
        directory.logs.mkdir(exist_ok=True)
        if not detach(str(directory.logs / "run.log")):
            print(json.dumps({"job": spec.job, "detached": True}) if as_json else f"{spec.job}: runs in the background; `holdfast attach {spec.job}` shows it")
            return
    live = _live(as_json=as_json)
    try:
        ended = run_job(directory, spec, live)
    finally:
        live.close()
    live.summary(ended)
    raise typer.Exit(exit_code(ended))


@app.command()
def attach(job: Name, state: State = None, as_json: AsJson = False) -> None:
    """Watch a running job. Ctrl-C ends the watching, not the job."""
    from holdfast.cli.job import known_job
    from holdfast.cli.run import attach_job, exit_code

    directory = known_job(state_root(state), job)
    live = _live(as_json=as_json)
    try:
        seen = attach_job(directory, live)
    finally:
        live.close()
    if seen.outcome is None:
        raise typer.Exit(0)
    live.summary(seen)
    raise typer.Exit(exit_code(seen))


@app.command()
def watch(
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="The job's name.", show_default="the newest that runs")] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="Curves over so long: 30m, 2d. Of a job that ended, its last ones.", show_default="1h")] = "",
    once: Annotated[bool, typer.Option("--once", help="One look.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Watch the numbers of a running job: its ranks, nodes and GPUs, and what stands out. Ctrl-C ends the watching, not the job."""
    from holdfast.cli.watch import run_watch, watched_job

    raise typer.Exit(run_watch(watched_job(state_root(state), job), since=since, once=once, as_json=as_json, out=sys.stdout))


@app.command()
def ps(state: State = None, as_json: AsJson = False) -> None:
    """List jobs, newest first."""
    from rich.console import Console

    from holdfast.cli import tables
    from holdfast.cli.job import is_held, jobs, state_of

    found = jobs(state_root(state))
    states = [state_of(directory) for directory in found]
    if as_json:
        rows = [{**row, "running": is_held(directory)} for row, directory in zip(tables.jobs_json(states), found, strict=True)]
        _print_json(rows)
    else:
        Console().print(tables.jobs_table(states))


@app.command()
def show(job: Name, state: State = None, as_json: AsJson = False) -> None:
    """Show where a job stands, where its time went, and what each incident cost."""
    from rich.console import Console

    from holdfast.cli import tables
    from holdfast.cli.job import known_job, state_of

    seen = state_of(known_job(state_root(state), job))
    if as_json:
        _print_json(tables.show_json(seen))
    else:
        Console().print(tables.show(seen))


@app.command()
def incidents(
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="The job's name, as `holdfast ps` lists it.", show_default="all jobs")] = "",
    number: Annotated[int | None, typer.Argument(help="One incident, with its whole story.")] = None,
    cause: Annotated[str, typer.Option(metavar="CAUSE", help="Only of this cause, after corrections.", show_default="any")] = "",
    node: Annotated[str, typer.Option(metavar="NODE", help="Only those put down to this node.", show_default="any")] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="Only so new: 12h, 7d, or a date such as 2026-11-10.", show_default="any")] = "",
    of_job: Annotated[str, typer.Option("--job", metavar="JOB", help="Only of this job; the same as JOB.", show_default="all jobs")] = "",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """List what went wrong in a job, or tell the story of one incident; or search the incidents of all jobs."""
    from rich.console import Console

    from holdfast.cli import tables
    from holdfast.cli.job import known_job, state_of

    if cause or node or since or of_job or not job:
        from holdfast.cli.learning_shown import search_json, search_table
        from holdfast.cli.lessons import found

        chosen_ones = found(state_root(state), cause=cause, node=node, since=since, job=of_job or job, now=time.time())
        _print_json(search_json(chosen_ones)) if as_json else Console().print(search_table(chosen_ones))
        return
    seen = state_of(known_job(state_root(state), job))
    if number is None:
        _print_json(tables.incidents_json(seen)) if as_json else Console().print(tables.incidents_table(seen))
        return
    chosen = next((incident for incident in seen.incidents if incident.id == number), None)
    if chosen is None:
        raise UserError(f"job {job!r} has no incident {number}; it has {len(seen.incidents)}: `holdfast incidents {job}` lists them")
    from holdfast.cli.lessons import before, seen_lines

    earlier = before(state_root(state), job, chosen)
    if as_json:
        _print_json({**tables.incident_json(seen, chosen), "seen_before": earlier.says if earlier is not None else None})
    else:
        Console().print(tables.story(seen, chosen), seen_lines(earlier))


@app.command()
def correct(
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", help="JOB/NUMBER, or fingerprint:TEXT.")],
    cause: Annotated[str, typer.Argument(metavar="CAUSE", help="What it really was: a class of docs/causes.md.")],
    because: Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever reads it later.")] = "",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Say what a failure really was. The next one of the same fingerprint is called so at once; training takes it in."""
    import msgspec

    from holdfast.cli.lessons import correct as corrected

    said = corrected(state_root(state), incident, cause, because)
    if as_json:
        _print_json(msgspec.to_builtins(said))
    else:
        was = f", which was called {said.was}" if said.was else ""
        print(f"correction {said.number}: {said.fingerprint}{was}, is {said.cause} from now on; `holdfast learn revoke {said.number}` takes it back")


@app.command()
def replay(
    job: Name,
    incident: Annotated[int | None, typer.Argument(help="Only the events of this incident.")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Take a job's events again, one by one, and print each decision with its reason."""
    from rich.console import Console

    from holdfast.cli import tables
    from holdfast.cli.job import known_job
    from holdfast.cli.replaying import replayed
    from holdfast.control.journal import Journal

    directory = known_job(state_root(state), job)
    journal = Journal(directory.journal, read_only=True)
    result = replayed(journal, incident)
    _print_json(tables.replay_json(result.entries)) if as_json else Console().print(tables.replay(result.entries))
    for line in result.differences:
        print(f"holdfast: {line}", file=sys.stderr)
    raise typer.Exit(1 if result.differences else 0)


@app.command()
def logs(
    job: Name,
    rank: Annotated[int, typer.Option(min=0, help="Whose output.")] = 0,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it is printed, until the job ends.")] = False,
    lines: Annotated[int | None, typer.Option("-n", "--lines", min=0, help="Only the last so many lines.", show_default="all")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Print what a rank printed."""
    from holdfast.cli.job import is_held, known_job
    from holdfast.cli.logs import log_records, print_log

    directory = known_job(state_root(state), job)
    path = directory.rank_log(rank)
    if not path.exists():
        there = sorted(int(one.stem.partition("-")[2]) for one in directory.logs.glob("rank-*.log"))
        raise UserError(f"job {job!r} has no output of rank {rank}; it has that of ranks {there}" if there else f"job {job!r} has printed nothing yet")
    if as_json:
        _print_json(log_records(path, lines))
    else:
        print_log(path, lines, follow=follow, alive=lambda: is_held(directory))


@app.command()
def stop(
    job: Name,
    now: Annotated[bool, typer.Option("--now", help="Without grace.")] = False,
    wait_s: Annotated[float, typer.Option(min=0.0, help="How long to wait for the end.")] = 120.0,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Stop a running job: workers save, leave, and can be resumed."""
    import asyncio

    from holdfast.cli.job import is_held, known_job
    from holdfast.cli.run import ask_to_stop

    directory = known_job(state_root(state), job)
    if not is_held(directory):
        raise UserError(f"job {job!r} is not running; `holdfast show {job}` says how it ended")
    try:
        asyncio.run(ask_to_stop(directory, now=now))
    except OSError as error:
        raise HoldfastError(f"job {job!r} runs but its control does not answer ({error}); it may be restarting: try again") from error
    deadline = time.monotonic() + wait_s
    while is_held(directory) and time.monotonic() < deadline:
        time.sleep(0.05)
    stopped = not is_held(directory)
    _print_json({"job": job, "stopped": stopped}) if as_json else print(f"{job}: {'stopped' if stopped else 'is still stopping'}")
    raise typer.Exit(0 if stopped else 1)


@app.command()
def profile(
    job: Name,
    ranks: Annotated[str, typer.Option(help="`slow`: the slow ones and a healthy one beside them; `all`; or numbers such as 0,3.")] = "slow",
    steps: Annotated[int, typer.Option(help="Steps to profile.")] = STEPS,
    wait_s: Annotated[float, typer.Option(min=0.0, help="How long to wait for it.")] = Policy().profile_wait_s,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Profile a few steps of a running job: the slow ranks beside a healthy one, in words and as traces."""
    from rich.console import Console

    from holdfast.cli.job import known_job
    from holdfast.cli.profile import profile_json, profile_shown, take_profile, who

    directory = known_job(state_root(state), job)
    taken = take_profile(directory, who(ranks), steps=steps, wait_s=wait_s, quiet=as_json)
    _print_json(profile_json(directory, taken)) if as_json else Console().print(profile_shown(directory, taken))
    raise typer.Exit(0 if taken.ranks else 1)


@app.command()
def approve(job: Name, state: State = None, as_json: AsJson = False) -> None:
    """Let the plan be carried out that waits for it (`holdfast run --policy ask`, or `advise`)."""
    _say_to(job, "approve", state, as_json=as_json)


@app.command()
def veto(
    job: Name,
    instead: Annotated[
        str, typer.Option(metavar="RUNG", help="Do this instead: respawn, replace, shrink, replay, skip, …", show_default="stop, ready to be resumed")
    ] = "",
    because: Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever reads the story later.")] = "",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Forbid the plan that waits."""
    _say_to(job, "veto", state, instead=instead, because=because, as_json=as_json)


NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node's name, as `holdfast nodes` lists it.")]
Why = Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever asks later.")]


@app.command()
def nodes(job: Name, state: State = None, as_json: AsJson = False) -> None:
    """List the nodes of a job: which are in the gang, which are spare, which are not used and why."""
    from rich.console import Console

    from holdfast.cli import operating
    from holdfast.cli.job import known_job, state_of

    seen = state_of(known_job(state_root(state), job))
    _print_json(operating.nodes_json(seen)) if as_json else Console().print(operating.nodes_table(seen))


@app.command()
def cordon(job: Name, node: NodeName, because: Why = "", state: State = None, as_json: AsJson = False) -> None:
    """Give a node no ranks of a new generation. What runs there runs on."""
    _say_to(job, "cordon", state, node=node, because=because, as_json=as_json)


@app.command()
def uncordon(job: Name, node: NodeName, state: State = None, as_json: AsJson = False) -> None:
    """Use a node again that was cordoned or drained."""
    _say_to(job, "uncordon", state, node=node, as_json=as_json)


@app.command()
def drain(job: Name, node: NodeName, because: Why = "", state: State = None, as_json: AsJson = False) -> None:
    """Cordon a node, and have the gang leave it at the next save: for a spare, or with fewer nodes."""
    _say_to(job, "drain", state, node=node, because=because, as_json=as_json)


@app.command()
def check(job: Name, node: NodeName, state: State = None, as_json: AsJson = False) -> None:
    """Check a node that is not in the gang, by itself and with idle nodes: returned, or retired. `holdfast nodes` says what came of it."""
    _say_to(job, "check", state, node=node, as_json=as_json)


@app.command()
def undo(job: Name, state: State = None, as_json: AsJson = False) -> None:
    """Take back what was changed about training because it went wrong, from the next save on. `holdfast show` says what that is."""
    _say_to(job, "undo", state, as_json=as_json)


def _say_to(job: str, what: str, root: Path | None, *, node: str = "", instead: str = "", because: str = "", as_json: bool) -> None:
    from holdfast.cli.job import known_job
    from holdfast.cli.operating import say

    says = say(known_job(state_root(root), job), what, node=node, instead=instead, because=because)
    _print_json({"job": job, "says": says}) if as_json else print(f"{job}: {says}")


@app.command()
def demo(
    as_json: AsJson = False,
    quick: Annotated[bool, typer.Option("--quick", help="A shorter storm.")] = False,
    report: Annotated[Path | None, typer.Option(help="Where to write the page.", show_default="holdfast-demo.html")] = None,
    state: State = None,
) -> None:
    """Train a real transformer through a storm of real faults, and report."""
    from holdfast.cli.demo import run_demo

    raise typer.Exit(run_demo(state_root(state), _live(as_json=as_json), quick=quick, page=report or Path("holdfast-demo.html")))


@app.command()
def doctor(
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Examine the nodes of this running job too.", show_default="none")] = "",
    only: Annotated[str, typer.Option(metavar="NAMES", help="Only these checks, separated by commas.", show_default="all")] = "",
    full: Annotated[bool, typer.Option("--full", help="More of everything, up to a minute.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Examine this machine: is it fit to train on, and if not, what is at fault? Exit status 1 when something is bad."""
    from holdfast.cli.doctor import run_doctor
    from holdfast.cli.job import known_job

    root = state_root(state)
    raise typer.Exit(run_doctor(root, known_job(root, job) if job else None, only=only, full=full, as_json=as_json, out=sys.stdout))


@app.command()
def chaos(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as `holdfast ps` lists it; with --launcher a script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="With --launcher: passed on to the script, after --.")] = None,
    faults: Annotated[str, typer.Option(metavar="NAMES", help="Only these, separated by commas.", show_default="all that are possible")] = "",
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 10,
    rate: Annotated[float, typer.Option(min=0.01, help="Faults in a thousand steps, at random.")] = 20.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same faults, at the same ranks and steps.")] = 0,
    minutes: Annotated[float, typer.Option(min=0.1, help="It ends by itself after so long.")] = 30.0,
    suite: Annotated[bool, typer.Option("--suite", help="Every fault that is possible once, and a scorecard.")] = False,
    launcher: Annotated[str, typer.Option(metavar="torchrun", help="With --suite: run a script under this launcher instead, to compare.")] = "",
    nproc: Annotated[int, typer.Option(min=1, help="With --launcher: ranks.")] = 2,
    list_only: Annotated[bool, typer.Option("--list", help="Only say which faults are possible here, and why not the others.")] = False,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the job's report as a page.", show_default="none")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Do real faults to a job that was started with `holdfast run --chaos`, and report what was found, what was done, and what it cost."""
    from holdfast.cli.chaos import Asked, run_chaos, run_foreign
    from holdfast.cli.job import known_job

    if launcher:
        raise typer.Exit(run_foreign(launcher, [job, *(arguments or [])], ranks=nproc, seed=seed, as_json=as_json, out=sys.stdout))
    asked = Asked(faults=faults, count=count, per_1000_steps=rate, seed=seed, minutes=minutes, suite=suite, list_only=list_only, page=report)
    raise typer.Exit(run_chaos(known_job(state_root(state), job), asked, as_json=as_json, out=sys.stdout))


@app.command()
def bisect(
    job: Name,
    change: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="What one run changes: lr=*0.5, clip=1.0. May be given often.")] = None,
    steps: Annotated[int, typer.Option(min=4, help="How long each run is.")] = 100,
    from_step: Annotated[int | None, typer.Option("--from", metavar="STEP", help="Begin from this checkpoint.", show_default="the newest")] = None,
    repeats: Annotated[int, typer.Option(min=2, help="How often the unchanged run is done: how far they are apart is the noise.")] = 2,
    within: Annotated[str, typer.Option(metavar="TIME", help="A run that takes longer is ended, and so is the bisection.")] = "10m",
    beside: Annotated[bool, typer.Option("--beside", help="Also while the job runs.")] = False,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the losses into this file. Needs matplotlib.", show_default="none")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Try changes of hyper-parameters in short runs from one checkpoint, and say which mattered. The job itself stays as it is."""
    from rich.console import Console

    from holdfast.cli import bisecting
    from holdfast.cli.job import known_job
    from holdfast.cli.options import time_of
    from holdfast.cli.png import drawable

    if png is not None:
        drawable(png)
    wish = bisecting.Wish(
        changes=tuple(change or ()), steps=steps, from_step=from_step, repeats=repeats, within_s=time_of("--within", within) or 0.0, beside=beside
    )
    report = bisecting.bisect(known_job(state_root(state), job), wish, lambda said: print(said, file=sys.stderr))
    if png is not None:
        bisecting.draw(report, png)
    _print_json(bisecting.as_json(report)) if as_json else Console().print(bisecting.shown(report))


@app.command()
def selftest(
    gpus: Annotated[int, typer.Option(min=0, help="Ranks with a GPU each, over NCCL; 0 for gloo on the CPU.")] = 0,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks on the CPU.")] = 2,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Check on this machine that a job survives faults and ends with the same weights."""
    from holdfast.cli.selftest import run_selftest

    raise typer.Exit(run_selftest(state_root(state), gpus=gpus, ranks=ranks, as_json=as_json))


@app.command()
def detect(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="CSV, gzipped or not, with the columns timestamp and value; - is the standard input.")],
    as_json: AsJson = False,
) -> None:
    """Find what is unusual in series of numbers: a plot and a sentence for each finding; with --json a line a file, with a score for each row."""
    from holdfast.cli.detect import run_detect

    raise typer.Exit(run_detect(files, as_json=as_json, out=sys.stdout, err=sys.stderr))


@app.command()
def diagnose(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="Log files, compressed or not, directories of them, - for the standard input, or the name of a job.")
    ],
    explain: Annotated[bool, typer.Option("--explain", help="The whole reasoning.")] = False,
    each: Annotated[bool, typer.Option("--each", help="Every file is a case of its own.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that needs nothing else.", show_default="none")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Say from logs what broke, where, whether trying again can help, and what to do. Exit status: 0 healthy, 10 transient, 11 permanent, 12 unclear."""
    from holdfast.cli.diagnose import Asked, run_diagnose

    asked = Asked(paths=tuple(paths), explain=explain, as_json=as_json, each=each, html=html, state=state_root(state))
    raise typer.Exit(run_diagnose(asked, out=sys.stdout, err=sys.stderr))


app.command()(plan)
for _command in (queue, why, shares):
    app.command()(_command)


@app.command()
def simulate(
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Replay the jobs of this CSV file, gzipped or not.", show_default="made-up faults")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the cluster.")] = 160,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, help="GPUs of each.")] = 8,
    policy: Annotated[list[str] | None, typer.Option(help="Who decides; may be given often.", show_default="holdfast")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds.", show_default="1 with a trace, else 1000")] = None,
    start: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    days: Annotated[str, typer.Option(metavar="A:B", help="Only jobs that were submitted on these days.", show_default="all")] = "",
    clip: Annotated[str, typer.Option(metavar="TIME", help="No job runs longer: 7d.", show_default="as they are")] = "",
    restart_s: Annotated[float, typer.Option(min=0.0, help="What a restart after an eviction costs.")] = 300.0,
    node_mtbf_hours: Annotated[float | None, typer.Option(metavar="HOURS", help="Each node fails after so long on average.", show_default="never")] = None,
    repair_hours: Annotated[float, typer.Option(metavar="HOURS", help="And is back after so long on average.")] = 4.0,
    lemons: Annotated[float, typer.Option(metavar="PART", help="So many of all nodes, such as 0.02, fail a hundred times as often.")] = 0.0,
    failures: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Without a trace: machines are lost as in this CSV (at_s,node).", show_default="made up")
    ] = None,
    story: Annotated[bool, typer.Option("--story", help="Without a trace: print all that happens.")] = False,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="With a trace: draw waits and completions into this file. Needs matplotlib.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace of jobs under a policy; or, without one, run the core through made-up faults, from seeds."""
    from holdfast.cli.simulate import Asked, run_replay, run_survey

    if trace is None:
        raise typer.Exit(run_survey(seeds or 1000, start, story=story, as_json=as_json, failures=failures))
    asked = Asked(
        trace=trace, nodes=nodes, gpus_per_node=gpus_per_node, policies=tuple(policy or ["holdfast"]), seeds=seeds or 1, start=start, days=days, clip=clip,
        restart_s=restart_s, node_mtbf_hours=node_mtbf_hours, repair_hours=repair_hours, lemons=lemons,
    )  # fmt: skip
    raise typer.Exit(run_replay(asked, as_json=as_json, png=png))


class _Checkpoint(TyperGroup):
    """Loaded when it is asked for: its commands and what they need take longer to import than most others take to run."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._load()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        self._load()
        return super().get_command(ctx, cmd_name)

    def _load(self) -> None:
        from holdfast.cli import checkpoints

        self.commands = self.commands or typer.main.get_group(checkpoints.app).commands


class _Learn(_Checkpoint):
    def _load(self) -> None:
        from holdfast.cli import learning

        self.commands = self.commands or typer.main.get_group(learning.app).commands


class _Rules(_Checkpoint):
    def _load(self) -> None:
        from holdfast.cli import rules

        self.commands = self.commands or typer.main.get_group(rules.app).commands


class _Alerts(_Checkpoint):
    def _load(self) -> None:
        from holdfast.cli import alerts

        self.commands = self.commands or typer.main.get_group(alerts.app).commands


app.add_typer(typer.Typer(), name="alerts", cls=_Alerts, no_args_is_help=True, help="Check, test, list and silence what people are told of incidents.")
class _Dashboards(_Checkpoint):
    def _load(self) -> None:
        from holdfast.cli import dashboards

        self.commands = self.commands or typer.main.get_group(dashboards.app).commands


app.add_typer(typer.Typer(), name="dashboards", cls=_Dashboards, no_args_is_help=True, help="Write dashboards for Grafana, and alerts for Prometheus.")
app.add_typer(typer.Typer(), name="learn", cls=_Learn, no_args_is_help=True, help="What was learned from earlier jobs; corrections; export.")
app.add_typer(typer.Typer(), name="rules", cls=_Rules, no_args_is_help=True, help="List, check, test and export the rules that watch a job.")
app.add_typer(typer.Typer(), name="checkpoint", cls=_Checkpoint, no_args_is_help=True, help="List, verify, prune, compare, export and import checkpoints.")


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    _print_json({"version": __version__}) if as_json else print(f"holdfast {__version__}")


def main() -> None:
    """What the `holdfast` program runs."""
    _leave_out_the_others(next((word for word in sys.argv[1:] if not word.startswith("-")), ""))
    try:
        app(prog_name="holdfast")
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _leave_out_the_others(wanted: str) -> None:
    """To build the options of forty commands takes longer than most of them run. Where none is asked for, or one that is not there, all are told of."""
    known = {one.name or (one.callback.__name__ if one.callback is not None else ""): one for one in app.registered_commands}
    if wanted in known:
        app.registered_commands, app.registered_groups = [known[wanted], known["version"]], []  # With one alone there would be no name to give.


def _learned(root: Path, spec: JobSpec) -> Learned | None:
    """What earlier jobs have taught; and a word of warning where they say that this one will not fit."""
    if not past_database(root).exists():
        return None
    from holdfast.cli.lessons import learned_for, peak_warning

    warning = peak_warning(root, spec)
    if warning:
        print(f"holdfast: {warning}", file=sys.stderr)
    return learned_for(root, spec.job)


def _checked_rules(files: list[Path]) -> tuple[str, ...]:
    """A rule that would never fire is told of before anything is started."""
    if not files:
        return ()
    from holdfast.control.rulebook import rules_in_force

    problems = rules_in_force(files).problems
    if problems:
        raise UserError("the rules are not good; `holdfast rules check` says the same:\n" + "\n".join(f"  {problem}" for problem in problems))
    return tuple(str(file.absolute()) for file in files)


def _made_up_name(script: str) -> str:
    stem = "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in Path(script).stem).strip("-")[:40]
    return f"{stem or 'job'}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _check_script(spec: JobSpec) -> None:
    """What can be known to fail is refused before anything is started."""
    name = spec.argv[0]
    if spec.module or not spec.python:
        if spec.module and importlib.util.find_spec(name.partition(".")[0]) is None and not Path(name.partition(".")[0]).exists():
            raise UserError(f"there is no module {name!r} in this environment or in {spec.cwd}")
        return
    path = Path(name)
    if not path.is_file():
        near = [one.name for one in sorted(Path(spec.cwd).glob("*.py"))][:5]
        raise UserError(f"there is no script {name!r} in {spec.cwd}" + (f"; there are {', '.join(near)}" if near else ""))
    try:
        ast.parse(path.read_bytes(), filename=name)
    except SyntaxError as error:
        raise UserError(f"{name} does not parse, line {error.lineno}: {error.msg}: {(error.text or '').strip()}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{name} cannot be read as a Python script: {error}") from error


def _live(*, as_json: bool) -> Live:
    from holdfast.cli.live import Live, mode_for

    return Live(sys.stdout.buffer, sys.stderr, mode=mode_for(sys.stdout.buffer, as_json=as_json))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
