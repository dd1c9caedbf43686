"""The command line. Each command is a few lines here; what it does is in the module it names, which is imported when the command is run: a command that
answers at once should also start at once.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast import __version__
from holdfast.cli.common import NODE_GPUS_MAX, NODES_MAX, AsJson, Name, NameOrNewest, SharedAs, State, live_view, number, print_json
from holdfast.cli.panels import panel_of
from holdfast.cli.plan import plan
from holdfast.cli.queueing import queue, shares, why
from holdfast.cli.saying import approve, check, cordon, drain, nodes, uncordon, undo, veto
from holdfast.cli.starting import attach, resume, run
from holdfast.cli.torchrun import AsTorchrun
from holdfast.domain.job import Policy
from holdfast.domain.profile import STEPS
from holdfast.errors import HoldfastError, UserError
from holdfast.settings import state_root

app = typer.Typer(
    no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


def _take(*commands: Callable[..., None]) -> None:
    """Commands of a module of their own, in the order in which they are listed."""
    for command in commands:
        app.command()(command)


app.command(cls=AsTorchrun, context_settings={"allow_interspersed_args": False})(run)
_take(resume, attach)


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
    from holdfast.cli import tables
    from holdfast.cli.job import is_held, jobs, state_now
    from holdfast.cli.screen import Screen

    found = jobs(state_root(state))
    states = [state_now(directory) for directory in found]
    if as_json:
        rows = [{**row, "running": is_held(directory)} for row, directory in zip(tables.jobs_json(states), found, strict=True)]
        print_json(rows)
    else:
        root = state_root(state)
        Screen().print(tables.jobs_table(states) if states or root.is_dir() else f"No jobs: there is no directory {root}.")


@app.command()
def show(job: NameOrNewest = "", state: State = None, as_json: AsJson = False) -> None:
    """Show where a job stands, where its time went, and what each incident cost."""
    from holdfast.cli import tables
    from holdfast.cli.job import known_job, state_now
    from holdfast.cli.newest import newest_of
    from holdfast.cli.processes import rank_processes
    from holdfast.cli.screen import Screen

    directory = known_job(state_root(state), job, newest=True)
    seen, processes = state_now(directory), rank_processes(directory)
    newest = newest_of(directory, seen)
    if as_json:
        print_json(tables.show_json(seen, processes=processes) | (newest.as_json() if newest is not None else {}))
    else:
        Screen().print(tables.show(seen, processes=processes, saved=str(newest) if newest is not None else ""))


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
    from holdfast.cli import tables
    from holdfast.cli.job import known_job, state_now
    from holdfast.cli.screen import Screen

    if cause or node or since or of_job or not job:
        from holdfast.cli.learning_shown import search_json, search_table
        from holdfast.cli.lessons import found

        of = of_job or job
        with contextlib.suppress(UserError):  # A job that is gone is remembered, by its whole name.
            of = known_job(state_root(state), of).job
        chosen_ones = found(state_root(state), cause=cause, node=node, since=since, job=of, now=time.time())
        print_json(search_json(chosen_ones)) if as_json else Screen().print(search_table(chosen_ones))
        return
    directory = known_job(state_root(state), job)
    job, seen = directory.job, state_now(directory)
    if number is None:
        print_json(tables.incidents_json(seen)) if as_json else Screen().print(tables.incidents_table(seen))
        return
    chosen = next((incident for incident in seen.incidents if incident.id == number), None)
    if chosen is None:
        raise UserError(f"job {job!r} has no incident {number}; it has {len(seen.incidents)}: `holdfast incidents {job}` lists them")
    from holdfast.cli.lessons import before, seen_lines

    earlier = before(state_root(state), job, chosen)
    if as_json:
        print_json({**tables.incident_json(seen, chosen), "seen_before": earlier.says if earlier is not None else None})
    else:
        Screen().print(tables.story(seen, chosen), seen_lines(earlier))


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
        print_json(msgspec.to_builtins(said))
    else:
        was = f", which was called {said.was}" if said.was else ""
        print(f"correction {said.number}: {said.fingerprint}{was}, is {said.cause} from now on; `holdfast learn revoke {said.number}` takes it back")


@app.command()
def replay(
    job: NameOrNewest = "",
    incident: Annotated[int | None, typer.Argument(help="Only the events of this incident.")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Take a job's events again, one by one, and print each decision with its reason."""
    from holdfast.cli import tables
    from holdfast.cli.job import known_job
    from holdfast.cli.replaying import replayed
    from holdfast.cli.screen import Screen
    from holdfast.control.journal import Journal

    directory = known_job(state_root(state), job, newest=True)
    journal = Journal(directory.journal, read_only=True)
    result = replayed(journal, incident)
    print_json(tables.replay_json(result.entries)) if as_json else Screen().print(tables.replay(result.entries))
    for line in result.differences:
        print(f"holdfast: {line}", file=sys.stderr)
    raise typer.Exit(1 if result.differences else 0)


