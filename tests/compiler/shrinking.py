"""A failing program made small: statements, ends, wishes, placements and mesh dimensions are taken away as long as it still fails."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from programs import Program

#: The kind of failure of a program; None if it does not fail, or is no program.
Fails = Callable[[Program], str | None]
#: meshes to try instead, the simplest first
SMALLER = ((2,), (3,), (2, 2), (4,))


def shrunk(program: Program, fails: Fails, seconds: float = 60.0) -> Program:
    """The smallest program found within the time that fails in the same way."""
    kind, deadline = fails(program), time.monotonic() + seconds
    if kind is None:
        return program
    found = True
    while found:
        found = False
        for smaller in candidates(program):
            if time.monotonic() > deadline:
                return program
            if weight(smaller) < weight(program) and fails(smaller) == kind:
                program, found = smaller, True
                break
    return program


def weight(program: Program) -> tuple[int, int, int, int]:
    """What makes a program large: statements first, then ranks, then text."""
    return len(program.lines), len(program.ends), program.ranks + len(program.mesh), len(str(program))


def candidates(program: Program) -> Iterator[Program]:
    """Programs that are a step smaller, the boldest first."""
    for end in program.ends if len(program.ends) > 1 else ():
        yield without_unused(replace(program, ends=(end,)))
    for mesh in SMALLER:
        if math.prod(mesh) > largest_rank(program):
            yield replace(program, mesh=mesh)
    yield replace(program, optimizer="sgd")
    for i in reversed(range(len(program.lines))):
        yield from _without(program, i)
    for i, line in enumerate(program.lines):
        for other in simpler(line):
            yield without_unused(replace(program, lines=(*program.lines[:i], other, *program.lines[i + 1 :])))


def largest_rank(program: Program) -> int:
    """Of the ranks that placements name."""
    named = [re.match(r"with place\(([\d, ]+)", line) for line in program.lines]
    return max((int(rank) for found in named if found for rank in re.findall(r"\d+", found[1])), default=0)


def _without(program: Program, i: int) -> Iterator[Program]:
    """Statement i left out: what it defines is, where it is read, one of its operands; or its readers are not ends any more."""
    name, operands = defined(program.lines[i]), names(program.lines[i])[1:]
    if name in program.ends and len(program.ends) > 1:
        yield without_unused(replace(program, ends=tuple(end for end in program.ends if end != name)))
    lines = program.lines[:i] + program.lines[i + 1 :]
    for other in dict.fromkeys(operands):
        renamed = tuple(re.sub(rf"\b{name}\b", other, line) for line in lines)
        ends = tuple(dict.fromkeys(other if end == name else end for end in program.ends))
        yield without_unused(replace(program, lines=renamed, ends=ends))


def simpler(line: str) -> Iterator[str]:
    """The statement without its placement, its storage, its wishes."""
    if line.startswith("with "):
        yield line.partition("): ")[2]
    yield re.sub(r", sbp=\(.*\)\)$", ")", line)
    yield re.sub(r", grad=\(.*\)\)$", ")", line)
    yield re.sub(r"= tanh\((.*)\)$", r"= \1", line)


def names(line: str) -> list[str]:
    """The values a statement mentions; the one it defines first."""
    bare = re.sub(r'"[^"]*"', "", line.partition("): ")[2] if line.startswith("with ") else line)
    return re.findall(r"\b[a-z]\d+\b", bare)


def defined(line: str) -> str:
    return names(line)[0]


def without_unused(program: Program) -> Program:
    """Only the statements that the ends depend on."""
    needed, kept = set(program.ends), []
    for line in reversed(program.lines):
        name, *operands = names(line)
        if name in needed:
            kept.append(line)
            needed.update(operands)
    return replace(program, lines=tuple(reversed(kept)))
