"""Collectives and what they meet through: NCCL, torch's watchdog, Gloo, the store and the rendezvous.

Sees        NCCL's own warnings, the watchdog's timeouts with sequence number and operation, ncclResult names, Gloo's and c10d's sockets.
Says        the result's name or who speaks as the error; the rank that the line itself names, which is more than who printed it.
Is wrong    when a library under NCCL logs through it: the words are then NCCL's, the fault is not.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.diagnose.reading.forms.found import Found, single
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm

_NCCL_LINE: Final = re.compile(r"(?:(?P<node>[A-Za-z0-9][\w.-]{0,63}):(?P<pid>\d{1,9}):\d+ )?(?:\[\d+\] )?(?:[\w./]{1,60}:\d+ )?NCCL (?P<level>WARN"
    r"|ERROR) (?P<message>.*)")
_NCCL_TROUBLE: Final = re.compile(
    r"error|fail|time(?:d )?out|closed|reset|refused|abort|unhandled|no route|unreachable|completion with|mismatch|invalid|out of memory|duplicate gpu"
    r"|not found|cannot|can't|unable|lost|broken"
    r"|async event|link down|port down|too many|exceeded|no such|no space|truncated|bad |missing|unexpected|remote process exited",
    re.IGNORECASE,
)
_HARMLESS: Final = re.compile(r"RAS|NET/Plugin|plugin.*(?:not found|could not)|Could not find: libnccl|MSCCL|tuner|NUMA|numa_|ACS|fallback|falling back|sysfs"
    r"|NCCL_\w+ (?:set|is)|deprecated", re.IGNORECASE)
_RESULT: Final = re.compile(r"\bnccl(?:UnhandledCudaError|SystemError|InternalError|InvalidArgument|InvalidUsage|RemoteError|InProgress|Timeout)\b")
_WATCHDOG: Final = re.compile(r"Watchdog caught collective operation timeout|collective operation timeout|Timeout at NCCL work"
    r"|ran for \d+ milliseconds before timing out")
_AFTERMATH: Final = re.compile(
    r"Some NCCL operations have failed or timed out|taking the entire process down|[Ww]atchdog thread (?:terminated|got stuck)"
    r"|failed or timed out\. Due to the asynchronous"
    r"|Process group watchdog|[Hh]eartbeat.*(?:stuck|timeout|no progress)|First PG on this rank|Received a dump signal|Stack trace of the failed collective"
    r"|[Ff]light recorder|monitored barrier|last enqueued NCCL work"
    r"|Timeout waiting for key|collective .*(?:mismatch|desync)|Detected mismatch between collectives"
)
_GLOO: Final = re.compile(
    r"\bgloo[/:]|\bGloo\b.*(?:fail|error|timed|connect)|connectFullMesh failed|Timed out waiting \d+ ?ms for (?:recv|send)|Connection (?:closed"
    r"|reset) by peer \[|Application timeout caused pair closure"
)
_STORE: Final = re.compile(
    r"\[c10d\]|\bTCPStore\b|Store(?:: | )timeout|recvV(?:alue|ector) failed|sendBytes failed|(?:client|server) socket has (?:timed out|failed)"
    r"|wait timeout after \d+ ?ms|Rendezvous(?:Timeout|Connection|Closed|State)?Error"
    r"|rendezvous .*(?:timed out|timeout|failed|closed)|[Ss]ocket [Tt]imeout|DistStoreError|DistNetworkError|The node .* has failed to (?:send|connect)"
    r"|failed to connect to .*:\d+|EADDRINUSE|[Aa]ddress already in use"
)
_WATCHDOG_WORDS: Final = frozenset((
    "watchdog", "collective", "collectives", "milliseconds", "nccl", "process", "heartbeat", "pg", "dump", "recorder", "barrier", "timeout", "asynchronous",
))  # fmt: skip
_GLOO_WORDS: Final = frozenset(("gloo", "connectfullmesh", "recv", "send", "peer", "pair"))
_STORE_WORDS: Final = frozenset((
    "c", "tcpstore", "store", "recvvalue", "recvvector", "sendbytes", "socket", "wait", "rendezvous", "diststoreerror", "distnetworkerror", "connect",
    "address",
    "eaddrinuse", "rendezvoustimeouterror", "rendezvousconnectionerror", "rendezvousclosederror", "rendezvousstateerror", "rendezvouserror",
))  # fmt: skip
_WORDS: Final = _WATCHDOG_WORDS | _GLOO_WORDS | _STORE_WORDS
_SAID_RANK: Final = re.compile(r"\[(?:PG [^\]]*?)?[Rr]ank (\d+)\]")


def read(line: Line) -> Found | None:
    if line.words.isdisjoint(_WORDS) and "nccl" not in line.text and "NCCL" not in line.text:
        return None
    found = _of(line)
    if found is not None and (said := _SAID_RANK.search(line.text)) is not None:
        found.rank = int(said[1][:6])
    return found


def _of(line: Line) -> Found | None:
    text = line.text.strip()
    if "NCCL" in text or "nccl" in text:
        if (nccl := _NCCL_LINE.search(text)) is not None:
            said = nccl["message"]
            harmless = _HARMLESS.search(said) is not None or _NCCL_TROUBLE.search(said) is None
            one = single(LogForm.COLLECTIVE, f"NCCL {nccl['level']}", said, line, warning=harmless)
            one.node = nccl["node"] or ""
            return one
        if "NCCL INFO" in text:
            return None
        if (result := _RESULT.search(text)) is not None:
            return single(LogForm.COLLECTIVE, result[0], text, line)
    watchdog = not line.words.isdisjoint(_WATCHDOG_WORDS)
    if watchdog and _WATCHDOG.search(text):
        return single(LogForm.COLLECTIVE, "NCCL timeout", text, line)
    if watchdog and _AFTERMATH.search(text):
        return single(LogForm.COLLECTIVE, "NCCL watchdog", text, line, warning=line.level in ("info", "debug"))
    if not line.words.isdisjoint(_GLOO_WORDS) and _GLOO.search(text):
        return single(LogForm.COLLECTIVE, "Gloo", text, line, warning=line.level in ("warning", "info", "debug"))
    if not line.words.isdisjoint(_STORE_WORDS) and _STORE.search(text):
        return single(LogForm.COLLECTIVE, "c10d", text, line, warning=line.level in ("warning", "info", "debug"))
    if "NCCL" in text and _NCCL_TROUBLE.search(text):
        return single(LogForm.COLLECTIVE, "NCCL", text, line, warning=line.level in ("warning", "info", "debug"))
    return None
