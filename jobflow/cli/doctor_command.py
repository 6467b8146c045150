"""`jobflow doctor`: check the machine and the installation, and suggest repairs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

from jobflow.cli.health.finding import NOTE, PROBLEM, Finding
from jobflow.core.errors import ConfigError
from jobflow.kernels.object_cache import ObjectCache
from jobflow.runtime.world.environment import Launch, launched

DESCRIPTION = """\
Check Python, NumPy and its BLAS library, cores, memory, MPI, GPUs, shared memory, disk and optional packages.

As several ranks, check the network instead: the nodes, shared memory within them, messages between them, and the working directory.

Each line is OK, a note (usable, but not optimal) or a problem (unusable), with a suggested repair.
Checks that may hang or crash run in child processes with a time limit.  The exit code is 1 if there is a problem."""

EXAMPLES = """\
examples:
  jobflow doctor
  jobflow doctor --json
  jobflow doctor --clear-cache
  mpiexec -hosts node0,node1 -n 4 jobflow doctor      # the network between two nodes"""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument("--clear-cache", action="store_true", help="remove the cached compiled loops, and check nothing")
    parser.add_argument("--json", action="store_true", help='print {"healthy", "findings": [{"name", "status", "text", "fix", "command"}]}')


def run(options: argparse.Namespace) -> int:
    """Print each finding when its check ends; return 1 if there is a problem."""
    started = launched()
    if started is not None and options.clear_cache:
        raise ConfigError(f"jobflow doctor --clear-cache: {started.launcher} runs this command as several ranks; run it without {started.launcher}")
    if options.clear_cache:
        cache = ObjectCache()
        print(f"{_count(cache.clear(), 'file')} removed from {cache.folder}")
        return 0
    findings: list[Finding] = []
    for check in checks(started):
        for finding in check():
            findings.append(finding)
            if not options.json and (started is None or started.rank == 0):
                print(finding, flush=True)
    if started is not None and started.rank > 0:
        return 0
    problems, notes = (sum(finding.status == status for finding in findings) for status in (PROBLEM, NOTE))
    if options.json:
        print(json.dumps({"healthy": not problems, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        print(f"\n{_count(problems, 'problem')}, {_count(notes, 'note')}")
    return 1 if problems else 0


def checks(started: Launch | None = None) -> tuple[Callable[[], Iterator[Finding]], ...]:
    """Return all checks in the order of the report: of this machine, or of the network if this process is one of several ranks."""
    if started is not None:
        from jobflow.cli.health.cluster import cluster

        return (partial(cluster, started),)
    from jobflow.cli.health import gpu, libraries, machine, ranks

    first = (machine.python, libraries.numpy, machine.job, machine.cores, machine.memory, ranks.mpi, machine.shared_memory)
    return (*first, gpu.gpu, machine.disk, libraries.kernels, libraries.packages)


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
