"""A real Prometheus of the test's own, on a free port, with a directory that goes away: `with Prometheus(path, targets) as prometheus: prometheus.query(…)`."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import yaml
from end_to_end.jobs import eventually

from holdfast.domain.job import MetricsAt

SCRAPE_S = 1


def program(name: str) -> str:
    """Where it is; without it the test is skipped, and the skip is counted."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def check_metrics(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, check=False, timeout=30)


def certificate(path: Path) -> MetricsAt:
    """A certificate of 127.0.0.1's own, and its key."""
    cert, key = path / "cert.pem", path / "key.pem"
    make = [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "2",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]  # fmt: skip
    subprocess.run(make, check=True, capture_output=True, timeout=30)
    return MetricsAt(cert_file=str(cert), key_file=str(key))


class Prometheus:
    def __init__(self, path: Path, targets: Sequence[dict[str, Any]], *, rules: Path | None = None) -> None:
        """Each target is a scrape configuration without its name."""
        self._program = program("prometheus")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._at = f"127.0.0.1:{probe.getsockname()[1]}"
        self._path = path
        path.mkdir()
        scrapes = [{"job_name": f"scrape-{number}", **target} for number, target in enumerate(targets)]
        pace = {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": "1s"}
        document = {"global": pace, "scrape_configs": scrapes, "rule_files": [str(rules)] if rules else []}
        (path / "prometheus.yml").write_text(yaml.safe_dump(document))

    def __enter__(self) -> Prometheus:
        options = [f"--config.file={self._path / 'prometheus.yml'}", f"--storage.tsdb.path={self._path / 'data'}", f"--web.listen-address={self._at}"]
        with (self._path / "log").open("wb") as log:
            self._process = subprocess.Popen([self._program, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        eventually(self._is_ready, what="Prometheus")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self._path / "log").read_text()
        try:
            with urllib.request.urlopen(f"http://{self._at}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, what: str, **parameters: str) -> Any:
        url = f"http://{self._at}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {json.load(error)['error']}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What it answers now; an expression it does not understand fails the test."""
        return list(self.ask("query", query=expression)["result"])

    def names(self) -> set[str]:
        return set(self.ask("label/__name__/values"))

    def targets(self) -> list[dict[str, Any]]:
        return list(self.ask("targets")["activeTargets"])
