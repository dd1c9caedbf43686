"""`--metrics` and what belongs to it: what would open a door wider than was meant is refused before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from end_to_end.jobs import LIGHT, command
from end_to_end.prometheus import certificate

from holdfast.cli.metrics import metrics_at
from holdfast.domain.job import JobSpec, MetricsAt
from holdfast.errors import UserError

SPEC = JobSpec(job="j", argv=("t.py",), nodes=2)


def at(
    metrics: str = "", agents: int = 0, *, token: Path | None = None, cert: Path | None = None, key: Path | None = None, spec: JobSpec = SPEC
) -> MetricsAt | None:
    return metrics_at(metrics, agents, token_file=token, cert_file=cert, key_file=key, spec=spec)


def test_nothing_is_opened_unless_it_is_asked_for() -> None:
    assert at() is None


@pytest.mark.parametrize(("text", "host"), [("0", "127.0.0.1"), ("localhost:0", "127.0.0.1"), ("127.0.0.2:0", "127.0.0.2"), ("[::1]:0", "::1")])
def test_a_port_alone_is_for_this_machine(text: str, host: str) -> None:
    assert at(text) == MetricsAt(host=host, port=0)


@pytest.mark.parametrize("text", ["x", "70000", "1:2:3", "example.org:9464", "[::1]", ":9464", "-1", "127.0.0.1:", "0x10", "9464 "])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="such as 127"):
        at(text)


@pytest.mark.parametrize("text", ["0.0.0.0:0", "[::]:0", "10.0.0.1:0", "192.168.1.5:0"])
def test_other_machines_are_answered_only_with_a_token_and_tls(text: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    files = certificate(tmp_path)
    cert, key = Path(files.cert_file), Path(files.key_file)
    for given in ({}, {"token": token}, {"cert": cert, "key": key}):
        with pytest.raises(UserError, match="needs a token and TLS: give --metrics-token-file, --metrics-cert and --metrics-key"):
            at(text, **given)  # type: ignore[arg-type]
    opened = at("0.0.0.0:0", token=token, cert=cert, key=key)
    assert opened == MetricsAt(host="0.0.0.0", port=0, token_file=str(token), cert_file=str(cert), key_file=str(key))


def test_a_certificate_without_its_key_and_files_without_a_door_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="belong together"):
        at("0", cert=tmp_path / "cert.pem")
    with pytest.raises(UserError, match="add --metrics PORT"):
        at(token=tmp_path / "token")
    with pytest.raises(UserError, match="cannot be read"):
        at("0", token=tmp_path / "token")
    (tmp_path / "cert.pem").write_text("no certificate")
    with pytest.raises(UserError, match="Expected both in PEM"):
        at("0", cert=tmp_path / "cert.pem", key=tmp_path / "cert.pem")


def test_a_port_that_is_taken_is_told_before_anything_is_started(state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match="Choose another, or 0 for a free one"):
            at(str(port))
        ran = command("run", "--name", "taken", "--metrics", port, LIGHT, state, HOLDFAST_STATE=str(state))
    assert ran.returncode == 2
    assert "cannot be used for metrics" in ran.stderr
    assert not (state / "jobs" / "taken").exists()


def test_agents_take_a_port_each() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert at(agents=free) == MetricsAt(agents_port=free)
    with pytest.raises(UserError, match="takes a port for each node"):
        at(agents=65535)
    with pytest.raises(UserError, match="leaves --metrics its own"):
        at("45671", 45670)
    with pytest.raises(UserError, match="cannot be reached with --own-network"):
        at(agents=45670, spec=JobSpec(job="j", argv=("t.py",), own_network=True))
