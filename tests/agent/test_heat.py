"""Heat: a hot GPU gets a lower power limit within what the user allowed, and always its old one back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end.jobs import Job, eventually, is_alive

from holdfast.agent import heat
from holdfast.agent.heat import Heat
from holdfast.observe.fake_nvml import FakeNvml
from holdfast.observe.nvml import Code

HALF_A_MINUTE = heat._HOT_LOOKS
FIVE_MINUTES = heat._COOL_LOOKS


def watts(nvml: FakeNvml, gpu: int = 0) -> float:
    return nvml.values[gpu]["gpu_power_limit_watts"]


def looked(heat: Heat, times: int) -> None:
    for _ in range(times):
        heat.look()


def test_a_hot_gpu_is_limited_a_step_at_a_time_down_to_what_was_allowed_and_then_it_is_told(tmp_path: Path) -> None:
    nvml, told = FakeNvml(gpus=2), list[tuple[int, str]]()
    one = Heat(600.0, tmp_path / "power", lambda gpu, why: told.append((gpu, why)), nvml=nvml)
    nvml.values[1]["gpu_throttled_thermal"] = 1.0
    looked(one, HALF_A_MINUTE - 1)
    assert watts(nvml, 1) == 700.0
    looked(one, 1)
    assert watts(nvml, 1) == pytest.approx(630.0)
    looked(one, HALF_A_MINUTE)
    assert watts(nvml, 1) == 600.0, "no lower than the user said"
    assert not told
    looked(one, 3 * HALF_A_MINUTE)
    assert told == [(1, "GPU 1 is throttled for heat at 600 W, which is as low as it may get")]
    assert watts(nvml, 0) == 700.0, "the other one is cool"
    nvml.values[1]["gpu_throttled_thermal"] = 0.0
    looked(one, FIVE_MINUTES)
    assert watts(nvml, 1) == pytest.approx(600.0 / 0.9)
    assert told[1:] == [(1, "")], "no longer"
    looked(one, 2 * FIVE_MINUTES)
    assert watts(nvml, 1) == 700.0
    nvml.values[1]["gpu_throttled_thermal"] = 1.0
    looked(one, HALF_A_MINUTE)
    one.close()
    assert watts(nvml, 1) == 700.0, "put back at the end"
    assert (tmp_path / "power").read_text() == ""


def test_what_is_not_permitted_is_told(tmp_path: Path) -> None:
    nvml, told = FakeNvml(), list[str]()
    nvml.fail(0, "limit_power", Code.NO_PERMISSION)
    nvml.values[0]["gpu_throttled_thermal"] = 1.0
    one = Heat(300.0, tmp_path / "power", lambda _, why: told.append(why), nvml=nvml)
    looked(one, 3 * HALF_A_MINUTE)
    one.close()
    assert told == ["GPU 0 is throttled for heat, and its power cannot be limited: NVML NO_PERMISSION (4)"]


def test_the_agent_after_one_that_was_killed_puts_back_what_that_one_changed(tmp_path: Path) -> None:
    nvml = FakeNvml()
    (tmp_path / "power").write_text('["GPU-00000000", 700.0]\n["GPU-000')  # It died while it wrote about a second one, which it had not changed yet.
    nvml.values[0]["gpu_power_limit_watts"] = 500.0
    after = Heat(300.0, tmp_path / "power", lambda *_: None, nvml=nvml)
    after.look()
    assert watts(nvml) == 500.0, "it may still be hot"
    after.close()
    assert watts(nvml) == 700.0


def hot_card(directory: Path) -> tuple[dict[str, str], Path]:
    """For NVML's real binding: a library that pretends to be a card of an old driver, which is always hot; and where that card keeps its limit."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source = Path(__file__).parent.parent / "observe" / "libnvidia_ml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-DOLD", "-o", str(directory / "libnvidia-ml.so.1"), str(source)], check=True, timeout=60)
    return {"LD_LIBRARY_PATH": str(directory), "PRETENDED_POWER": str(directory / "card")}, directory / "card"


LIMIT = """
import os, signal, sys
from pathlib import Path
from holdfast.agent import heat
one = heat.Heat(300.0, Path(sys.argv[1]), print, after_us_s=0.5)
for _ in range(heat._HOT_LOOKS):
    one.look()
print(one._watchdog.pid, Path(os.environ["PRETENDED_POWER"]).read_text(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_when_no_agent_comes_after_one_that_was_killed_somebody_else_puts_it_back(tmp_path: Path) -> None:
    environment, card = hot_card(tmp_path)
    command = [sys.executable, "-c", LIMIT, str(tmp_path / "power")]
    killed = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout.split()[1] == "630000"
    eventually(lambda: card.read_text() == "700000", what="the old limit")
    eventually(lambda: not is_alive(int(killed.stdout.split()[0])), what="the end of who put it back")


@pytest.mark.slow
def test_the_agents_of_a_job_limit_a_hot_gpu_also_after_they_were_killed_and_put_it_back_at_the_end(state: Path, tmp_path: Path) -> None:
    environment, card = hot_card(tmp_path)
    options = ["--nodes", 1, "--power-cap", 600]
    with Job(state, options=options, arguments=["--steps", 100000, "--step-s", 0.05], env=environment) as job:
        eventually(lambda: card.exists() and card.read_text() == "630000", within_s=120.0, what="a lower limit")
        agent = job.agent()
        os.kill(agent, signal.SIGKILL)
        eventually(lambda: not is_alive(agent) and job.agent() != agent, what="another agent")
        eventually(lambda: card.read_text() == "600000", within_s=120.0, what="the lowest limit that is allowed")
        eventually(lambda: [one for one in job.state().incidents if one.findings[0].kind == "too_hot"], within_s=120.0, what="that it is told")
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait() == 130
    assert card.read_text() == "700000"
