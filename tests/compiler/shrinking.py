"""Minimization of a failing program: remove statements, ends, layout hints, placements and mesh dimensions while it still fails."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from programs import Program

#: The kind of failure of a program; None if it does not fail or is invalid.
Fails = Callable[[Program], str | None]
#: meshes to try instead, the simplest first
SMALLER = ((2,), (3,), (2, 2), (4,))


def shrunk(program: Program, fails: Fails, seconds: float = 60.0) -> Program:
    """Return the smallest program that fails in the same way, within a time limit."""
    kind, deadline = fails(program), time.monotonic() + seconds
    if kind is None:
        return program
    progress = True
    while progress:
        progress = False
        for shorter in candidates(program):
            if time.monotonic() > deadline:
                return program
            if weight(shorter) < weight(program) and fails(shorter) == kind:
                program, progress = shorter, True
                break
    return program


def weight(program: Program) -> tuple[int, int, int, int]:
    """Return the sort key of a program's size: statements first, then ranks, then text."""
    return len(program.lines), len(program.ends), program.ranks + len(program.mesh), len(str(program))


def candidates(program: Program) -> Iterator[Program]:
    """Yield programs that are one step smaller, the largest steps first."""
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
    """Return the largest rank in the placements."""
    named = [re.match(r"with place\(([\d, ]+)", line) for line in program.lines]
    return max((int(rank) for ranks in named if ranks for rank in re.findall(r"\d+", ranks[1])), default=0)


def _without(program: Program, i: int) -> Iterator[Program]:
    """Remove statement i and replace its uses by one of its operands, or remove its readers from the ends."""
    name, operands = defined(program.lines[i]), names(program.lines[i])[1:]
    if name in program.ends and len(program.ends) > 1:
        yield without_unused(replace(program, ends=tuple(end for end in program.ends if end != name)))
    lines = program.lines[:i] + program.lines[i + 1 :]
    for other in dict.fromkeys(operands):
        renamed = tuple(re.sub(rf"\b{name}\b", other, line) for line in lines)
        ends = tuple(dict.fromkeys(other if end == name else end for end in program.ends))
        yield without_unused(replace(program, lines=renamed, ends=ends))


def simpler(line: str) -> Iterator[str]:
    """Return the statement without its placement, its storage or its layout hints."""
    if line.startswith("with "):
        yield line.partition("): ")[2]
    yield re.sub(r", sbp=\(.*\)\)$", ")", line)
    yield re.sub(r", grad=\(.*\)\)$", ")", line)
    yield re.sub(r"= tanh\((.*)\)$", r"= \1", line)


def names(line: str) -> list[str]:
    """Return the names in a statement, the defined one first."""
    bare = re.sub(r'"[^"]*"', "", line.partition("): ")[2] if line.startswith("with ") else line)
    return re.findall(r"\b[a-z]\d+\b", bare)


def defined(line: str) -> str:
    return names(line)[0]


def without_unused(program: Program) -> Program:
    """Return only the statements on which the ends depend."""
    needed, lines = set(program.ends), []
    for line in reversed(program.lines):
        name, *operands = names(line)
        if name in needed:
            lines.append(line)
            needed.update(operands)
    return replace(program, lines=tuple(reversed(lines)))
