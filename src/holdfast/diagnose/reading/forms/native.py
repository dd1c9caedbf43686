"""What is left of a process that C or C++ ended: terminate called, a failed check, a signal with its stack, the shell's word for it.

Sees        "terminate called …" with what(), c10::Error with its frames, glog's checks, stacks of glog, faulthandler, Open MPI and sanitizers, glibc's
            complaints, Go's panics.
Says        the signal or the C++ class as the error ("SIGSEGV", "c10::Error"), the message, the frames with their libraries.
Is wrong    when a shell's "Killed" is about another process of the same script.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.diagnose.reading.forms.found import Answer, Found, single
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm, LogFrame

_TERMINATE: Final = re.compile(r"(?:terminate called|libc\+\+abi: terminating)(?: (?:after throwing an instance of"
    r"|due to uncaught exception of type) '?(?P<class>[^':]+(?:::[^':]+)*))?")
_STACK: Final = re.compile(
    r"\*\*\* (?P<signal>SIG[A-Z]+) \(@|Fatal Python error: (?P<python>.+)|\*\*\* Process received signal \*\*\*|\*\*\* Check failure stack trace"
    r"|ERROR: (?P<sanitizer>\w+Sanitizer): (?P<what>.+)"
    r"|!!!!!!! (?:Segfault|Segmentation fault)|Caught signal \d+ \((?P<ucx>[^)]+)\)|^panic: (?P<go>.+)|signal arrived during|^fatal error: (?P<gofatal>.+)"
    r"|Aborted at \d+ \(unix time\)"
)
_SHELL: Final = re.compile(
    r"(?:^|[\s:])(?P<word>Segmentation fault|Bus error|Illegal instruction|Floating point exception|Aborted|Killed|Terminated|Hangup|User defined signal \d"
    r"|Quit)(?P<core> \(core dumped\))?"
    r"(?:\s+(?=\S*(?:python|torchrun|srun|accelerate|deepspeed|mpirun|bash|sh|/|\())|\s*$)"
)
_SHELL_HEAD: Final = re.compile(r"^(?:[\w./-]+: line \d+:\s+\d+ |\S+: |)$|line \d+:\s*\d* ?$")
_GLIBC: Final = re.compile(
    r"double free or corruption|(?:free|malloc|realloc)\(\): [a-z]|corrupted (?:size vs\. prev_size|double-linked list)|munmap_chunk\(\)"
    r"|stack smashing detected|malloc_consolidate"
)
_ASSERT: Final = re.compile(r"^\S[^:]*: \S+:\d+: .*Assertion [`'](?P<what>.+)['`] failed")
_CHECK: Final = re.compile(r"Check failed: |\bCHECK failed\b|PyTorch internal assert|INTERNAL ASSERT FAILED")
_LINKER: Final = re.compile(r"error while loading shared libraries: .+|symbol lookup error: .+|undefined symbol: \S+|version `(?:GLIBC|GLIBCXX"
    r"|CXXABI)_[\d.]+' not found")
_FRAME: Final = re.compile(
    r"\s*(?:\[[\w.-]+:\d+\] )?(?:frame #\d+: (?P<torch>.+)|@\s+(?:0x[0-9a-fA-F]+\s+)?(?P<glog>\S.*)|\[ ?\d+\] (?P<mpi>\S.*)"
    r"|#\d+ +(?:0x[0-9a-f]+ in )?(?P<gdb>\S.*)|\d+ +(?P<ucx>0x[0-9a-f]+ .+))"
)
_PYTHON_FRAME: Final = re.compile(r'\s*File "(?P<path>[^"]+)", line (?P<line>\d+),? in (?P<function>.+)')
_PART: Final = re.compile(
    r"\s*what\(\):|\s+\S|Exception raised from|\s*(?:Current )?[Tt]hread 0x|Extension modules|Python runtime state|<no Python frame>|CUDA kernel errors"
    r"|For debugging consider|Compile with"
    r"|\*\*\*|PC: @|\[[\w.-]+:\d+\] (?:Signal|Failing|\*\*\*|\[)|goroutine \d|\[signal |Last error|nccl\w+|={5,}|SUMMARY: |Device-side assert|Search for"
    r"|0x[0-9a-f]+|exit status \d|C\+\+ CapturedTraceback"
)
_WHAT: Final = re.compile(r"\s*what\(\):\s*(?P<what>.*)")
_MPI_SIGNAL: Final = re.compile(r"Signal: (?P<name>[\w ]+) \(\d+\)")
_NAMES: Final = {
    "segmentation fault": "SIGSEGV", "segfault": "SIGSEGV", "bus error": "SIGBUS", "illegal instruction": "SIGILL", "floating point exception": "SIGFPE",
    "aborted": "SIGABRT",
    "killed": "SIGKILL", "terminated": "SIGTERM", "hangup": "SIGHUP", "quit": "SIGQUIT", "user defined signal 1": "SIGUSR1", "user defined signal 2": "SIGUSR2",
}  # fmt: skip
_OPENING_WORDS: Final = frozenset(("terminate", "terminating", "signal", "fatal", "stack", "sanitizer", "segfault", "segmentation", "caught", "panic",
    "aborted", "check", "assert", "addresssanitizer"))
_WORDS: Final = frozenset((
    "free", "malloc", "realloc", "corrupted", "munmap", "smashing", "assertion", "shared", "symbol", "glibc", "glibcxx", "cxxabi", "segmentation", "bus",
    "illegal", "floating",
    "aborted", "killed", "terminated", "hangup", "quit", "defined",
))  # fmt: skip
_LINES_MAX: Final = 400
_BLANKS_MAX: Final = 2


def opens(line: Line) -> Native | None:
    text = line.text
    if line.words.isdisjoint(_OPENING_WORDS):
        return None
    if (found := _TERMINATE.search(text)) is not None:
        return Native(line, (found["class"] or "terminate").strip(" '"), text)
    if (found := _STACK.search(text)) is not None:
        said = found["python"] or found["what"] or found["ucx"] or found["go"] or found["gofatal"] or ""
        name = found["signal"] or found["sanitizer"] or _NAMES.get(said.partition(":")[0].strip().lower(), "") or ("panic" if found["go"] else "")
        return Native(line, name, text)
    if _CHECK.search(text) and line.level in ("fatal", ""):
        return Native(line, "Check failed", text)
    return None


def read(line: Line) -> Found | None:
    text = line.text.strip()
    if line.words.isdisjoint(_WORDS):
        return None
    if _GLIBC.search(text):
        return single(LogForm.NATIVE, "SIGABRT", text, line)
    if (found := _ASSERT.search(text)) is not None and "thread: [" not in text:
        return single(LogForm.NATIVE, "SIGABRT", text, line)
    if _LINKER.search(text):
        return single(LogForm.NATIVE, "", text, line)
    found = _SHELL.search(text)
    if found is not None and len(text) < 400 and (found.start() == 0 or _SHELL_HEAD.search(text[: found.start("word")])):
        return single(LogForm.NATIVE, _NAMES[found["word"].lower()], text, line)
    return None


class Native:
    def __init__(self, line: Line, error: str, said: str) -> None:
        self._line = line
        self._error = error
        self._message = [said.strip()]
        self._last_line = line.number
        self._text = [line.shown]
        self._frames: list[LogFrame] = []
        self._blanks = 0

    def feed(self, line: Line) -> Answer:
        text = line.text
        if len(self._text) > _LINES_MAX or _TERMINATE.search(text):
            return Answer.ENDED
        if not text.strip():
            self._blanks += 1
            return Answer.TAKEN if self._blanks <= _BLANKS_MAX else Answer.ENDED
        if not self._frame(text):
            if "Traceback (most recent" in text or not (_PART.match(text) or self._expects_more()) or (line.timed and not _PART.match(text)):
                return Answer.ENDED
            self._say(text)
        self._blanks = 0
        self._text.append(line.text.rstrip())
        self._last_line = line.number
        return Answer.TAKEN

    def finish(self) -> Found:
        message = " ".join(self._message)
        form = LogForm.COLLECTIVE if "NCCL" in message or "nccl" in message else LogForm.CUDA if "CUDA error" in message else LogForm.NATIVE
        return Found(
            form=form, error=self._error, message=message, line=self._line, last_line=self._last_line, said_line=self._line.number, text=self._text,
            frames=self._frames,
        )  # fmt: skip

    def _frame(self, text: str) -> bool:
        if (found := _PYTHON_FRAME.match(text)) is not None:
            self._frames.insert(0, LogFrame(path=found["path"][-300:], line=int(found["line"][:9]),
                function=found["function"][:120].strip()))  # The latest call stands first here.
            return True
        found = _FRAME.match(text)
        if found is None:
            return False
        where = next(part for part in found.groups() if part is not None)
        function, _, library = where.partition(" (")
        if len(self._frames) < 200:
            self._frames.append(LogFrame(path=library.rpartition(" in ")[2].strip(" )")[-300:], line=0, function=function.strip()[:200]))
        return True

    def _say(self, text: str) -> None:
        if (found := _WHAT.match(text)) is not None:
            self._message.append(found["what"])
        elif (found := _MPI_SIGNAL.search(text)) is not None:
            self._error = _NAMES.get(found["name"].strip().lower(), found["name"])
            self._message.append(text.strip())
        elif len(self._message) < 8 and not text.strip().startswith(("Exception raised", "Extension modules", "Thread 0x", "Current thread")):
            self._message.append(text.strip())
        if not self._error and (found := re.search(r"\bSIG[A-Z]{2,5}\b", text)) is not None:
            self._error = found[0]

    def _expects_more(self) -> bool:
        return len(self._text) <= 2 and (self._error == "" or self._text[-1].rstrip().endswith(":"))
