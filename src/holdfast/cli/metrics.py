"""The options of `holdfast run` that open `/metrics`: checked before anything is started, so that no door is opened wider than was meant."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import Final

from holdfast.domain.job import JobSpec, MetricsAt
from holdfast.errors import UserError
from holdfast.wire.scrape import tls_from, token_in

_ADDRESS: Final = re.compile(r"(?:(?P<host>[^\[\]:]+|\[[0-9a-fA-F:.%]+\]):)?(?P<port>\d{1,5})")
_LOOPBACK: Final = "127.0.0.1"


def metrics_at(
    metrics: str, agents: int, *, token_file: Path | None, cert_file: Path | None, key_file: Path | None, spec: JobSpec
) -> MetricsAt | None:
    """What `--metrics`, `--agent-metrics` and the files beside them say; None when no door is asked for."""
    if not metrics and not agents:
        if token_file or cert_file or key_file:
            raise UserError("a token, certificate or key is given, and nothing answers metrics: add --metrics PORT.")
        return None
    host, port = _address(metrics) if metrics else (_LOOPBACK, None)
    if (cert_file is None) != (key_file is None):
        raise UserError("--metrics-cert and --metrics-key belong together: give both.")
    at = MetricsAt(host=host, port=port, agents_port=agents, token_file=_path(token_file), cert_file=_path(cert_file), key_file=_path(key_file))
    if not _is_loopback(host) and not (at.token_file and at.cert_file):
        raise UserError(
            f"--metrics {metrics} would answer to other machines, which needs a token and TLS: give --metrics-token-file, --metrics-cert and --metrics-key; or "
            f"`--metrics {port}` for this machine alone, with `ssh -L` or a proxy in front of it."
        )
    if at.token_file:
        token_in(at.token_file)
    if at.cert_file:
        tls_from(at.cert_file, at.key_file)
    nodes = spec.nodes + spec.spares
    _check_agents(at, nodes, own_network=spec.own_network)
    for one in (port, *(range(agents, agents + nodes) if agents else ())):
        if one:
            _check_free(host, one)
    return at


def _address(text: str) -> tuple[str, int]:
    """`PORT`, `HOST:PORT` or `[HOST]:PORT`, the host as an address: what a name means may change between here and the door."""
    found = _ADDRESS.fullmatch(text)
    host = (found["host"] or _LOOPBACK).strip("[]") if found else ""
    host = _LOOPBACK if host == "localhost" else host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        found = None
    if found is None or int(found["port"]) > 65535:
        raise UserError(f"--metrics is a port, or an address and a port such as 127.0.0.1:9464 or [::1]:9464 (0 for a free port), not {text!r}")
    return host, int(found["port"])


def _check_agents(at: MetricsAt, nodes: int, *, own_network: bool) -> None:
    if not at.agents_port:
        return
    if own_network:
        raise UserError("--agent-metrics cannot be reached with --own-network. Leave it out: --metrics has the series of all nodes.")
    last = at.agents_port + nodes - 1
    if last > 65535 or at.agents_port <= (at.port or 0) <= last:
        raise UserError(f"--agent-metrics {at.agents_port} takes a port for each node, {at.agents_port} to {last}: choose one that leaves --metrics its own.")


def _check_free(host: str, port: int) -> None:
    """As the door will take it: a port that was used a moment ago is free."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            raise UserError(f"{host} port {port} cannot be used for metrics: {error.strerror}. Choose another, or 0 for a free one.") from error


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def _path(file: Path | None) -> str:
    return "" if file is None else str(file.absolute())
