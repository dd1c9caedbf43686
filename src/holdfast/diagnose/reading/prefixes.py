"""Who wrote a line, and when: what launchers, containers and loggers put before it.

Layers nest: a line of a Kubernetes export may hold a line of torchrun, which holds one of a logger, or a JSON record. They are taken off one by one. Prefixes
that could also be the text itself ("3: ", "node1: ") are believed only where most of the first lines of the file have them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from holdfast.diagnose.reading.line import TEXT_MAX, Line
from holdfast.diagnose.reading.times import Clock, number_as_time

_LAYERS_MAX: Final = 6
_VOTERS: Final = 40
_SHARE_MIN: Final = 0.6
_JSON_BYTES_MAX: Final = 1 << 16

_CRI: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:\d\d)) std(?:out|err) ([FP]) ?")
_WRITER: Final = re.compile(
    r"\[(?:[Rr]ank|RANK)[ :=]{0,2}(?P<rank>\d{1,6})\]:? ?"
    r"|\[[A-Za-z][\w.-]*?(?P<local>\d{1,5})(?:\|(?P<global>\d{1,6}))?\]:"  # torchrun --tee: [default3]:, [trainer0|3]:
    r"|\[\d+,(?P<mpi>\d{1,6})\]<std(?:err|out|diag)>:"
    r"|\[pod/(?P<pod>[\w.-]+)/[\w.-]+\] "
    r"|\((?P<ray>[^()\n]{0,80}?\b(?:pid|rank)=\d+[^()\n]{0,80})\) ?"
)
_LABELLED: Final = re.compile(r" {0,5}(?P<task>\d{1,6}): ?")  # srun --label
_HOST: Final = re.compile(r"(?P<host>(?:[A-Za-z][\w-]*\d[\w-]*(?:\.[\w-]+)*|\d{1,3}(?:\.\d{1,3}){3})): ?")  # pdsh, clush
_COMPOSE: Final = re.compile(r"(?P<host>[A-Za-z][\w.-]*?[_-]?\d*) +\| ")
_SYSLOG: Final = re.compile(r"\s?(?P<host>[A-Za-z0-9][\w.-]*) (?P<program>kernel|[\w./@()-]+)(?:\[(?P<pid>\d+)\])?: ")
_LEVEL: Final = re.compile(
    r"(?:^|[\s\[(<|:-])(?P<level>DEBUG|TRACE|INFO|NOTICE|WARN(?:ING)?|ERROR|ERR|CRITICAL|FATAL|SEVERE|Warning|Error|warning|error|info)(?=$|[\s\])>|:-])"
)
# What stands between the level and the message, with the logger's name; but for one space, spaces are the message's own.
_AFTER_LEVEL: Final = re.compile(r"[\])>]*(?:\s*[|:-]+)?\s?(?:[\w.]{1,60}(?::[\w<>]+)*(?::\d+)? [-|] )?")
_LEVELS: Final = {
    "d": "debug", "debug": "debug", "trace": "debug", "i": "info", "info": "info", "notice": "info", "w": "warning", "warn": "warning", "warning": "warning",
    "e": "error", "err": "error", "error": "error", "severe": "error", "f": "fatal", "fatal": "fatal", "critical": "fatal", "panic": "fatal", "dpanic": "fatal",
    "emerg": "fatal", "alert": "fatal", "crit": "fatal",
}  # fmt: skip
_RANK_SAID: Final = re.compile(r"[\[(<](?:\w+_)?(?:[Rr]ank|RANK)[ :=]{0,2}(\d{1,6})\b|^(?:\w+_)?(?:[Rr]ank|RANK)[ :=]{0,2}(\d{1,6})[\]:,|]")
_PID_SAID: Final = re.compile(r"\brank=(\d+)|\bip=([\w.:-]+)|\bpid=(\d+)")
_QUOTED: Final = re.compile(r">(?: |$)")
_PLACE: Final = re.compile(r"(?P<tensorflow>:\s+(?P<level>[IWEF])\s+(?:\d+\s+)?[\w./-]+:\d+\] ?)|\[?(?P<torch>[IWEF]) [\w./-]+:\d+\] ?")
_GLOG_HEAD: Final = re.compile(r"\s+(?:\d+\s+)?([\w./+-]+:\d+)\] ?")
_NAME_RANK: Final = re.compile(r"(?:^|[/_.-])(?:global[_-]?)?(?:rank|worker|proc|process|task|gpu)[._-]?(\d{1,6})(?=[._/-]|$)", re.IGNORECASE)
_NAME_LOCAL: Final = re.compile(r"(?:^|/)(\d{1,5})/(?:stderr|stdout|error)(?:\.\w+)*$")
_NAME_NODE: Final = re.compile(r"(?:^|[/_.-])((?:node|host|gpu-?node|nid|compute|ip-)[\w-]*?\d+[\w-]*)(?=[./]|$)", re.IGNORECASE)

_MESSAGE: Final = ("message", "msg", "log", "text", "event", "textPayload", "body", "MESSAGE", "@message")
_LEVEL_KEYS: Final = ("level", "severity", "levelname", "lvl", "log.level", "PRIORITY", "loglevel")
_TIME_KEYS: Final = ("time", "ts", "timestamp", "@timestamp", "asctime", "datetime", "date", "created", "__REALTIME_TIMESTAMP")
_RANK_KEYS: Final = ("rank", "global_rank", "RANK", "process_rank", "local_rank")
_NODE_KEYS: Final = ("node", "host", "hostname", "_HOSTNAME", "node_name", "nodename")
_STACK_KEYS: Final = ("exc_info", "exception", "traceback", "stack", "stack_trace", "stacktrace", "exc_text", "error")


def of_name(path: str) -> tuple[int | None, str]:
    """Rank and node as a file's name tells them: rank3.log, worker-3/…, node1/0/stderr.log."""
    node = _NAME_NODE.search(path)
    ranks = _NAME_RANK.findall(path)
    local = _NAME_LOCAL.search(path)
    number = ranks[-1] if ranks else local[1] if local else None
    return (int(number) if number is not None else None), (node[1] if node else "")


