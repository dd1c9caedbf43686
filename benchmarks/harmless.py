"""Harmless: does Holdfast leave alone what works, and say only what is so?

Each section is a module of `benchmarks/legal/`: scripts that are odd and legal under torchrun and under Holdfast; real hangs; ways to leave a loop; full disks;
figures against the script's own log; output; diagnosis. `--only scripts,hangs` runs some of them. With `--record FILE` what takes long is added to that file as
soon as it is over; what the file holds already is counted, and only the rest is done.
"""

from __future__ import annotations

import importlib

from harness.jobs import scratch_directory
from harness.measure import Report, arguments, say

SECTIONS = {
    "scripts": "legal.run_scripts", "hangs": "legal.hangs", "leaving": "legal.leaving", "full_disks": "legal.full_disks", "figures": "legal.figures",
    "output": "legal.output", "diagnosis": "legal.diagnosis",
}  # fmt: skip


def main() -> None:
    texts = {
        "only": f"sections, separated by commas: {', '.join(SECTIONS)}", "record": "file to which each result is added; what it holds is not done again",
        "scripts": "names of scripts, separated by commas", "kinds": "kinds of hang, separated by commas",
    }  # fmt: skip
    chosen = arguments(
        __doc__ or "", texts=texts, lanes=(4, 4, "scripts or jobs at once"), hangs=(20, 2, "hangs of each kind"),
        pause_s=(0, 28, "longest pause of a script in seconds; 0: as long as it has"),
    )  # fmt: skip
    names = chosen.only.split(",") if chosen.only else list(SECTIONS)
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise SystemExit(f"there is no section {unknown[0]!r}; expected some of {', '.join(SECTIONS)}")
    report = Report("Harmless: what works is left alone, and what is said is so")
    for name in names:
        say(f"section: {name}")
        with scratch_directory(keep=chosen.keep) as scratch:
            importlib.import_module(SECTIONS[name]).measure(report, chosen, scratch)
    report.finish(chosen)


if __name__ == "__main__":
    main()
