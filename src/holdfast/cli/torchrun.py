"""Options of torchrun that `holdfast run` has no use for: what changes nothing on one machine is passed over with a line that says so, what cannot be
honoured is refused with a sentence. The options of torchrun that mean the same here are options of `run` itself.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from typer.core import TyperCommand, TyperOption

from holdfast.cli.panels import sort_options_of_run
from holdfast.errors import UserError

_ONE_MACHINE: Final = "Holdfast runs on one machine for now"
_LOGS: Final = "each rank's output is kept with the job: `holdfast logs JOB --rank N`"
_SIGNALS: Final = {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"}


def _harmless(_: str) -> str:
    return ""


def _only(value: str, otherwise: str) -> Callable[[str], str]:
    return lambda given: "" if given == value else otherwise


def _never(why: str) -> Callable[[str], str]:
    return lambda _: why


def _first_node(rank: str) -> str:
    return "" if rank.strip() == "0" else f"{_ONE_MACHINE}, and this would be another one; run it without --node-rank, on one machine alone"


def _here(address: str) -> str:
    """A host, with a port or without."""
    host = _host(address)
    return "" if _is_here(host) else f"{host} is not this machine, and {_ONE_MACHINE}; leave it out, and start it on one machine alone"


def _host(address: str) -> str:
    bracketed, _, rest = address.strip().removeprefix("[").partition("]")
    if address.strip().startswith("[") or address.count(":") > 1:
        return bracketed if rest.startswith(":") or not rest else address.strip()
    return address.strip().partition(":")[0]


def _is_here(host: str) -> bool:
    """Whether this machine has this address: then a socket can be bound to it."""
    if host.lower() in ("", "localhost", socket.gethostname().lower()):
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(map(_can_bind, found))


def _can_bind(found: Any) -> bool:
    family, kind, protocol, _, address = found
    try:
        with socket.socket(family, kind, protocol) as one:
            one.bind(address)
    except OSError:
        return False
    return True


def _our_signals(text: str) -> str:
    others = [name for name in (name.strip() for name in text.split(",")) if name not in _SIGNALS]
    return f"{others[0]} is not passed on to workers; send it to them, or have the script handle it" if others else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One option of torchrun."""

    refused: Callable[[str], str] = _harmless  # Why this value cannot be honoured; empty: it can.
    instead: str = ""  # What there is instead, where it is passed over.
    short: str = ""
    flag: bool = False


WORDS: Final[Mapping[str, Word]] = {
    "--rdzv-backend": Word(),
    "--rdzv-endpoint": Word(refused=_here),
    "--rdzv-id": Word(),
    "--rdzv-conf": Word(),
    "--node-rank": Word(refused=_first_node),
    "--master-addr": Word(refused=_here),
    "--master-port": Word(),
    "--local-addr": Word(refused=_here),
    "--standalone": Word(flag=True),
    "--monitor-interval": Word(),
    "--start-method": Word(),
    "--run-path": Word(flag=True),
    "--role": Word(instead="workers find ROLE_NAME=default"),
    "--log-dir": Word(instead=_LOGS),
    "--redirects": Word(short="-r", instead=_LOGS),
    "--tee": Word(short="-t", instead=_LOGS),
    "--local-ranks-filter": Word(instead=f"rank 0's output is shown, and {_LOGS}"),
    "--duplicate-stdout-filters": Word(refused=_never("lines are not copied into further files; `holdfast logs JOB --rank N | grep` finds them")),
    "--duplicate-stderr-filters": Word(refused=_never("lines are not copied into further files; `holdfast logs JOB --rank N | grep` finds them")),
    "--event-log-handler": Word(refused=_only("null", "what happened is in the job's journal: `holdfast replay JOB --json`")),
    "--logs-specs": Word(refused=_only("default", _LOGS)),
    "--numa-binding": Word(refused=_never("ranks are not bound to NUMA nodes; leave it out, or start the script through numactl with --no-python")),
    "--signals-to-handle": Word(refused=_our_signals),
    "--virtual-local-rank": Word(refused=_never("LOCAL_RANK is the rank on the node; set CUDA_VISIBLE_DEVICES in the script"), flag=True),
}
_SEVERAL_MACHINES: Final = ("--node-rank", "--master-addr", "--rdzv-endpoint")  # Who gives one of them, and several nodes, means several machines.


class AsTorchrun(TyperCommand):
    """A command that takes torchrun's options too, in torchrun's spellings: with dashes or underscores."""

    def __init__(self, *args: Any, context_settings: dict[str, Any] | None = None, params: list[Any] | None = None, **kwargs: Any) -> None:
        settings = {**(context_settings or {}), "token_normalize_func": _with_dashes}
        own = list(params or [])
        sort_options_of_run(own)
        super().__init__(*args, context_settings=settings, params=[*own, *(_option(name, word) for name, word in WORDS.items())], **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        left: list[str] = super().parse_args(ctx, args)
        said = taken(ctx.meta.get(__name__, {}), nodes=str(ctx.params.get("nodes", "1")))
        if said and not ctx.resilient_parsing:
            print(f"holdfast: {said}", file=sys.stderr)
        return left


def _with_dashes(name: str) -> str:
    return name.replace("_", "-")


def _option(name: str, word: Word) -> TyperOption:
    kind: dict[str, Any] = {"is_flag": True, "default": False} if word.flag else {"type": str, "default": None}
    return TyperOption(param_decls=[name, *filter(None, [word.short])], hidden=True, expose_value=False, callback=_note, **kind)


def _note(ctx: Any, option: Any, value: str | bool | None) -> None:
    if value not in (None, False):
        ctx.meta.setdefault(__name__, {})[option.opts[0]] = "" if value is True else str(value)


def taken(given: Mapping[str, str], *, nodes: str) -> str:
    """What is to be said of these options with their values; raises UserError for those that cannot be honoured."""
    for name, value in given.items():
        why = WORDS[name].refused(value)
        if why:
            raise UserError(f"{f'{name} {value}'.strip()}: {why}")
    for name in _SEVERAL_MACHINES:
        if nodes.rpartition(":")[2] != "1" and name in given and not _is_loopback(name, given[name]):
            raise UserError(
                f"--nnodes {nodes} with {name} {given[name]} is a run on several machines, and {_ONE_MACHINE}: give --nnodes 1; "
                f"or leave {name} out, and {nodes.rpartition(':')[2]} nodes are made on this machine"
            )
    silent = [name for name in given if name != "--standalone"]
    if not silent:
        return ""
    instead = "".join(f"; {text}" for text in dict.fromkeys(WORDS[name].instead for name in silent) if text)
    return f"passed over, since {'it changes' if len(silent) == 1 else 'they change'} nothing here: {' '.join(silent)}{instead}"


def _is_loopback(name: str, value: str) -> bool:
    return name == "--rdzv-endpoint" and _host(value) in ("", "localhost", "127.0.0.1", "::1")
