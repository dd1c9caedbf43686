"""Records of the kernel: the GPU driver's Xids, out of memory, disks and file systems, memory errors, lockups, links."""

from __future__ import annotations

import re
from typing import Final

from holdfast.diagnose.reading.forms.found import Found, single
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm

_XID: Final = re.compile(r"\bNVRM: Xid \(PCI:(?P<pci>[\w:.]+)\): (?P<code>\d+)|\bSXid \(PCI:(?P<spci>[\w:.]+)\): (?P<scode>\d+)")
# A record's name; words of which a line must have one, for words are asked quicker than patterns; and the pattern. The first that fits names the record.
_RECORDS: Final = tuple(
    (error, frozenset(words.split()), re.compile(pattern))
    for error, words, pattern in (
        ("GPU fallen off the bus", "nvrm", r"NVRM: .*fallen off the bus"),
        ("NVRM", "nvrm", r"NVRM: .*(?:fail|error|timeout|mismatch|not supported)"),
        ("oom-kill", "oom memory", r"oom-kill:|[Oo]ut of memory: Kill|Memory cgroup out of memory|invoked oom-killer|oom_reaper: reaped"),
        (
            "corrected memory error", "edac corrected",
            r"EDAC .*\bCE\b|(?<![Uu]n)[Cc]orrected (?:hardware |memory |machine check )*error|AER: (?:Multiple )?Corrected|severity[=:] ?Corrected",
        ),
        (
            "machine check", "mce hardware edac uncorrected uncorrectable machine",
            r"\bmce: .*(?:[Hh]ardware [Ee]rror|[Mm]achine [Cc]heck)|\[Hardware Error\]|EDAC.*\bUE\b|[Uu]ncorrect(?:ed|able) .*(?:memory|ECC|hardware)"
            r"|Machine check",
        ),
        ("PCIe error", "aer pcie pcieport", r"\bAER: |PCIe Bus Error: severity=Uncorrected|pcieport .*(?:Surprise|error)"),
        ("kernel panic", "kernel oops bug", r"Kernel panic - not syncing|\bOops: \d|BUG: unable to handle|kernel BUG at"),
        ("lockup", "lockup rcu", r"BUG: soft lockup|hard LOCKUP|rcu.* self-detected stall"),
        ("hung task", "blocked", r"INFO: task .* blocked for more than \d+"),
        ("segfault", "segfault traps protection", r"\bsegfault at [0-9a-f]+ ip |traps: .* (?:general protection|trap)|general protection fault"),
        (
            "file system error", "ext xfs btrfs filesystem jbd lustreerror gpfs squashfs",
            r"EXT4-fs (?:error|.*[Rr]emounting|warning)|\bXFS \([^)]+\): .*(?:[Cc]orrupt|[Ee]rror|[Ss]hut|[Mm]etadata)|BTRFS (?:error|critical)"
            r"|[Rr]emounting filesystem read-only|JBD2: .*[Ee]rror|\bLustreError: |\bGPFS.*(?:panic|[Uu]nmount)|squashfs error",
        ),
        (
            "I/O error", "i critical blk nvme ata",
            r"\bI/O error, dev |Buffer I/O error|critical (?:medium|target) error|blk_update_request|nvme\d*.*(?:timeout|controller is down|I/O \d+)"
            r"|ata\d+.*(?:failed|exception)",
        ),
        ("NFS", "nfs", r"\bnfs4?: server \S+ (?:not responding|timed out)|\bNFS: .*(?:error|failed|[Ss]tale)|nfs: .*returned error"),
        (
            "link", "mlx link infiniband",
            r"mlx\d_\w+.*(?:[Ll]ink down|health|fatal|assert)|\b(?:eth|ib|en)\w*:? .*[Ll]ink (?:is )?[Dd]own|Link is Down|infiniband .*(?:error|down)",
        ),
        ("throttled", "temperature thermal", r"[Tt]emperature above threshold.*throttled|thermal.*critical temperature"),
    )
)  # fmt: skip
_MENDED: Final = frozenset(("corrected memory error",))  # No evidence by itself.
_WORDS: Final = frozenset(("nvrm", "sxid")).union(*(words for _, words, _ in _RECORDS))


def read(line: Line) -> Found | None:
    text = line.text
    if line.words.isdisjoint(_WORDS):
        return None
    if (found := _XID.search(text)) is not None:
        return single(LogForm.KERNEL, f"Xid {found['code']}" if found["code"] else f"SXid {found['scode']}", text[found.start() :], line)
    for error, words, pattern in _RECORDS:
        if not line.words.isdisjoint(words) and pattern.search(text):
            return single(LogForm.KERNEL, error, text.strip(), line, warning=error in _MENDED)
    return None
