"""Reading: YAML text -> tree.  PyYAML parses the structure and its positions; this module interprets plain words by the rules of YAML 1.2.

    1e-3  3.  .5                    numbers                      (YAML 1.1: 1e-3 is a string)
    true false                      the only bools               (YAML 1.1: yes, no, on, off and y too)
    null ~ and nothing              null
    2024-01-01  1:30  1_000         strings                      (YAML 1.1: a date, 90, 1000)
    010                             an error: 8 to some readers and 10 to others

Keys are strings and unique within a map.  Tags, `<<` and several documents in a file are errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

from jobflow.trainer.config.tree import Mark, Origin, Path, Problems, Tree, dotted

#: plain words other than strings: pattern and conversion
_MEANINGS: tuple[tuple[str, Callable[[str], Any]], ...] = (
    (r"|~|null|Null|NULL", lambda word: None),
    (r"true|True|TRUE", lambda word: True),
    (r"false|False|FALSE", lambda word: False),
    (r"[-+]?\d{1,400}", int),
    (r"0o[0-7]+|0x[0-9a-fA-F]+", lambda word: int(word, 0)),
    (r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?", float),
    (r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", lambda word: float(word.replace(".", ""))),
)
_TWO_MEANINGS = re.compile(r"[-+]?0\d+")
#: maximum number of nodes of a file, against aliases that expand exponentially
MOST = 100_000
#: maximum nesting depth of maps and lists
DEPTH = 64
_TOO_DEEP = f"lists and maps are nested more than {DEPTH} deep"


def value_of(word: str) -> Any:
    """Convert a plain word to a string, number, bool or null."""
    return next((make(word) for pattern, make in _MEANINGS if re.fullmatch(pattern, word)), word)


class _Loader(yaml.SafeLoader):
    """A loader that composes nodes; a node without an explicit tag in the file has the tag ""."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node; raise RecursionError if nodes are nested more than DEPTH deep, independent of Python's own limit."""
        self.depth += 1
        if self.depth > DEPTH:
            raise RecursionError
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        return ""


def read(text: str, file: str, problems: Problems, whole: Origin | None = None, path: Path = ()) -> Tree | None:
    """Parse the YAML string `text`; report a problem and return None if `text` is not valid YAML.

    `whole` is the position of every value in a string without lines, such as a setting.
    """
    try:
        node = _Loader(text).get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        line, column, message = _complaint(error, text)
        problems.add(whole or Origin(file, line + 1, column + 1), path, message)
        return None
    reading = _Reading(file, problems, whole)
    reading.marks[path] = Mark(whole or Origin(file, 1, 1))
    return Tree(None if node is None else reading.value(node, path, None), reading.marks)


_TRANSLATED = {
    "but found another document": "a configuration is one document; remove the text after ---",
    "mapping values are not allowed here": 'a ":" is not expected here; check the indentation, and quote texts that contain ": "',
    "could not find expected ':'": 'there is no ":" behind this key',
    "found unknown escape character": "a backslash in double quotes begins an escape, and this escape is unknown; use single quotes",
    "found unexpected end of stream": "this text has no closing quote",
    "expected <block end>, but found '<block": "this line is indented unlike those before it",
    "expected <block end>, but found": "nothing is expected here; check the brackets and quotes before it",
    "found undefined alias": "no value before this one is marked with that name, as &name",
    "found character": "a text cannot begin with this character; put it in quotes",
    "expected alphabetic or numeric character": "a * or & begins the name of a value; put the text in quotes",
    "found a tab": "a tab is not expected here; use spaces",
}


def _complaint(error: yaml.YAMLError | RecursionError, text: str) -> tuple[int, int, str]:
    """Return the line and column, from 0, of a YAML error, and the message."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in a configuration; remove it"
        return before.count("\n"), error.position - before.rfind("\n") - 1, message
    if not isinstance(error, yaml.MarkedYAMLError):
        return 0, 0, _TOO_DEEP
    problem, mark = str(error.problem or error.context), error.problem_mark or error.context_mark
    message = next((translation for start, translation in _TRANSLATED.items() if problem.startswith(start)), f"not valid YAML: {problem}")
    expected = re.match(r"expected ',' or '(.)'", problem)
    if "end of stream" in problem or (expected and error.problem_mark is None):
        mark = error.context_mark
    elif expected and error.context_mark is not None:
        message = f'a "," or "{expected[1]}" is missing before this, in the value that begins on line {error.context_mark.line + 1}'
    line, lines = 0 if mark is None else mark.line, text.splitlines()
    for i in (line, line - 1):
        tab = re.match(r"[^\S\t]*(?=\t)", lines[i]) if 0 <= i < len(lines) else None
        if tab is not None:
            return i, tab.end(), "a tab indents this line; YAML is indented with spaces only"
    return line, 0 if mark is None else mark.column, message


class _Reading:
    """The conversion of PyYAML nodes to values with their source positions."""

    def __init__(self, file: str, problems: Problems, whole: Origin | None) -> None:
        self.file, self.problems, self.whole = file, problems, whole
        self.marks: dict[Path, Mark] = {}
        self.open: list[yaml.Node] = []
        self.count = 0

    def origin(self, node: yaml.Node) -> Origin:
        return self.whole or Origin(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def value(self, node: yaml.Node, path: Path, key: Origin | None) -> Any:
        at = self.origin(node)
        self.marks[path] = Mark(at, key)
        self.count += 1
        refused = {
            "an alias is inside the value that it names": node in self.open,
            f"the aliases of this file expand to more than {MOST} values": self.count > MOST,
            _TOO_DEEP: len(self.open) >= DEPTH,
        }
        for reason in (reason for reason, holds in refused.items() if holds):
            self.problems.add(at, path, reason)
            return None
        if node.tag:
            self.problems.add(at, path, f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not supported; omit it")
        self.open.append(node)
        is_map, is_list = isinstance(node, yaml.MappingNode), isinstance(node, yaml.SequenceNode)
        value = self.entries(node, path) if is_map else self.list_entries(node, path) if is_list else self.word(node, path)
        self.open.pop()
        return value

    def list_entries(self, node: yaml.Node, path: Path) -> Any:
        return [self.value(entry, (*path, str(i)), None) for i, entry in enumerate(node.value)]

    def word(self, node: Any, path: Path) -> Any:
        text: str = node.value
        if node.style is None and _TWO_MEANINGS.fullmatch(text):
            octal = f", or 0o{text.lstrip('-+0')} for the octal number" if set(text) <= set("-+01234567") else ""
            message = f"{text} means different numbers to different readers of YAML; write {int(text)}{octal}"
            self.problems.add(self.origin(node), path, message)
        return value_of(text) if node.style is None else text

    def entries(self, node: yaml.Node, path: Path) -> Any:
        entries: dict[str, Any] = {}
        for key, entry in node.value:
            name, at = key.value, self.origin(key)
            if not isinstance(key, yaml.ScalarNode):
                self.problems.add(at, path, "a key is a word, not a list or a map; texts that begin with [ or { need quotes")
            elif name == "<<" and key.style is None:
                self.problems.add(at, (*path, name), '"<<" is not supported; use `extends:` for a file, or ${...} for a value')
            elif name in entries:
                where = f" in {dotted(path)}" if path else ""
                message = f'key "{name}" occurs twice{where}; the first is at {self.marks[*path, name].key}'
                self.problems.add(at, (*path, name), message)
            else:
                entries[name] = self.value(entry, (*path, name), at)
        return entries
