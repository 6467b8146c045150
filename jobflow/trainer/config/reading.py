"""Text -> tree.  PyYAML finds the structure and its places; what a plain word means is decided here, as YAML 1.2 does.

    1e-3  3.  .5                    numbers                      (YAML 1.1: 1e-3 is a text)
    true false                      the only bools               (YAML 1.1: yes, no, on, off and y too)
    null ~ and nothing              null
    2024-01-01  1:30  1_000         texts                        (YAML 1.1: a date, 90, 1000)
    010                             an error: 8 to some readers and 10 to others

Keys are texts and stand once in a map.  Tags, `<<` and several documents in a file are errors.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from jobflow.trainer.config.paths import below
from jobflow.trainer.config.problems import Origin, Problems
from jobflow.trainer.config.tree import Branch, Leaf, Listing, Tree, Value

_WORDS: dict[str, Value] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_WHOLE = re.compile(r"[-+]?\d{1,400}")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?")
_ENDLESS = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_NOT_A_NUMBER = re.compile(r"\.(nan|NaN|NAN)")
_TWO_MEANINGS = re.compile(r"[-+]?0\d+")
#: more than any configuration has: aliases that multiply are stopped here
MOST = 100_000
#: how deep maps and lists stand inside each other at most
DEPTH = 64


def value_of(word: str) -> Value:
    """What a plain word means."""
    if word in _WORDS:
        return _WORDS[word]
    if _WHOLE.fullmatch(word):
        return int(word)
    if _OTHER_BASE.fullmatch(word):
        return int(word, 0)
    if _NUMBER.fullmatch(word):
        return float(word)
    endless = _ENDLESS.fullmatch(word)
    if endless:
        return float(f"{endless[1]}inf")
    return float("nan") if _NOT_A_NUMBER.fullmatch(word) else word


class _Loader(yaml.SafeLoader):
    """Composes nodes; what is not tagged "" was given a tag in the file."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """RecursionError beyond DEPTH, whatever Python's own limit is."""
        self.depth += 1
        if self.depth > DEPTH:
            raise RecursionError
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        return ""


def read(text: str, file: str, problems: Problems, whole: Origin | None = None, key: str = "") -> Tree | None:
    """The tree of a text; None, and a problem, if it is not YAML at all.  `whole`: the one place of all of it, if it has no lines."""
    try:
        node = _Loader(text).get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        problems.add(*_complaint(error, text, file, whole, key))
        return None
    return _Reading(file, problems, whole).tree(node, key, None) if node is not None else Leaf(None, whole or Origin(file, 1, 1))


_EXPECTED = re.compile(r"expected ',' or '(.)'")
_TRANSLATED = {
    "but found another document": "a configuration is one document; leave out what is behind ---",
    "mapping values are not allowed here": 'a ":" is not expected here; check the indentation, and put texts that hold ": " in quotes',
    "could not find expected ':'": 'there is no ":" behind this key',
    "found unknown escape character": "a backslash in double quotes begins an escape, and this is none; use single quotes",
    "found unexpected end of stream": "this text has no closing quote",
    "expected <block end>, but found '<block": "this line is indented unlike those before it",
    "expected <block end>, but found": "nothing is expected here; check the brackets and quotes before it",
    "found undefined alias": "no value before this one is marked with that name, as &name",
    "found character": "a text cannot begin with this character; put it in quotes",
    "expected alphabetic or numeric character": "a * or & begins the name of a value; put the text in quotes",
    "found a tab": "a tab is not expected here; use spaces",
}


