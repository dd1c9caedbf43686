"""Services and ports: servers that answer with errors, late or not at all, names that do not resolve, ports that are taken."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from incidents.way import Way
from incidents.world import Inside, no_network

_held: list[socket.socket] = []


def taken_port(scratch: Path) -> None:
    """Somebody else has it: its number is in `{dir}/port`, from where `on_the_taken_port` takes it."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    _held.append(server)
    (scratch / "port").write_text(str(server.getsockname()[1]))


def on_the_taken_port(argument: int | None) -> Inside:
    """The script's argument, or MASTER_PORT, becomes the number of the port that is taken."""

    def inside(scratch: Path, rank: int) -> None:
        import os

        os.environ["MASTER_PORT" if argument is None else "INCIDENT_PORT"] = (scratch / "port").read_text()

    return inside


def _service(variant: str, way: str, path: str, *, permanent: bool = False, inside: Callable[[Path, int], None] | None = None, quick: bool = False) -> Way:
    url = path if path.startswith("http") else "{url}" + path
    return Way(
        name="service_refuses" if permanent else f"service_fails_{way}", variant=variant, cause="remote_service_error",
        permanence="permanent" if permanent else "transient", scope="external", command=("host.py", "fetch", way, url), inside=inside, root=inside is not None,
        quick=quick,
    )  # fmt: skip


def _tracker(variant: str, *more: str) -> Way:
    return Way(
        name="service_fails_in_training", variant=variant, cause="remote_service_error", permanence="transient", scope="external", command=("train.py", *more)
    )


def _port(variant: str, *command: str, quick: bool = False) -> Way:
    return Way(
        name="port_taken", variant=variant, cause="port_in_use", permanence="transient", scope="config", command=command, prepare=taken_port,
        inside=on_the_taken_port(1), quick=quick,
    )  # fmt: skip


_NOWHERE = "http://hub.models.invalid/api/models"

WAYS: tuple[Way, ...] = (
    _service("500", "urllib", "/500", quick=True),
    _service("503", "requests", "/503"),
    _service("502", "aiohttp", "/502"),
    _service("504", "client", "/504"),
    _service("429", "requests", "/429"),
    _service("slow", "urllib", "/slow"),
    _service("slow", "requests", "/slow"),
    _service("reset", "urllib", "/reset"),
    _service("reset", "requests", "/reset", quick=True),
    _service("short", "requests", "/short"),
    _service("short", "client", "/short"),
    _service("hang_up", "urllib", "/hang_up"),
    _service("refused", "urllib", "http://127.0.0.1:9/weights"),
    _service("refused", "aiohttp", "http://127.0.0.1:9/weights"),
    _service("name", "urllib", _NOWHERE, inside=no_network, quick=True),
    _service("name", "requests", _NOWHERE, inside=no_network),
    _service("name", "client", _NOWHERE, inside=no_network),
    _service("404", "urllib", "/404", permanent=True),
    _service("401", "requests", "/401", permanent=True),
    _service("403", "aiohttp", "/403", permanent=True, quick=True),
    _tracker("weights_503", "--weights-from", "{url}/503"),
    _tracker("tracker_500", "--tracker", "{url}/500"),
    _tracker("tracker_reset", "--tracker", "{url}/reset", "--style", "1"),
    _port("socket", "host.py", "listen", "taken", quick=True),
    _port("http", "host.py", "listen", "taken", "http"),
    _port("asyncio", "host.py", "listen", "taken", "asyncio"),
    Way(
        name="store_port_taken", variant="two_ranks", cause="port_in_use", permanence="transient", scope="config", command=("train.py", "--timeout-s", "4"),
        ranks=2, rank=0, prepare=taken_port, inside=on_the_taken_port(None), quick=True,
    ),
    Way(
        name="store_port_taken", variant="four_ranks", cause="port_in_use", permanence="transient", scope="config", command=("train.py", "--timeout-s", "4"),
        ranks=4, rank=0, prepare=taken_port, inside=on_the_taken_port(None), one_log=False,
    ),
)  # fmt: skip
