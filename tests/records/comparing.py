"""Records as files, and the differences between two of them.

Everything but values is compared exactly. Values are compared bit for bit if both machines are of one class: the same
NumPy, BLAS kernels and instructions. Otherwise the tolerance grows with the steps: see
docs/internals/decisions/0008-what-float32-curves-can-promise.md.
"""

from __future__ import annotations

import difflib
import json
import math
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from cases import STEPS, Way
from recorded_programs import PLANNED, Program
from recording import Record, short_hash

DATA = Path(__file__).parent / "data"
#: characters of a line of JSON
WIDTH = 150
#: lines that are shown of a difference
SHOWN = 12
#: of numbers whose relative difference says nothing: see the decision
SMALL = 1e-7


def machine() -> dict[str, str]:
    """Return the properties of the machine that affect the last bits of a value."""
    config: Any = np.show_config(mode="dicts")
    versions = {name: metadata.version(name) for name in ("ml_dtypes", "pillow", "scikit-learn")}
    extensions = sorted(config.get("SIMD Extensions", {}).get("found", ()))
    return {
        "numpy": np.__version__,
        "blas": _blas(),
        "instructions": " ".join(extensions),
        "libc": " ".join(platform.libc_ver()),
    } | versions


def _blas() -> str:
    """The library, and for which processors its kernels were written."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return "not known without threadpoolctl"
    np.dot(np.ones((2, 2)), np.ones((2, 2)))
    known = [x for x in threadpool_info() if x.get("user_api") == "blas" and "numpy" in x.get("filepath", "")]
    return ", ".join(sorted(f"{x['internal_api']} {x['version']} {x.get('architecture', '')}" for x in known))


# -------------------------------------------------------------------- files


def path_of(name: str) -> Path:
    return DATA / f"{name}.json"


def write(name: str, runs: dict[str, Record]) -> None:
    """The file of a program."""
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumped({"machine": machine(), "ways": _without_repeats(runs)}) + "\n", encoding="utf-8")


def read(name: str) -> tuple[dict[str, str], dict[str, Record]]:
    """On which machine it was recorded, and what, by way."""
    data = json.loads(path_of(name).read_text(encoding="utf-8"))
    return data["machine"], _with_repeats(data["ways"])


#: parts of a compiled program that files hold for every program: its name and its variables
ALWAYS = ("job", "placement", "variables")


def shortened(name: str, record: Record, way: Way) -> Record:
    """Return the part of a record that files hold: plans of the programs in `PLANNED` only, with a hash of the program text."""
    programs = []
    for program in record["programs"]:
        if name not in PLANNED:
            programs.append({key: program[key] for key in ALWAYS})
            continue
        program = {**program, "program": _hashed(program["program"])}
        program["ranks"] = {rank: {**own, "program": _hashed(own["program"])} if "program" in own else own for rank, own in program["ranks"].items()}
        if way.brief:
            program |= {key: _hashed(program[key]) for key in ("layouts", "boxing")}
        programs.append(program)
    return {**record, "programs": programs}


def _hashed(lines: list[str]) -> str:
    text = "\n".join(lines)
    return f"{len(lines)} lines {short_hash(text)}"


#: what is not written twice into a file
LONG = {"variables", "layouts", "boxing"}


def _without_repeats(runs: dict[str, Record]) -> dict[str, Record]:
    """Long parts that an earlier program of the file has too are named by where that is."""
    first_uses: dict[str, str] = {}
    return {
        way: {**record, "programs": [_short(p, f"{way} {i}", first_uses) for i, p in enumerate(record["programs"])]} for way, record in runs.items()
    }


def _short(program: Record, where: str, first_uses: dict[str, str]) -> Record:
    short = dict(program)
    for key in sorted(LONG & program.keys()):
        text = json.dumps(program[key])
        if len(text) > WIDTH:
            first = first_uses.setdefault(key + text, where)
            short[key] = short[key] if first == where else f"as in {first}"
    return short


def _with_repeats(runs: dict[str, Record]) -> dict[str, Record]:
    at = {f"{way} {i}": program for way, record in runs.items() for i, program in enumerate(record["programs"])}
    for program in at.values():
        for key in sorted(LONG & program.keys()):
            if isinstance(program[key], str) and program[key].startswith("as in "):
                program[key] = at[program[key].removeprefix("as in ")][key]
    return runs


def dumped(data: Any, indent: int = 0) -> str:
    """JSON in which what fits stands on one line."""
    line = json.dumps(data, ensure_ascii=False)
    if not isinstance(data, dict | list) or (len(line) + indent <= WIDTH and not _nested(data)):
        return line
    pad = " " * (indent + 1)
    if isinstance(data, dict):
        rows = [f"{json.dumps(key, ensure_ascii=False)}: {dumped(value, indent + 1)}" for key, value in data.items()]
    else:
        rows = [dumped(value, indent + 1) for value in data]
    opening, closing = "{}" if isinstance(data, dict) else "[]"
    return f"{opening}\n{pad}" + f",\n{pad}".join(rows) + f"\n{' ' * indent}{closing}"


def _nested(data: Any) -> bool:
    values = data.values() if isinstance(data, dict) else data
    return any(isinstance(value, dict | list) and value for value in values)


# -------------------------------------------------------------------- differences


@dataclass(frozen=True)
class Difference:
    """Something that was otherwise: of which program, run how, which part of its record."""

    program: str
    way: str
    field: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.program}, {self.way}: {self.field}\n" + "\n".join(f"    {line}" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        was, now = (_lines_of(x) for x in (self.was, self.now))
        changed = list(difflib.unified_diff(was, now, n=0, lineterm=""))[2:]
        lines = [line for line in changed if not line.startswith("@@")]
        yield from (line if len(line) <= WIDTH else f"{line[:WIDTH]} ..." for line in lines[:SHOWN])
        if len(lines) > SHOWN:
            yield f"... {len(lines) - SHOWN} more lines"


def _lines_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{key}: {json.dumps(one, ensure_ascii=False)}" for key, one in value.items()]
    if isinstance(value, list):
        return [x if isinstance(x, str) else json.dumps(x, ensure_ascii=False) for x in value]
    return [] if value is None else [str(value)]


def differences(program: Program, was: dict[str, Record], now: dict[str, Record], exact: bool) -> list[Difference]:
    """Return the differences between two records of a program for the runs in `now`; values bit for bit if `exact`."""
    runs = {way.name: way for way in program.ways}
    listed = []
    for name, record in now.items():
        if name not in was:
            listed.append(Difference(program.name, name, "this way to run it", None, "is not recorded"))
            continue
        for field, old, new in _unlike("", was[name], record):
            kind = field.split(".")[0]
            if kind == "final" and not exact:
                continue
            if kind.startswith("numbers") and not exact and alike(old, new, runs[name].tolerance):
                continue
            listed.append(Difference(program.name, name, field, old, new))
    return listed


def against_file(program: Program, now: dict[str, Record]) -> tuple[list[Difference], bool]:
    """Return the differences from the program's file, and whether values were compared bit for bit."""
    if not path_of(program.name).exists():
        return [Difference(program.name, "", "the program", None, "is not recorded")], True
    recorded_on, was = read(program.name)
    exact = recorded_on == machine()
    return [*differences(program, was, now, exact), *gone(program, was)], exact


