"""YAML with line numbers. Every plain value stays the text that was written: YAML's own guesses (`on`, `012`, `1:30`) surprise people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches

import yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong, where. One line for a terminal."""

    file: str
    line: int
    what: str
    rule: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule + ': ' if self.rule else ''}{self.what}"


@dataclass(slots=True)
class Value:
    """Text, a list or a mapping, and the line it begins at."""

    line: int
    text: str | None = None
    items: list[Value] | None = None
    fields: dict[str, Value] | None = None
    twice: dict[str, int] = field(default_factory=dict)  # Keys that were written more than once, and where the second time.

    @property
    def kind(self) -> str:
        return "text" if self.text is not None else "a list" if self.items is not None else "a mapping"


def documents(text: str, file: str) -> Value | Problem:
    """The one document in the text."""
    try:
        alias = next((event for event in yaml.parse(text, Loader=yaml.SafeLoader) if isinstance(event, yaml.AliasEvent)), None)
        if alias is not None:  # A short file with aliases can stand for one without end.
            line = alias.start_mark.line + 1 if alias.start_mark is not None else 1
            return Problem(file=file, line=line, what=f"an alias (*{alias.anchor}) is not understood; write out what it stands for")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        hint = " Put a comparison that begins with > or ! in quotes." if _looks_bare(text, line) else ""
        what = str(error.problem or error.context).replace("'<stream end>'", "the end of the file")
        return Problem(file=file, line=line, what=f"not YAML: {what}.{hint}")
    except yaml.YAMLError as error:
        return Problem(file=file, line=1, what=f"not YAML: {' '.join(str(error).split())}.")
    except RecursionError:
        return Problem(file=file, line=1, what="lists and mappings are nested too deeply")
    if node is None:
        return Problem(file=file, line=1, what="the file is empty")
    return _value(node)


def _looks_bare(text: str, line: int) -> bool:
    lines = text.splitlines()
    return any(": >" in one or ": !" in one for one in lines[max(0, line - 2) : line])


def _value(node: yaml.Node) -> Value:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        made = Value(line, fields={})
        assert made.fields is not None
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            if name in made.fields:
                made.twice[name] = key.start_mark.line + 1
            made.fields[name] = _value(value)
            made.fields[name].line = key.start_mark.line + 1
        return made
    if isinstance(node, yaml.SequenceNode):
        return Value(line, items=[_value(item) for item in node.value])
    assert isinstance(node, yaml.ScalarNode)
    # `is: != 1` is read as a tag with a 1 behind it.
    tag = node.tag if node.tag.startswith("!") else ""
    return Value(line, text=f"{tag} {node.value}" if tag else node.value)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    found = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {str(found[0])!r}?" if found else ""
