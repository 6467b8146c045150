"""Child processes with a time limit for the checks of `jobflow doctor`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.distributed.processes import ending, finished
from jobflow.runtime.world.environment import inherited

#: seconds for a probe
LIMIT = 60.0
PROBES = Path(__file__).parent / "probes"
#: the folder that contains jobflow, for its import in the child
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Answer:
    """The JSON output of a probe, or the reason of its failure."""

    data: dict[str, Any]
    failure: str = ""
    #: the whole output after a failure
    output: str = ""


def probe(name: str, *words: str) -> list[str]:
    """Return the command that runs a probe, isolated from the modules of the working directory."""
    return [sys.executable, "-P", str(PROBES / f"{name}_probe.py"), *words]


def ask(command: Sequence[str], *, limit: float = LIMIT, more: Mapping[str, str] | None = None) -> Answer:
    """Run a command for at most `limit` seconds, and parse the last JSON line of its output; `more` adds environment variables."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    environment = {**inherited(os.environ), "PYTHONPATH": path, **(more or {})}
    try:
        done = finished(command, limit, stderr=subprocess.PIPE, env=environment)
    except OSError as error:
        return Answer({}, f"{command[0]} cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Answer({}, f"it did not finish within {limit:g} s")
    return _read(done.stdout, done.stderr, done.returncode)


def _read(out: str, err: str, code: int) -> Answer:
    answers = [line for line in re.sub(r"(?m)^\[rank \d+\] ", "", out).splitlines() if line.startswith("{")]
    if code == 0 and answers:
        return Answer(json.loads(answers[-1]))
    lines = [line.strip() for line in (err or out).splitlines() if line.strip()]
    # the most informative line: the last one with the word error, else the last one
    telling = ([line for line in lines if "error" in line.lower()] or lines)[-1:]
    return Answer({}, ": ".join([f"it {ending(code)}", *(line[:300] for line in telling)]), f"{err}\n{out}")
