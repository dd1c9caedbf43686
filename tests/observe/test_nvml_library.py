"""NVML's real binding on a library that pretends: names, layouts and units, of a new driver and of an old one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LOOK = """
import json
from holdfast.observe.gpu import Gpus
from holdfast.observe.nvml import Library
from holdfast.observe.xid import Xids
xids = Xids()
seen = [*Gpus(Library(), xids).look(), *xids.look()]
print(json.dumps({"values": {one.metric: one.value for one in seen if hasattr(one, "metric")},
                  "events": [[one.kind, one.code, one.of, one.uuid, one.pci] for one in seen if hasattr(one, "kind")]}))
"""
BOTH = {
    "gpus": 1, "gpu_power_watts": 480.5, "gpu_power_limit_watts": 700, "gpu_sm_clock_hertz": 1.755e9, "gpu_sm_clock_max_hertz": 1.98e9,
    "gpu_memory_clock_hertz": 3.201e9, "gpu_utilisation_ratio": 0.97, "gpu_memory_size_bytes": 150000, "gpu_memory_temperature_celsius": 70,
    "gpu_ecc_corrected_total": 3, "gpu_ecc_uncorrected_total": 0, "gpu_pcie_replays_total": 2, "gpu_pcie_width": 8, "gpu_pcie_width_max": 16,
    "gpu_xid_total": 1, "gpu_throttled_power": 1, "gpu_throttled_hardware": 0,
}  # fmt: skip


def look(tmp_path: Path, *options: str) -> Any:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source = Path(__file__).with_name("libnvidia_ml.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), *options, str(source)], check=True, timeout=60)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_a_new_driver_is_read_by_its_new_names(tmp_path: Path) -> None:
    seen = look(tmp_path)
    assert seen["values"] == BOTH | {
        "gpu_temperature_celsius": 62, "gpu_memory_used_bytes": 99000, "gpu_throttled_thermal": 0, "gpu_rows_remapped_total": 3, "gpu_remap_pending": 1,
        "gpu_remap_failed": 0, "gpu_nvlink_errors_total": 9, "gpu_processes": 0,
    }  # fmt: skip
    assert seen["events"] == [["xid", 79, "0", "GPU-11112222-3333", "0000:3b:00"]]


def test_an_old_driver_is_read_by_its_old_names_and_lacks_what_it_lacks(tmp_path: Path) -> None:
    seen = look(tmp_path, "-DOLD")
    assert seen["values"] == BOTH | {
        "gpu_temperature_celsius": 61, "gpu_memory_used_bytes": 100000, "gpu_throttled_thermal": 1, "gpu_nvlink_errors_total": 5, "gpu_processes": 0,
    }  # fmt: skip
