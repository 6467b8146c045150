"""Counts of names and docstrings against the writing rules, and the record of the counts that older files may still have.

Names may not contain the words of `vocabulary`. A docstring starts with a verb or a noun, and its sentences have at most 25 words. The record
holds an upper bound per file and rule, so writing better needs no change of the record. A new file has no
budget of its own. It may use the budget of files that are gone, so renaming a file needs no change of the record.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vocabulary import FIRST_WORDS, LONGEST_SENTENCE, PARTS, WHOLE

ROOT = Path(__file__).parents[2]
RECORDS = Path(__file__).with_name("records")
FOLDERS = ("jobflow", "tests", "scripts", "benchmarks", "examples")
#: written by users or for them, as they were
EXCLUDED = ("tests/seeds/programs", "tests/compat/programs", "tests/configs")
FIRST, LONG = "docstring-start", "docstring-length"

#: file -> rule -> how often the file breaks it
Counts = dict[str, Counter[str]]


@dataclass(frozen=True)
class Breach:
    """One place that breaks a rule; `rule` is the word for names."""

    line: int
    rule: str
    text: str

    @property
    def advice(self) -> str:
        if self.rule == FIRST:
            return f"the docstring starts with {self.text!r}; start with a verb (Return, Split) or a noun"
        if self.rule == LONG:
            return f"a sentence of {self.text} words in a docstring; write at most {LONGEST_SENTENCE}"
        return f"{self.text!r} contains {self.rule!r}; write {PARTS.get(self.rule) or WHOLE[self.rule]}"


def words(name: str) -> list[str]:
    """Split a snake_case or CamelCase name into words in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]


@cache
def rules_broken_by_name(name: str) -> list[str]:
    joined = f"_{'_'.join(words(name))}_"
    bare = name.strip("_")
    return [part for part in PARTS if f"_{part}_" in joined] + ([bare] if bare in WHOLE else [])


def defined_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, name) of each definition: modules by `as`, functions, classes, parameters, variables, attributes."""
    for node in nodes:
        if isinstance(node, ast.Name):  # every third node
            if isinstance(node.ctx, ast.Store):
                yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Store):
                yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, alias.asname) for alias in node.names if alias.asname and alias.asname != alias.name)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, cleaned text) of each docstring."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def sentences(text: str) -> Iterator[list[str]]:
    """Words of each sentence of prose; indented lines are code or tables, and an item of a list or table is a sentence."""
    prose = "\n".join("" if line.startswith((" ", ">>>", "|", "```")) else line for line in text.splitlines())
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*] |\S+ {2,}\S)", prose):
        for sentence in re.split(r"(?<=[.?!])[)\"'`]*\s+", paragraph):
            yield [word for word in sentence.split() if re.search(r"[^\W\d_]", word)]


def breaches(path: Path) -> Iterator[Breach]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if not isinstance(node, ast.Constant | ast.expr_context)]
    for line, name in [(1, path.stem), *defined_names(nodes)]:
        yield from (Breach(line, rule, name) for rule in rules_broken_by_name(name))
    for line, text in docstrings(nodes):
        first = re.match(r"[\W_]*(\w+)", text)
        if first and first[1].lower() in FIRST_WORDS:
            yield Breach(line, FIRST, first[1])
        yield from (Breach(line, LONG, str(len(long))) for long in sentences(text) if len(long) > LONGEST_SENTENCE)


def python_files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            script = folder == "scripts" and path.is_file() and not path.suffix and path.read_bytes().startswith(b"#!/usr/bin/env python")
            if (path.suffix == ".py" or script) and not str(path.relative_to(ROOT)).startswith(EXCLUDED):
                yield path


def all_breaches() -> dict[str, list[Breach]]:
    return {str(path.relative_to(ROOT)): list(breaches(path)) for path in python_files()}


def counted(by_file: Mapping[str, Iterable[Breach]]) -> Counts:
    return {file: Counter(breach.rule for breach in listed) for file, listed in by_file.items()}


def excess(counts: Counts, bounds: Counts) -> dict[tuple[str, str], int]:
    """(file, rule) -> number of breaches above the bound, after new files have used the budget of files that are gone."""
    budget: Counter[str] = Counter()
    for file in bounds.keys() - counts.keys():
        budget.update(bounds[file])
    result = {}
    for file in sorted(counts):
        for rule, count in counts[file].items():
            above = count - bounds.get(file, Counter())[rule]
            if file not in bounds:
                moved = min(above, budget[rule])
                budget[rule] -= moved
                above -= moved
            if above > 0:
                result[file, rule] = above
    return result


def totals(counts: Counts) -> Counter[str]:
    return sum(counts.values(), Counter())


# -------------------------------------------------------------------- the record


def record_of(file: str) -> Path:
    """One record per folder of the package and of the tests, so that work in different folders changes different records."""
    parts = Path(file).parts
    return RECORDS / f"{'.'.join(parts[: min(2, len(parts) - 1)])}.txt"


def read_bounds() -> Counts:
    bounds: Counts = {}
    for record in sorted(RECORDS.glob("*.txt")):
        for line in record.read_text(encoding="utf-8").splitlines():
            file, *entries = line.split()
            bounds[file] = Counter({rule: int(count) for rule, count in (entry.split("=") for entry in entries)})
    return bounds


def write_bounds(counts: Counts) -> None:
    """Write a line for each file; a file without a breach needs none, as its bounds are zero."""
    lines: dict[Path, list[str]] = defaultdict(list)
    for file, rules in sorted(counts.items()):
        if +rules:
            lines[record_of(file)].append(" ".join([file, *(f"{rule}={count}" for rule, count in sorted((+rules).items()))]))
    for record in RECORDS.glob("*.txt"):
        if record not in lines:
            record.unlink()
    for record, entries in lines.items():
        record.write_text("\n".join(entries) + "\n", encoding="utf-8")
