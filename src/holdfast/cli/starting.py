"""`holdfast run`, `resume` and `attach`: what they take, and what is refused before anything is started."""

from __future__ import annotations

import ast
import dataclasses
import fcntl
import importlib.util
import json
import os
import secrets
import stat
import sys
import termios
import time
from array import array
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.common import AsJson, Name, NameOrNewest, State, live_view, number
from holdfast.domain.job import UNDER_CHAOS, JobSpec, Outcome, Policy
from holdfast.domain.learned import Learned
from holdfast.domain.state import State as JobState
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory, past_database
from holdfast.settings import alerts_file, hang_limit_text, remote_root, state_root

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


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script; with -m a module, with --no-python a program.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENTS]…", help="Passed on to it as they are.")] = None,
    nproc: Annotated[str, typer.Option("--nproc-per-node", "--nproc", help="Ranks a node: a number, `gpu`, `cpu` or `auto`.")] = "1",
    nodes: Annotated[str, typer.Option("--nnodes", "--nodes", help="Nodes, all on this machine; MIN:MAX: no fewer than MIN while others are lost.")] = "1",
    spares: Annotated[int, typer.Option(min=0, help="Nodes kept ready to take the place of one that is lost.")] = 0,
    mesh: Annotated[
        str,
        typer.Option(metavar="DIMENSIONS", help="How ranks are laid out, such as dp=4,pp=2,tp=8, the last one fastest.", show_default="as it is seen"),
    ] = "",
    domains: Annotated[
        int, typer.Option(min=0, help="Failure domains, dealt round the nodes: a copy of a node's state is held in another.", show_default="one each")
    ] = 0,
    own_network: Annotated[
        bool, typer.Option("--own-network", help="Each node in a network namespace of its own, from which only the other nodes are reached. Needs root.")
    ] = False,
    memory: Annotated[
        str,
        typer.Option(metavar="SIZE", help="All workers of a node together may have this much: 8GB; MIN:MAX: more, up to MAX, after a kill for lack of it.",
                     show_default="no limit"),
    ] = "",
    memory_high: Annotated[
        str, typer.Option(metavar="SIZE", help="Above this the kernel holds the job up and takes memory back, and kills nobody.", show_default="no limit")
    ] = "",
    memory_per_worker: Annotated[str, typer.Option(metavar="SIZE", help="Each worker may have this much.", show_default="no limit")] = "",
    cpus: Annotated[float | None, number(metavar="NUMBER", help="Cores' worth of time on each node, such as 1.5.", show_default="no limit")] = None,
    cpu_weight: Annotated[int | None, typer.Option(metavar="1-10000", help="Against others when cores are short.", show_default="100")] = None,
    max_processes: Annotated[int | None, typer.Option(metavar="NUMBER", help="Processes and threads on each node.", show_default="no limit")] = None,
    gpus: Annotated[str, typer.Option(metavar="0,1,…", help="The GPUs the job may see, dealt to the nodes.", show_default="all")] = "",
    private: Annotated[bool, typer.Option("--private", help="Temporary files and shared memory of the job's own on each node, gone with it.")] = False,
    name: Annotated[str, typer.Option(help="Name the job. Run again with the same name, it goes on from its newest checkpoint.", show_default="made up")] = "",
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module.")] = False,
    no_python: Annotated[bool, typer.Option("--no-python", help="SCRIPT is a program to execute as it is.")] = False,
    no_warm: Annotated[bool, typer.Option("--no-warm", help="Start every worker as a fresh interpreter.")] = False,
    preimport: Annotated[list[str] | None, typer.Option(help="Import this in the warm parent, so that workers start with it. May be given often.")] = None,
    max_restarts: Annotated[int | None, typer.Option("--max-restarts", min=0, help="At most this many.", show_default="per cause")] = None,
    resize_every_s: Annotated[
        float, number(min=0.0, help="With --nnodes MIN:MAX: seconds at least between two changes of a running gang; doubled by each in the last hour.")
    ] = Policy().resize_every_s,
    smaller_batch: Annotated[
        str,
        typer.Option(
            metavar="linear|sqrt", help="With --nnodes MIN:MAX: a smaller gang has a smaller batch, and the learning rate follows.",
            show_default="the batch is kept",
        ),
    ] = "",
    hang_limit: Annotated[
        str | None,
        typer.Option(metavar="TIME|off", help="A rank that stands still for this long is hung, whatever it does; also by phase: eval=1h,start=20m.",
                     show_default="learned; 30s with --chaos"),
    ] = None,
    slow_wait_s: Annotated[
        float, number(min=0.0, help="Seconds a rank must hold the gang back before it is asked whether to leave its node.")
    ] = Policy().slow_wait_s,
    policy: Annotated[
        str, typer.Option(metavar="auto|ask|advise", help="What is planned is done; waits for `holdfast approve`; or is only said, while the gang runs.")
    ] = "auto",
    never: Annotated[
        list[str] | None, typer.Option(metavar="RUNG", help="Never do this: rejoin, respawn, replace, shrink, roll_back. May be given often.")
    ] = None,
    budget: Annotated[
        list[str] | None, typer.Option(metavar="[RUNG|CAUSE:]COUNT/TIME", help="At most so many remedies, such as replace:3/1h. May be given often.")
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
        number(metavar="MIN_WATTS", min=1.0, help="A GPU throttled for heat gets a lower power limit, no lower than this.", show_default="left alone"),
    ] = None,
    notice_file: Annotated[
        str,
        typer.Option(
            "--notice-file", metavar="PATH", help="A node is left before it goes once this file says so; {node} is its name.",
            show_default="`notice` in the node's state directory",
        ),
    ] = "",
    stop_grace_s: Annotated[
        float, number("--stop-grace-s", "--shutdown-timeout", min=0.0, help="Seconds workers get to save and leave when the job is stopped.")
    ] = Policy().stop_grace_s,
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
        hang_limits_of,
        limits_of,
        may_change_of,
        mesh_of,
        mode_of,
        never_of,
        nodes_of,
        notice_file_of,
        processes_per_node,
        resources_of,
        shape_of,
        smaller_batch_of,
        stages_of,
    )

    root = state_root(state)
    (least, most), each = nodes_of(nodes), processes_per_node(nproc)
    asked = resources_of(
        memory=memory, memory_high=memory_high, memory_per_worker=memory_per_worker, cpus=cpus, cpu_weight=cpu_weight, max_processes=max_processes
    )
    spec = JobSpec(
        job=name or _made_up_name(script), run=secrets.token_hex(8), argv=(script, *(arguments or ())), module=module, python=not no_python, cwd=os.getcwd(),
        nodes=most, min_nodes=least if least < most else 0,
        spares=spares, ranks_per_node=each, mesh=mesh_of(mesh, least, most, each), warm=not no_warm, preimport=tuple(preimport or ()),
        resources=asked, gpus=gpus_of(gpus, most + spares), private=private, domains=domains, own_network=own_network,
        save_every=checkpoint_every(save_every), notice_file=notice_file_of(notice_file), stage=stages_of(stage or []), power_cap_watts=power_cap,
        limits=limits_of(time_limit=time_limit, epoch_limit=epoch_limit, target=target, within=within, at_limit=at_limit),
        policy=Policy(
            max_restarts=max_restarts, stop_grace_s=stop_grace_s, profile_every_s=None if no_profile else Policy().profile_every_s,
            resize_every_s=resize_every_s, slow_wait_s=slow_wait_s, hang_limits=hang_limits_of(hang_limit_text(hang_limit)) or (UNDER_CHAOS if chaos else ()),
            mode=mode_of(policy), never=never_of(never or []), budgets=budgets_of(budget or []),
            smaller_batch=smaller_batch_of(smaller_batch, least, most), skip_batches=skip_batches, may_change=may_change_of(may_change),
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


def resume(
    job: Name,
    nproc: Annotated[
        str, typer.Option("--nproc-per-node", "--nproc_per_node", "--nproc", help="Another number of ranks a node.", show_default="as it was")
    ] = "",
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
    from holdfast.cli.address import address_for, reached
    from holdfast.cli.alerting import checked_alerts
    from holdfast.cli.job import known_job, spec_of, state_now
    from holdfast.cli.options import check_fits, limited_anew, processes_per_node

    directory = known_job(state_root(state), job)
    job = directory.job
    spec = spec_of(directory)
    if nproc:
        each = processes_per_node(nproc)
        if spec.mesh is not None and each != spec.ranks_per_node:
            raise UserError(f"--mesh of job {job!r} is of {spec.world_size} ranks: give both, `holdfast run --name {job} --nproc-per-node {each} --mesh …`")
        spec = dataclasses.replace(spec, ranks_per_node=each)
        check_fits(spec)
    _agree_to_run_again(state_now(directory), ask=not (as_json or detached))
    told = spec.alerts if alerts is None else checked_alerts(alerts)
    spec = dataclasses.replace(spec, run=secrets.token_hex(8), alerts=told, remote=spec.remote if remote is None else address_for(remote, job))
    spec = dataclasses.replace(spec, limits=limited_anew(spec.limits, time_limit, at_limit))
    spec = dataclasses.replace(spec, learned=None if no_learning else _learned(state_root(state), spec))
    _run(directory, reached(spec, again=True), as_json=as_json, detached=detached)


def _agree_to_run_again(ended: JobState, *, ask: bool) -> None:
    """Says what is done again of a job that has finished; where a person can answer, they are asked."""
    if ended.outcome is not Outcome.FINISHED:
        return
    step, saved = max(ended.step, ended.step_best), ended.saved_step
    again = f"its newest checkpoint is step {saved:,}" if saved >= 0 else "it has no checkpoint and begins from nothing"
    more = f": steps {saved + 1:,} to {step:,} are trained again" if 0 <= saved < step else ""
    said = f"the job has finished{f' at step {step:,}' if step >= 0 else ''}; {again}{more}"
    if ask and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"holdfast: {said}. Run it again?", abort=True, err=True)
    else:
        print(f"holdfast: {said}", file=sys.stderr)


def _run(directory: JobDirectory, spec: JobSpec, *, as_json: bool, detached: bool) -> None:
    from holdfast.cli.job import hold
    from holdfast.cli.newest import newest_of, saved_until
    from holdfast.cli.run import come_up, detach, exit_code, run_job
    from holdfast.launch.local import CannotStayUp

    if spec.chaos:
        from holdfast.cli.chaos import prepared

        spec = prepared(directory, spec)
    if detached:
        with hold(directory):
            pass  # Said here rather than in the background, where nobody reads it.
        directory.logs.mkdir(exist_ok=True)
        if not detach(str(directory.logs / "run.log")):
            come_up(directory)
            print(json.dumps({"job": spec.job, "detached": True}) if as_json else f"{spec.job}: runs in the background; `holdfast attach {spec.job}` shows it")
            return
    if _input_waits():
        print("holdfast: what comes in on standard input is not read, and the script finds nothing there: a rank may be started again", file=sys.stderr)
    live = live_view(as_json=as_json)
    try:
        ended = run_job(directory, spec, live)
    except CannotStayUp as error:
        raise CannotStayUp(f"{error}; {saved_until(directory)}") from error
    finally:
        live.close()
    live.summary(ended, newest_of(directory, ended))
    raise typer.Exit(exit_code(ended))


def _input_waits() -> bool:
    """Whether there is something to read on standard input: a file, or a pipe with something in it."""
    try:
        mode = os.fstat(0).st_mode
        waiting_bytes = array("i", [0])
        if stat.S_ISFIFO(mode):
            fcntl.ioctl(0, termios.FIONREAD, waiting_bytes)
        return waiting_bytes[0] > 0 or (stat.S_ISREG(mode) and os.lseek(0, 0, os.SEEK_CUR) < os.fstat(0).st_size)
    except OSError:
        return False  # It is closed.


def attach(job: NameOrNewest = "", state: State = None, as_json: AsJson = False) -> None:
    """Watch a running job. Ctrl-C ends the watching, not the job."""
    from holdfast.cli.job import known_job
    from holdfast.cli.newest import newest_of
    from holdfast.cli.run import attach_job, exit_code

    directory = known_job(state_root(state), job, newest=True)
    live = live_view(as_json=as_json)
    try:
        seen = attach_job(directory, live)
    finally:
        live.close()
    if seen.outcome is None:
        raise typer.Exit(0)
    live.summary(seen, newest_of(directory, seen))
    raise typer.Exit(exit_code(seen))


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