def gone(program: Program, was: dict[str, Record]) -> list[Difference]:
    """Ways that were recorded and are not there any more."""
    there = {way.name for way in program.ways}
    return [Difference(program.name, name, "this way to run it", "recorded", "is not there any more") for name in was if name not in there]


def forgotten(every: dict[str, Program], remove: bool) -> list[Difference]:
    """Files of programs that are not there any more, which `remove` removes."""
    paths = {path.relative_to(DATA).with_suffix("").as_posix(): path for path in sorted(DATA.rglob("*.json"))}
    beyond = [name for name in paths if name not in every]
    for name in beyond if remove else ():
        paths[name].unlink()
    return [Difference(name, "", "the program", "recorded", "is not there any more") for name in beyond]


def _unlike(field: str, was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """The smallest parts that differ; lists of lines are such parts."""
    if was == now:
        return
    if isinstance(was, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*was, *now]):
            yield from _unlike(f"{field}.{key}" if field else key, was.get(key), now.get(key))
    elif _parts(was) and _parts(now) and len(was) == len(now):
        for i, (a, b) in enumerate(zip(was, now, strict=True)):
            yield from _unlike(f"{field}[{i}]", a, b)
    else:
        yield field, was, now


def _parts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(x, dict) for x in value)


def alike(was: Any, now: Any, tolerance: tuple[float, float]) -> bool:
    """True if results may be equal values, computed on another class of machine."""
    if not isinstance(was, list) or not isinstance(now, list) or len(was) != len(now):
        return False
    first, last = tolerance
    for step, (old, new) in enumerate(zip(was, now, strict=True)):
        (what, a), (what_now, b) = _number(old), _number(new)
        far = first + (last - first) * min(step / (STEPS - 1), 1.0)
        if what != what_now or not (math.isclose(a, b, rel_tol=far, abs_tol=SMALL) or a == b or (math.isnan(a) and math.isnan(b))):
            return False
    return True


def _number(text: str) -> tuple[str, float]:
    what, value = text.split()[:2]
    return what, float.fromhex(value)