@app.command()
def logs(
    job: NameOrNewest = "",
    rank: Annotated[int, typer.Option(min=0, help="Whose output.")] = 0,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it is printed, until the job ends.")] = False,
    lines: Annotated[int | None, typer.Option("-n", "--lines", min=0, help="Only the last so many lines.", show_default="all")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Print what a rank printed."""
    from holdfast.cli.job import is_held, known_job
    from holdfast.cli.logs import log_records, print_log

    directory = known_job(state_root(state), job, newest=True)
    job = directory.job
    path = directory.rank_log(rank)
    if not path.exists():
        there = sorted(int(one.stem.partition("-")[2]) for one in directory.logs.glob("rank-*.log"))
        raise UserError(f"job {job!r} has no output of rank {rank}; it has that of ranks {there}" if there else f"job {job!r} has printed nothing yet")
    if as_json:
        print_json(log_records(path, lines))
    else:
        print_log(path, lines, follow=follow, alive=lambda: is_held(directory))


@app.command()
def stop(
    job: Name,
    now: Annotated[bool, typer.Option("--now", help="Without grace.")] = False,
    wait_s: Annotated[float, number(min=0.0, help="How long to wait for the end.")] = 120.0,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Stop a running job: workers save, leave, and can be resumed."""
    import asyncio

    from holdfast.cli.job import is_held, known_job, not_running
    from holdfast.cli.run import ask_to_stop

    directory = known_job(state_root(state), job)
    job = directory.job
    if not is_held(directory):
        raise UserError(not_running(directory))
    try:
        asyncio.run(ask_to_stop(directory, now=now))
    except OSError as error:
        raise HoldfastError(f"job {job!r} runs but its control does not answer ({error}); it may be restarting: try again") from error
    deadline = time.monotonic() + wait_s
    while is_held(directory) and time.monotonic() < deadline:
        time.sleep(0.05)
    stopped = not is_held(directory)
    print_json({"job": job, "stopped": stopped}) if as_json else print(f"{job}: {'stopped' if stopped else 'is still stopping'}")
    raise typer.Exit(0 if stopped else 1)


@app.command()
def profile(
    job: Name,
    ranks: Annotated[str, typer.Option(help="`slow`: the slow ones and a healthy one beside them; `all`; or numbers such as 0,3.")] = "slow",
    steps: Annotated[int, typer.Option(help="Steps to profile.")] = STEPS,
    wait_s: Annotated[float, number(min=0.0, help="How long to wait for it.")] = Policy().profile_wait_s,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Profile a few steps of a running job: the slow ranks beside a healthy one, in words and as traces."""
    from holdfast.cli.job import known_job
    from holdfast.cli.profile import profile_json, profile_shown, take_profile, who
    from holdfast.cli.screen import Screen

    directory = known_job(state_root(state), job)
    taken = take_profile(directory, who(ranks), steps=steps, wait_s=wait_s, quiet=as_json)
    print_json(profile_json(directory, taken)) if as_json else Screen().print(profile_shown(directory, taken))
    raise typer.Exit(0 if taken.ranks else 1)


_take(approve, veto, nodes, cordon, uncordon, drain, check, undo)


@app.command()
def demo(
    as_json: AsJson = False,
    quick: Annotated[bool, typer.Option("--quick", help="A shorter storm.")] = False,
    report: Annotated[Path | None, typer.Option(help="Where to write the page.", show_default="holdfast-demo.html")] = None,
    state: State = None,
) -> None:
    """Train a real transformer through a storm of real faults, and report."""
    from holdfast.cli.demo import run_demo

    raise typer.Exit(run_demo(state_root(state), live_view(as_json=as_json), quick=quick, page=report or Path("holdfast-demo.html")))


@app.command()
def doctor(
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="For this job, and its nodes while it runs.", show_default="none")] = "",
    only: Annotated[str, typer.Option(metavar="NAMES", help="Only these checks, separated by commas.", show_default="all")] = "",
    full: Annotated[bool, typer.Option("--full", help="More of everything, up to a minute.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Examine this machine: is it fit to train on, and if not, what is at fault? Exit status 1 when something is bad."""
    from holdfast.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(state_root(state), job, only=only, full=full, as_json=as_json, out=sys.stdout))


@app.command()
def chaos(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as `holdfast ps` lists it; with --launcher a script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="With --launcher: passed on to the script, after --.")] = None,
    faults: Annotated[str, typer.Option(metavar="NAMES", help="Only these, separated by commas.", show_default="all that are possible")] = "",
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 10,
    rate: Annotated[float, number(min=0.01, help="Faults in a thousand steps, at random.")] = 20.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same faults, at the same ranks and steps.")] = 0,
    minutes: Annotated[float, number(min=0.1, help="It ends by itself after so long.")] = 30.0,
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
    within: Annotated[str, typer.Option(metavar="TIME", help="A run that takes longer is ended and told of.")] = "10m",
    beside: Annotated[bool, typer.Option("--beside", help="Also while the job runs.")] = False,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the losses into this file. Needs matplotlib.", show_default="none")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Try changes of hyper-parameters in short runs from one checkpoint, and say which mattered. The job itself stays as it is. Exit status 1 when a run
    did not come to its end."""
    from holdfast.cli import bisecting
    from holdfast.cli.job import known_job
    from holdfast.cli.options import time_of
    from holdfast.cli.png import drawable
    from holdfast.cli.screen import Screen

    if png is not None:
        drawable(png)
    wish = bisecting.Wish(
        changes=tuple(change or ()), steps=steps, from_step=from_step, repeats=repeats, within_s=time_of("--within", within) or 0.0, beside=beside
    )
    report = bisecting.bisect(known_job(state_root(state), job), wish, lambda said: print(said, file=sys.stderr))
    if png is not None:
        bisecting.draw(report, png)
    print_json(bisecting.as_json(report)) if as_json else Screen().print(bisecting.shown(report))
    raise typer.Exit(report.exit_code)


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


_take(plan, queue, why, shares)


@app.command()
def simulate(
    context: typer.Context,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Replay the jobs of this CSV file, gzipped or not.", show_default="made-up faults")] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=NODES_MAX, help="Nodes of the cluster, or of each world.", show_default="160 with a trace, else by seed")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, max=NODE_GPUS_MAX, help="GPUs of each.")] = 8,
    policy: Annotated[list[str] | None, typer.Option(help="Who decides; may be given often.", show_default="holdfast")] = None,
    seeds: Annotated[str, typer.Option(metavar="N|A-B", help="How many seeds, or from which to which.", show_default="1 with a trace, else 1000")] = "",
    start: Annotated[int | None, typer.Option(min=0, help="The first seed.", show_default="0")] = None,
    days: Annotated[str, typer.Option(metavar="A:B", help="Only jobs that were submitted on these days.", show_default="all")] = "",
    clip: Annotated[str, typer.Option(metavar="TIME", help="No job runs longer: 7d.", show_default="as they are")] = "",
    accounts: SharedAs = None,
    restart_s: Annotated[float | None, number(min=0.0, help="What a restart after an eviction costs.", show_default="300, or the policy's")] = None,
    node_mtbf_hours: Annotated[float | None, number(metavar="HOURS", help="Each node fails after so long on average.", show_default="never")] = None,
    repair_hours: Annotated[float, number(metavar="HOURS", help="And is back after so long on average.")] = 4.0,
    lemons: Annotated[float, number(metavar="PART", help="So many of all nodes, such as 0.02, fail a hundred times as often.")] = 0.0,
    failures: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Machines are lost as in this CSV: at_s,node and maybe repair_s.", show_default="made up, or never")
    ] = None,
    failures_from: Annotated[str, typer.Option(metavar="TIME", help="With a trace: where in FILE to begin, such as 900d.", show_default="its zero")] = "",
    story: Annotated[bool, typer.Option("--story", help="Without a trace: print all that happens.")] = False,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="With a trace: draw waits and completions into this file. Needs matplotlib.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace of jobs under a policy; or, without one, run the core through made-up faults, from seeds."""
    from holdfast.cli.simulate import Worlds, fitting, run_survey, seeds_of

    given = [name for name in context.params if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"]
    fitting(given, replay=trace is not None)
    chosen = seeds_of(seeds, start, usual=1000 if trace is None else 1)
    if trace is None:
        raise typer.Exit(run_survey(Worlds(seeds=chosen, nodes=nodes, failures=failures, story=story), as_json=as_json))
    from holdfast.cli.replays import Asked, run_replay

    asked = Asked(
        trace=trace, nodes=nodes or 160, gpus_per_node=gpus_per_node, policies=tuple(policy or ["holdfast"]), seeds=chosen, days=days, clip=clip,
        accounts=accounts, restart_s=restart_s, node_mtbf_hours=node_mtbf_hours, repair_hours=repair_hours, lemons=lemons, failures=failures,
        failures_from=failures_from,
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


class _Dashboards(_Checkpoint):
    def _load(self) -> None:
        from holdfast.cli import dashboards

        self.commands = self.commands or typer.main.get_group(dashboards.app).commands


app.add_typer(typer.Typer(), name="alerts", cls=_Alerts, no_args_is_help=True, help="Check, test, list and silence what people are told of incidents.")
app.add_typer(typer.Typer(), name="dashboards", cls=_Dashboards, no_args_is_help=True, help="Write dashboards for Grafana, and alerts for Prometheus.")
app.add_typer(typer.Typer(), name="learn", cls=_Learn, no_args_is_help=True, help="What was learned from earlier jobs; corrections; export.")
app.add_typer(typer.Typer(), name="rules", cls=_Rules, no_args_is_help=True, help="List, check, test and export the rules that watch a job.")
app.add_typer(typer.Typer(), name="checkpoint", cls=_Checkpoint, no_args_is_help=True, help="List, verify, prune, compare, export and import checkpoints.")


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    print_json({"version": __version__}) if as_json else print(f"holdfast {__version__}")


def _name_of(one: Any) -> str:
    """The help of a command, or a group of them."""
    return str(one.name or (one.callback.__name__ if one.callback is not None else ""))


@app.callback()
def program(
    version: Annotated[bool, typer.Option("--version", callback=lambda asked: _say_version(asked), is_eager=True, help="Print the version.")] = False,
) -> None:
    """Holdfast keeps training running: `holdfast run train.py`."""


def _say_version(asked: bool) -> None:
    if asked:
        print(f"holdfast {__version__}")
        raise typer.Exit


_every: list[Any] = [*app.registered_commands, *app.registered_groups]
for _one in _every:
    _one.rich_help_panel = panel_of(_name_of(_one))


def main() -> None:
    """What the `holdfast` program runs."""
    _leave_out_the_others(next((word for word in sys.argv[1:] if not word.startswith("-")), ""))
    try:
        app(prog_name="holdfast")
    except HoldfastError as error:
        from holdfast.cli.words import clean

        print(f"holdfast: {clean(str(error))}", file=sys.stderr)  # It quotes what was in a file, or given.
        sys.exit(error.exit_code)


def _leave_out_the_others(wanted: str) -> None:
    """To build the options of forty commands takes longer than most of them run. Where none is asked for, or one that is not there, all are told of."""
    known = {_name_of(one): one for one in app.registered_commands}
    if wanted in known:
        app.registered_commands, app.registered_groups = [known[wanted], known["version"]], []  # With one alone there would be no name to give.