def _complaint(error: yaml.YAMLError | RecursionError, text: str, file: str, whole: Origin | None, key: str) -> tuple[Origin, str, str]:
    """Where and why a text is not YAML."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        at = Origin(file, before.count("\n") + 1, error.position - before.rfind("\n"))
        return whole or at, key, f"the character U+{ord(text[error.position]):04X} cannot stand in a configuration"
    if isinstance(error, RecursionError):
        return whole or Origin(file, 1, 1), key, f"lists and maps stand inside each other more than {DEPTH} deep"
    assert isinstance(error, yaml.MarkedYAMLError), "those that read the structure have marks"
    told = str(error.problem or error.context)
    message = next((ours for theirs, ours in _TRANSLATED.items() if told.startswith(theirs)), f"not valid YAML: {told}")
    mark = error.problem_mark or error.context_mark
    expected = _EXPECTED.match(told)
    if "end of stream" in told or (expected and error.problem_mark is None):
        mark = error.context_mark
    elif expected and error.context_mark is not None:
        message = f'a "," or "{expected[1]}" is missing before this, in what begins on line {error.context_mark.line + 1}'
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    tab = _tab(text.splitlines(), line)
    if tab is not None:
        line, column = tab
        message = "a tab indents this line; YAML is indented with spaces only"
    return whole or Origin(file, line + 1, column + 1), key, message


def _tab(lines: list[str], line: int) -> tuple[int, int] | None:
    """The tab that indents a line, or the one before it, if there is one."""
    for i in (line, line - 1):
        if 0 <= i < len(lines):
            indent = re.match(r"\s*", lines[i])
            if indent is not None and "\t" in indent[0]:
                return i, indent[0].index("\t")
    return None


class _Reading:
    def __init__(self, file: str, problems: Problems, whole: Origin | None) -> None:
        self.file = file
        self.problems = problems
        self.whole = whole
        self.open: list[yaml.Node] = []
        self.count = 0

    def origin(self, node: yaml.Node) -> Origin:
        return self.whole or Origin(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def tree(self, node: yaml.Node, path: str, name_at: Origin | None) -> Tree:
        at = self.origin(node)
        self.count += 1
        if node in self.open or self.count > MOST:
            self.problems.add(
                at, path, "an alias stands inside what it names" if node in self.open else "the aliases of this file multiply without end"
            )
            return Leaf(None, at, name_at)
        self.open.append(node)
        try:
            return self.inside(node, path, at, name_at)
        finally:
            self.open.pop()

    def inside(self, node: yaml.Node, path: str, at: Origin, name_at: Origin | None) -> Tree:
        if node.tag:
            self.problems.add(at, path, f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} means nothing here; leave it out")
        if isinstance(node, yaml.MappingNode):
            return Branch(self.entries(node, path), at, name_at)
        if isinstance(node, yaml.SequenceNode):
            return Listing(tuple(self.tree(entry, below(path, i), None) for i, entry in enumerate(node.value)), at, name_at)
        assert isinstance(node, yaml.ScalarNode), "there are three kinds of nodes"
        return Leaf(self.value(node, path, at), at, name_at)

    def value(self, node: yaml.ScalarNode, path: str, at: Origin) -> Value:
        text: str = node.value
        if node.style is not None:
            return text
        if _TWO_MEANINGS.fullmatch(text):
            octal = f", or 0o{text.lstrip('-+0')} for the octal number" if set(text) <= set("-+01234567") else ""
            self.problems.add(at, path, f"{text} means different numbers to different readers of YAML; write {int(text)}{octal}")
        return value_of(text)

    def entries(self, node: yaml.MappingNode, path: str) -> dict[str, Tree]:
        found: dict[str, Tree] = {}
        for key, entry in node.value:
            at = self.origin(key)
            if not isinstance(key, yaml.ScalarNode):
                self.problems.add(at, path, "a key is a word, not a list or a map; texts that begin with [ or { need quotes")
                continue
            name = key.value
            inside = below(path, name)
            if name == "<<" and key.style is None:
                self.problems.add(at, inside, '"<<" is not understood; use `extends:` for a file, or ${...} for a value')
            elif name in found:
                first = found[name].name_at
                self.problems.add(at, inside, f'key "{name}" stands twice{_in(path)}; the first is at {first}')
            else:
                found[name] = self.tree(entry, inside, at)
        return found


def _in(path: str) -> str:
    return f" in {path}" if path else ""
