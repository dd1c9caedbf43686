"""Incidents caused for real: small trainings, each made to fail in one way, with their logs, exits and the truth about them kept.

    python benchmarks/incidents/cause.py --out DIR            all of them, about ten minutes
    python benchmarks/incidents/cause.py --out DIR --quick    some of each area, about one
    python benchmarks/incidents/cause.py --out DIR --only checkpoint_damaged

Each incident is a directory: its logs (`job.log`, or `rank0.log` …, and `kernel.log` where the kernel's word was kept) and `truth.json` with cause, permanence,
scope, whose fault it was, exit codes, and the way, which its variants share. Real signals, full disks, lost devices, limits, damaged files, servers that answer
with errors; mounts and control groups need root, and are left out with a count without it. One way borrows a preloaded library for errors of a remote file
system, and says so in its truth (`preload`). Nothing is faked in a log. Healthy trainings with alarming words are caused as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from incidents.running import run
from incidents.server import server
from incidents.way import Way
from incidents.ways import ALL
from incidents.world import memory_group_path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the incidents are put, a directory each")
    parser.add_argument("--only", default="", metavar="NAME", help="only ways whose name starts so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was caused, and what was not")
    parser.add_argument("--quick", action="store_true", help="some of each area")
    chosen = parser.parse_args()
    wanted = [way for way in ALL if way.full_name.startswith(chosen.only) and (way.quick or not chosen.quick)]
    if not wanted:
        sys.exit(f"No way is called {chosen.only}…; there are: {', '.join(sorted({way.name for way in ALL}))}")
    possible = [way for way in wanted if os.geteuid() == 0 or not way.root]
    if any(way.launch == "fork" for way in possible):
        import torch

        torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    chosen.out.mkdir(parents=True, exist_ok=True)
    began, kept, failed = time.monotonic(), [], []
    with server() as url, tempfile.TemporaryDirectory(prefix="job-") as root:
        Path(root).chmod(0o755)
        for number, way in enumerate(possible):
            problem = caused(way, chosen.out / way.full_name, Path(root) / f"{number}", url)
            (failed if problem else kept).append((way, problem))
            print(f"{time.monotonic() - began:6.1f} s  {way.full_name}: {problem or way.cause}", flush=True)
    summary = told([way for way, _ in kept], failed, len(wanted) - len(possible), time.monotonic() - began)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(summary, indent=1) + "\n")
    for name in ("incidents", "ways", "permanence", "not_caused", "left_out_without_root", "seconds"):
        print(f"{name}: {summary[name]}")


def caused(way: Way, out: Path, scratch: Path, url: str) -> str:
    """Cause one, keep it, and say what was wrong with it, if anything: then nothing is kept."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    began = time.time()
    try:
        in_time, exits = run(way, out, scratch, url)
    except OSError as error:
        shutil.rmtree(out)
        return f"could not be caused: {error}"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        group = memory_group_path(scratch)
        if group.exists():
            group.rmdir()
    said = "\n".join(log.read_text(errors="replace") for log in sorted(out.glob("*.log")))
    problem = "" if in_time else "it did not end in time"
    if (way.cause == "healthy") != all(code == 0 for code in exits.values()):
        problem = f"it ended with {exits}"
    if 70 in exits.values():
        problem = "its process could not be prepared"
    if problem:
        problem += ": " + " | ".join(said.strip().splitlines()[-3:])
        shutil.rmtree(out)
        return problem
    truth = {
        "name": way.full_name, "way": way.name, "variant": way.variant, "cause": way.cause, "permanence": way.permanence, "scope": way.scope,
        "rank": way.rank, "ranks": way.ranks, "launch": way.launch, "exit_codes": exits, "preload": way.preload, "began": began,
        "seconds": round(time.time() - began, 2),
    }  # fmt: skip
    (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return ""


def told(kept: list[Way], failed: list[tuple[Way, str]], left_out: int, seconds: float) -> dict[str, object]:
    bad = [way for way in kept if way.cause != "healthy"]
    return {
        "incidents": len(bad), "healthy": len(kept) - len(bad), "ways": len({way.name for way in bad}),
        "permanence": dict(Counter(way.permanence for way in bad)), "causes": dict(Counter(way.cause for way in kept)),
        "not_caused": {way.full_name: problem for way, problem in failed}, "left_out_without_root": left_out, "seconds": round(seconds, 1),
    }  # fmt: skip


if __name__ == "__main__":
    main()
