"""`holdfast plan`: how often a fleet fails, how often to save, what goodput to expect, how many spares to keep, what to buy. From given or measured rates.

What it needs is imported when it runs: its options are read with those of every other command.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

_RATE, _TIMES, _MIX, _SPARES, _CAPACITY = "Rate of failures", "Times, such as 0.04s, 30s, 5m, 2h or 54d", "Kinds of failures", "Spares and copies", "Capacity"


def plan(
    gpus: Annotated[int | None, typer.Option(min=1, max=10_000_000, help="Of the job.", show_default="those that were watched")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, max=1024, show_default="8, or those of --job")] = None,
    like: Annotated[str, typer.Option(help="A published rate: llama3, rsc1 or rsc2.", show_default="llama3", rich_help_panel=_RATE)] = "",
    failures: Annotated[float | None, typer.Option(help="So many were counted,", rich_help_panel=_RATE)] = None,
    over: Annotated[str, typer.Option(metavar="TIME", help="in so long,", rich_help_panel=_RATE)] = "",
    watched_gpus: Annotated[int | None, typer.Option(min=1, help="on so many GPUs.", show_default="--gpus", rich_help_panel=_RATE)] = None,
    mtbf: Annotated[str, typer.Option(metavar="TIME", help="Mean time between failures of the whole job.", rich_help_panel=_RATE)] = "",
    node_mtbf: Annotated[str, typer.Option(metavar="TIME", help="The same of one node.", rich_help_panel=_RATE)] = "",
    job: Annotated[
        str, typer.Option(metavar="JOB", help="Rate and times as measured in this job: its name, or its directory.", rich_help_panel=_RATE)
    ] = "",
    window: Annotated[str, typer.Option(metavar="TIME", help="For how long it is planned.", rich_help_panel=_RATE)] = "30d",
    save_cost: Annotated[str, typer.Option(metavar="TIME", help="How long a save holds up training.", rich_help_panel=_TIMES)] = "",
    interval: Annotated[str, typer.Option(metavar="TIME", help="From save to save.", show_default="the best", rich_help_panel=_TIMES)] = "",
    step: Annotated[str, typer.Option(metavar="TIME", help="One step of training.", rich_help_panel=_TIMES)] = "",
    detect: Annotated[str, typer.Option(metavar="TIME", help="Until an exit or a lost node is noticed.", rich_help_panel=_TIMES)] = "",
    hang_detect: Annotated[str, typer.Option(metavar="TIME", help="Until a hang is.", rich_help_panel=_TIMES)] = "",
    nan_found: Annotated[str, typer.Option(metavar="TIME", help="From a NaN to its culprit.", rich_help_panel=_TIMES)] = "",
    replace: Annotated[str, typer.Option(metavar="TIME", help="Until a spare is in a lost node's place.", rich_help_panel=_TIMES)] = "",
    restart: Annotated[str, typer.Option(metavar="TIME", help="Start, group build and first step.", rich_help_panel=_TIMES)] = "",
    restore: Annotated[str, typer.Option(metavar="TIME", help="State back from memory.", rich_help_panel=_TIMES)] = "",
    fetch: Annotated[str, typer.Option(metavar="TIME", help="State over the network, to a new node.", rich_help_panel=_TIMES)] = "",
    behind: Annotated[str, typer.Option(metavar="TIME", help="How far copies on other nodes lag behind.", rich_help_panel=_TIMES)] = "",
    state_gb: Annotated[
        float | None, typer.Option(help="Model and optimizer, whole: restore, fetch and behind follow from a GPU's share of it.", rich_help_panel=_TIMES)
    ] = None,
    network_gb_per_s: Annotated[
        float | None, typer.Option(help="Of state, that a GPU gets from another node.", show_default="1.2, the slowest published", rich_help_panel=_TIMES)
    ] = None,
    hangs: Annotated[float | None, typer.Option(help="Share of failures that are hangs.", show_default="Llama 3's", rich_help_panel=_MIX)] = None,
    nans: Annotated[float | None, typer.Option(help="Share that turn to NaN.", show_default="Llama 3's", rich_help_panel=_MIX)] = None,
    node_losses: Annotated[float | None, typer.Option(help="Share of the rest that cost a node.", show_default="Llama 3's", rich_help_panel=_MIX)] = None,
    detected: Annotated[float, typer.Option(help="Share of failures that detectors see.", rich_help_panel=_MIX)] = 0.999,
    spares: Annotated[int | None, typer.Option(min=0, help="Nodes kept ready.", show_default="by --stock-out", rich_help_panel=_SPARES)] = None,
    stock_out: Annotated[float, typer.Option(help="How likely a failure may find no spare.", rich_help_panel=_SPARES)] = 0.001,
    repair: Annotated[str, typer.Option(metavar="TIME", help="Until a lost node is back, in the mean.", rich_help_panel=_SPARES)] = "1d",
    copies: Annotated[int, typer.Option(min=1, max=8, help="Of the state, in memory, its own one included.", rich_help_panel=_SPARES)] = 2,
    domain_nodes: Annotated[int, typer.Option(min=1, max=1024, help="Nodes that fail together: of a rack, of a switch.", rich_help_panel=_SPARES)] = 32,
    replicas: Annotated[int, typer.Option(min=0, help="Of data parallelism: shrink, or wait for a node?", rich_help_panel=_SPARES)] = 0,
    parameters: Annotated[str, typer.Option(help="Of the model: 7e9, 405B.", rich_help_panel=_CAPACITY)] = "",
    tokens: Annotated[str, typer.Option(help="To train on: 15.6e12, 15.6T.", rich_help_panel=_CAPACITY)] = "",
    within: Annotated[str, typer.Option(metavar="TIME", help="In so long.", rich_help_panel=_CAPACITY)] = "",
    tflops: Annotated[float, typer.Option(help="TFLOP/s that one GPU really does.", rich_help_panel=_CAPACITY)] = 400.0,
    growth: Annotated[float, typer.Option(help="Of the computation, a year: 2 doubles it.", rich_help_panel=_CAPACITY)] = 1.0,
    years: Annotated[int, typer.Option(min=0, max=10, help="To look ahead.", rich_help_panel=_CAPACITY)] = 0,
    kept: Annotated[int, typer.Option(min=1, help="Checkpoints kept in storage.", rich_help_panel=_CAPACITY)] = 10,
    lives: Annotated[int, typer.Option(min=0, max=100_000, help="Lives to simulate beside the formulas; 0 for none.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulation.")] = 0,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the plots into this file. Needs matplotlib.")] = None,
    state: Annotated[Path | None, typer.Option("--state", help="Where jobs are kept.", show_default="$HOLDFAST_STATE, or the XDG state directory")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Plan a fleet: failures, how often to save, goodput, spares, copies, capacity. Formulas, checked by simulation."""
    from holdfast.cli.plan.asked import Asked
    from holdfast.cli.plan.run import run_plan

    asked = Asked(
        gpus=gpus, gpus_per_node=gpus_per_node, like=like, failures=failures, over=over, watched_gpus=watched_gpus, mtbf=mtbf, node_mtbf=node_mtbf, job=job,
        window=window, interval=interval, state_gb=state_gb,
        network_gb_per_s=network_gb_per_s, hangs=hangs, nans=nans, node_losses=node_losses, detected=detected, spares=spares,
        stock_out=stock_out, repair=repair, copies=copies, domain_nodes=domain_nodes, replicas=replicas, parameters=parameters, tokens=tokens, within=within,
        tflops=tflops, growth=growth, years=years, kept=kept, state=state,
        times={
            "save-cost": save_cost, "step": step, "detect": detect, "hang-detect": hang_detect, "nan-found": nan_found, "replace": replace, "restart": restart,
            "restore": restore, "fetch": fetch, "behind": behind,
        },
    )  # fmt: skip
    raise typer.Exit(run_plan(asked, lives=lives, seed=seed, png=png, as_json=as_json, out=sys.stdout))
