"""Run pytest, and what failed in it once more by itself: `python tests/twice.py [pytest's arguments]`.

Most of our tests kill, stop and starve real processes, on machines that are shared. Out of thousands, one meets a moment that its author did
not think of, about once in ten runs. Such a test is a mistake, and is said loudly by name; but it is not the mistake of the change being
tested, which must not be sent back for it. So up to MOST failed tests get a second chance, alone: what fails twice fails the run, and what
passes is printed as unsteady, to be mended. More than MOST failures are no chance, and are not asked again.

Most of our tests wait longer than they compute. So RUNNERS of them go on at once where each can have shared memory of its own, file by file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 5
RUNNERS = 2
ALONE = "import sys; from holdfast.launch.namespaces import own_shared_memory; sys.exit(not own_shared_memory())"
CACHE = Path(".pytest_cache/twice").resolve()  # Apart from the one that pytest's own --last-failed uses, which remembers the failures of other days too.


def main(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHE}", *arguments]
    code = subprocess.run([*command, "--cache-clear", *side_by_side()], check=False).returncode
    if code != 1:  # Passed, interrupted, or never begun.
        return code
    failed = sorted(json.loads((CACHE / "v/cache/lastfailed").read_text()))
    if never_ran := [name for name in failed if "::" not in name]:
        print(f"holdfast: {', '.join(never_ran)} could not be collected: that is no chance, and nothing is asked again")
        return code
    if len(failed) > MOST:
        print(f"holdfast: {len(failed)} tests failed, which is more than chance makes; none is asked again")
        return code
    print(f"\nholdfast: {len(failed)} of the tests failed; once more, alone", flush=True)
    code = subprocess.run([*command, "--last-failed", "--last-failed-no-failures", "none"], check=False).returncode
    for name in failed if code == 0 else ():
        print(f"holdfast: UNSTEADY, failed and then passed alone: {name}")
    return code


def side_by_side() -> list[str]:
    permitted = subprocess.run([sys.executable, "-c", ALONE], check=False, stderr=subprocess.DEVNULL).returncode == 0
    return ["-n", str(RUNNERS), "--dist", "loadfile"] if permitted else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
