"""A real job, scraped by a real Prometheus: every expression of every dashboard is understood, and what a CPU machine can show is there.

GPUs come from a driver that is played, over the same page and the same door. Grafana itself is not run anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from end_to_end.jobs import SCRIPTS, Job, command, eventually, lose_node
from end_to_end.prometheus import SCRAPE_S, Prometheus, certificate, check_metrics

from holdfast.cli.dashboards.boards import BOARDS, GPUS
from holdfast.control.metrics import ControlMetrics
from holdfast.control.newest import Newest
from holdfast.control.watching import Watching
from holdfast.domain.job import MetricsAt
from holdfast.domain.metric import METRICS
from holdfast.domain.signal import Signal
from holdfast.domain.state import State
from holdfast.observe.fake_nvml import FakeNvml
from holdfast.observe.gpu import Gpus
from holdfast.observe.xid import Xids
from holdfast.wire.messages import Signals
from holdfast.wire.scrape import Door

NAME = re.compile(r"\b(?:holdfast_[a-z0-9_]+|ALERTS)\b(?=[{\[])")
MAY_BE_EMPTY = {"Alerts that fire"}  # All is well.
# Some kernels do not say it, and some containers may not read it: docs/observing.md lists when.
NOT_EVERYWHERE = {
    "All wait for a disk", "All wait for memory", "Errors in the kernel's log, in 10 minutes", "Held back by the CPU quota", "Tasks wait for a core",
}  # fmt: skip


def asked(expression: str) -> str:
    """As Grafana fills the variables in when all is chosen."""
    return expression.replace("$__rate_interval", "10s").replace("$job", ".*").replace("$node", ".*")


@contextmanager
def played_gpus(at: MetricsAt | None = None) -> Iterator[str]:
    """Two GPUs of one node, as a played driver says them, behind a door of their own."""
    watching, wall = Watching(()), time.time
    xids = Xids(wall)
    probe = Gpus(FakeNvml(2), xids, time.monotonic, wall)
    newest: dict[tuple[str, str], float] = {}
    page = ControlMetrics("played", watching, Newest(watching.rings), print)

    def text(openmetrics: bool) -> Iterator[str]:
        newest.update({(seen.metric, seen.of): seen.value for seen in (*probe.look(), *xids.look()) if isinstance(seen, Signal)})
        watching.take(Signals(node="gpu-node", columns=tuple(newest), values=tuple(newest.values())), wall())
        return page.text(State(), wall(), openmetrics)

    loop = asyncio.new_event_loop()
    server, url = loop.run_until_complete(Door(at or MetricsAt(), text).open(0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def target_of(url: str, **more: object) -> dict[str, object]:
    scheme, _, rest = url.partition("://")
    return {"scheme": scheme, "static_configs": [{"targets": [rest.removesuffix("/metrics")]}], **more}


def test_every_panel_of_every_dashboard_is_answered_from_a_real_run(state: Path, tmp_path: Path) -> None:
    assert command("dashboards", "export", tmp_path / "out").returncode == 0
    rules = tmp_path / "out" / "prometheus" / "holdfast.rules.yaml"
    arguments = (state / "kept-job", 1 << 16)
    options = ("--nproc", 2, "--metrics", 0)
    with played_gpus() as gpus, Job(state, options=options, script=SCRIPTS / "measured.py", arguments=arguments, torch=True) as job:
        url = eventually(lambda: job.directory.metrics_url.exists() and job.directory.metrics_url.read_text(), what="the address of /metrics")
        targets = [target_of(url), target_of(gpus)]
        with Prometheus(tmp_path / "prometheus", targets, rules=rules) as prometheus:
            eventually(lambda: prometheus.query("count by (rank) (holdfast_parameter_digest)"), what="digests of the parameters")
            eventually(lambda: prometheus.query("min(holdfast_checkpoint_step) > 0"), what="a checkpoint")
            (job.kept / "crash").touch()
            eventually(lambda: prometheus.query('holdfast_incidents_total{kind="worker_exited"} > 0'), what="an incident")
            # A minute's silence would take the old series away; ten seconds of the new generation fill every rate.
            eventually(lambda: prometheus.query("changes(holdfast_step[5s]) > 1 and on () holdfast_job_generation == 2"), what="steps of the next generation")
            eventually(lambda: prometheus.query("count(rate(holdfast_worker_written_bytes_total[10s])) == 2"), what="rates")
            assert [target["health"] for target in prometheus.targets()] == ["up", "up"]
            check_panels(prometheus)
            check_page(url, gpus)
            assert prometheus.query('holdfast_build_info{holdfast_job="job"}')[0]["metric"]["version"]
            assert {row["metric"]["rank"] for row in prometheus.query("holdfast_user_reward")} == {"0", "1"}
            assert prometheus.query("holdfast_series_left_out")[0]["value"][1] == "0"
            rate = prometheus.query("sum(rate(holdfast_host_segments_total[10s]))")
            assert float(rate[0]["value"][1]) >= 0
        checked = command("watch", "job", "--once", "--json", HOLDFAST_STATE=str(state))
        assert checked.returncode == 0, checked.stderr
    assert not job.directory.metrics_url.exists() or job.process.returncode != 0


def test_prometheus_comes_in_with_the_token_over_tls_and_not_without(tmp_path: Path) -> None:
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    token.write_text("0123456789abcdef")
    wrong.write_text("fedcba9876543210")
    at = replace(certificate(tmp_path), token_file=str(token))
    tls = {"ca_file": at.cert_file}
    with played_gpus(at) as url:
        right = target_of(url, tls_config=tls, authorization={"credentials_file": str(token)})
        others = [target_of(url, tls_config=tls), target_of(url, tls_config=tls, authorization={"credentials_file": str(wrong)})]
        with Prometheus(tmp_path / "prometheus", [right, *others]) as prometheus:
            eventually(lambda: prometheus.query('up{job="scrape-0"} == 1'), what="a scrape with the token")
            eventually(lambda: len(prometheus.query("up == 0")) == 2, what="two refusals")
            assert {target["lastError"] for target in prometheus.targets()} == {"", "server returned HTTP status 401 Unauthorized"}
            assert prometheus.query("holdfast_gpu_power_watts")


def test_an_agent_answers_for_its_own_node(state: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Job(state, options=("--nproc", 2, "--agent-metrics", port), arguments=("--steps", 100000)) as job:
        job.wait_for_step(3)

        def page() -> str:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())
            return ""

        text = eventually(lambda: said if "holdfast_step{" in (said := page()) else "", what="steps on the agent's page")
        assert 'holdfast_step{holdfast_job="job",node="node-0",rank="1"}' in text
        assert check_metrics(text).returncode == 0
        assert not job.directory.metrics_url.exists(), "control has no door of its own unless it is asked for"


def test_a_killed_control_answers_at_the_same_port_and_the_series_of_a_lost_node_vanish(state: Path, tmp_path: Path) -> None:
    with Job(state, options=("--nodes", 1, "--spares", 1, "--metrics", 0), arguments=("--steps", 100000)) as job:
        url = eventually(lambda: job.directory.metrics_url.exists() and job.directory.metrics_url.read_text(), what="the address of /metrics")
        with Prometheus(tmp_path / "prometheus", [target_of(url)]) as prometheus:
            eventually(lambda: len(prometheus.query("holdfast_host_load")) == 2, what="both nodes")
            os.kill(job.control(), signal.SIGKILL)
            time.sleep(2 * SCRAPE_S)
            eventually(lambda: prometheus.query("up == 1") and len(prometheus.query("holdfast_host_load")) == 2, what="both nodes again")
            assert job.directory.metrics_url.read_text() == url
            lose_node(job, "node-1")
            seen = eventually(lambda: len(rows := prometheus.query("holdfast_host_load")) == 1 and rows, what="the lost node's series to vanish")
            assert seen[0]["metric"]["node"] == "node-0"
        job.process.send_signal(signal.SIGINT)
        job.wait()
    assert not job.directory.metrics_url.exists()


def check_panels(prometheus: Prometheus) -> None:
    names = prometheus.names()
    empty = []
    for board in BOARDS:
        for panel in board.panels:
            for query in panel.queries:
                used = set(NAME.findall(query.expression)) - {"ALERTS"}
                assert used <= names or panel.title in NOT_EVERYWHERE, f"{board.uid}: {panel.title}: {sorted(used - names)} are not said by anybody"
                if not prometheus.query(asked(query.expression)):
                    empty.append(panel.title)
    assert set(empty) <= MAY_BE_EMPTY | NOT_EVERYWHERE, empty
    shown = {name for query in (query for panel in GPUS.panels for query in panel.queries) for name in NAME.findall(query.expression)}
    assert len(shown) > 20


def check_page(*urls: str) -> None:
    """promtool finds nothing wrong with either format's names, helps and types."""
    for url in urls:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        checked = check_metrics(text)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
        helped = set(re.findall(r"^# HELP (\S+) ", text, flags=re.MULTILINE))
        assert helped <= {metric.exported for metric in METRICS.values()} | {
            f"holdfast_{name}" for name in ("build_info", "incidents_open", "incidents_total", "series_left_out", "user_reward")
        }