class Prefixes:
    """One file's habits: which prefixes its lines have, and from whom they come where they do not say."""

    def __init__(self, path: str) -> None:
        self.rank, self.node = of_name(path)
        self._clock = Clock()
        self._voted = False
        self._labelled: re.Pattern[str] | None = None
        self._partial: dict[str, str] = {}

    @property
    def waits(self) -> bool:
        """For the rest of a line that came in parts."""
        return bool(self._partial)

    def vote(self, first: list[str]) -> None:
        """Look at the first lines once: which of the doubtful prefixes do most of them have?"""
        first = [line for line in first if line.strip()][:_VOTERS]
        if self._voted or len(first) < 3:
            return
        self._voted = True
        enough = max(3, _SHARE_MIN * len(first))
        doubtful = (_QUOTED, _LABELLED, _HOST, _COMPOSE)
        self._labelled = next((form for form in doubtful if sum(form.match(line) is not None for line in first) >= enough), None)

    def lines(self, text: str, number: int) -> list[Line]:
        """What a line says; several lines where a record holds a whole stack."""
        line = Line(text, text, number, self.rank, self.node)
        if not self._peel(line):
            return []
        if "\n" not in line.text:
            self._head(line)
            return [line]
        found = []
        for part in line.text.split("\n")[:400]:
            one = Line(part[:TEXT_MAX], part[:TEXT_MAX], number, line.rank, line.node, line.stream, line.at_s, line.level)
            self._head(one)
            found.append(one)
        return found

    def _peel(self, line: Line) -> bool:
        """Take off everything that says who; False when the line is the first part of one that goes on."""
        doubtful = self._labelled
        for _ in range(_LAYERS_MAX):
            text = line.text
            if not text:
                return True
            first = text[0]
            if first in "[(":
                if not self._writer(line):
                    return True
            elif first == "{":
                return self._record(line)
            elif first.isdigit() and (found := _CRI.match(text)):
                line.at_s, _, _ = self._clock.read(text)
                key = f"{line.rank} {line.node}"
                rest = self._partial.pop(key, "") + text[found.end() :]
                if found[2] == "P" and len(rest) < TEXT_MAX:
                    self._partial[key] = rest
                    return False
                line.text = line.shown = rest
            elif doubtful is None or not self._doubtful(line, doubtful):
                return True
            else:
                doubtful = None  # Once a line: a second number is the text's own.
        return True

    def _doubtful(self, line: Line, form: re.Pattern[str]) -> bool:
        found = form.match(line.text)
        if found is None:
            return False
        part = found.groupdict()
        if part.get("task"):
            line.rank = int(part["task"])
        elif part.get("host"):
            line.node = part["host"]
            line.rank = line.rank if line.rank is not None else of_name(line.node)[0]
        line.text = line.shown = line.text[found.end() :]
        return True

    def _writer(self, line: Line) -> bool:
        found = _WRITER.match(line.text)
        if found is None:
            return False
        rank = found["rank"] or found["global"] or found["mpi"] or found["local"]
        if rank is not None:
            line.rank = int(rank)
        elif found["pod"]:
            line.rank, line.stream = of_name(found["pod"])[0], found["pod"]
        elif found["ray"]:
            for said, ip, pid in _PID_SAID.findall(found["ray"]):
                line.rank = int(said) if said else line.rank
                line.node = ip or line.node
                line.stream = pid or line.stream
        line.text = line.shown = line.text[found.end() :]
        return True

    def _record(self, line: Line) -> bool:
        """A JSON record: Docker's, a structured logger's, journalctl's. Anything else that starts with a brace stays as it is."""
        if not line.text.rstrip().endswith("}") or len(line.text) > _JSON_BYTES_MAX:
            return True
        try:
            record = json.loads(line.text)
        except (ValueError, RecursionError):
            return True
        if not isinstance(record, dict):
            return True
        said = next((record[key] for key in _MESSAGE if isinstance(record.get(key), str)), None)
        if said is None:
            return True
        self._fields(line, record)
        stack = next((record[key] for key in _STACK_KEYS if isinstance(record.get(key), str)), "")
        whole = said.rstrip("\n") if not stack or stack.strip() in said else f"{said.rstrip()}\n{stack.rstrip()}"
        line.text = line.shown = whole
        return self._peel(line) if "\n" not in whole and whole[:1] in "{[(0123456789" else True

    def _fields(self, line: Line, record: Mapping[str, Any]) -> None:
        level = next((record[key] for key in _LEVEL_KEYS if key in record), "")
        if isinstance(level, str):
            line.level = _LEVELS.get(level.lower(), line.level)
        elif isinstance(level, int) and not isinstance(level, bool):
            line.level = "fatal" if level >= 50 else "error" if level >= 40 else "warning" if level >= 30 else line.level
        rank = next((record[key] for key in _RANK_KEYS if key in record), None)
        if isinstance(rank, int | str) and str(rank).isdigit() and len(str(rank)) < 7:
            line.rank = int(rank)
        node = next((record[key] for key in _NODE_KEYS if isinstance(record.get(key), str)), "")
        line.node = node[:80] or line.node
        time = next((record[key] for key in _TIME_KEYS if key in record), None)
        if isinstance(time, str):
            line.at_s = number_as_time(int(time)) if time.isdigit() and len(time) < 20 else self._clock.read(time)[0]
        elif time is not None:
            line.at_s = number_as_time(time)

    def _head(self, line: Line) -> None:
        """Time and level, and who else is named before the message."""
        at_s, end, level = self._clock.read(line.text)
        if end:
            line.at_s, line.timed = at_s, True
            rest = line.text[end:]
            if level:
                line.level = _LEVELS[level.lower()]
                head = _GLOG_HEAD.match(rest)
                rest = rest[head.end() :] if head else rest
            elif rest[:1] == ":" and (found := _PLACE.match(rest)):
                line.level = _LEVELS[found["level"].lower()]
                rest = rest[found.end() :]
            elif (found := _SYSLOG.match(rest)) and found["program"] not in ("ERROR", "INFO", "WARNING"):
                line.node = found["host"]
                rest = rest[found.end() :]
                if rest[:1] == "[":  # The kernel's own seconds inside syslog's line.
                    rest = rest[self._clock.read(rest)[1] :].lstrip()
            line.text = rest[1:] if rest[:1] == " " else rest
            if line.text[:1] == "[":
                self._writer(line)
        elif line.text[:1] in ("[", "I", "W", "E", "F") and (found := _PLACE.match(line.text)):
            line.level = _LEVELS[found["torch"].lower()]
            line.text = line.text[found.end() :]
        if not line.level:
            self._level(line)
        if line.rank is None and ("ank" in line.text or "ANK" in line.text) and (found := _RANK_SAID.search(line.text, 0, 80)):
            line.said_rank = int(found[1] or found[2])

    def _level(self, line: Line) -> None:
        found = _LEVEL.search(line.text, 0, 100)
        if found is None:
            return
        head, word = line.text[: found.start()], found["level"]
        alone = not head.strip()
        if not (line.timed or alone) or "Error" in head or "Exception" in head or head.endswith("NCCL") or len(head.split()) > 6:
            return
        if not word.isupper() and not (alone and line.text[found.end() : found.end() + 1] == ":") and "[" not in line.text[: found.end()]:
            return
        line.level = _LEVELS[word.lower()]
        after = _AFTER_LEVEL.match(line.text, found.end())
        line.text = line.text[after.end() if after is not None else found.end() :]
