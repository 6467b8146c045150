"""The command line: `jobflow explain file.py:job`, `jobflow verify file.py:job --devices N`, `jobflow launch script.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jobflow.distributed import launch
from jobflow.errors import JobflowError
from jobflow.explain import STAGES, explain, explain_page, load_job
from jobflow.verify import command
from jobflow.version import __version__


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="jobflow", description="Distributed deep learning that one person can read.")
    top.add_argument("--version", action="version", version=f"jobflow {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    show = commands.add_parser(
        "explain", help="print graph, layouts, boxing and plan of a job", description="Print every stage of a job; nothing runs."
    )
    show.add_argument("job", help="path/to/file.py:job or module:job")
    show.add_argument("--devices", type=_positive, default=1, metavar="N", help="lay the job out over N devices (default 1)")
    show.add_argument("--strategy", metavar="S", help="dp, tp, pp, zero1, zero2, zero3, 2x2, data=2,tensor=2 ... (default: the job's own)")
    show.add_argument("--rank", type=int, default=0, metavar="R", help="whose plan to print (default 0)")
    show.add_argument("--stage", action="append", choices=STAGES, help="print only this stage; may be given several times (default: all)")
    show.add_argument("--html", metavar="FILE", help="write a page with a picture of the graph and the tables instead; it opens offline")
    show.set_defaults(run=_explain)
    check = commands.add_parser(
        "verify",
        help="compare every tensor of a job on N devices with one device",
        description="Run a job on one device and on N, compare every tensor, and name the first op that differs; exit code 1 if one does.",
    )
    check.add_argument("job", help='path/to/file.py:job or module:job; in place of the job a call that makes one: "gpt.py:make_train_job(Size())"')
    check.add_argument("--devices", type=_positive, default=2, metavar="N", help="how many devices (default 2)")
    check.add_argument("--strategy", metavar="S", help="dp, tp, pp, zero1, zero2, zero3, 2x2, data=2,tensor=2 ... (default: the job's own)")
    check.add_argument("--steps", type=_positive, default=2, metavar="K", help="how many steps (default 2)")
    check.add_argument("--seed", type=int, default=0, help="of the random arguments (default 0)")
    check.add_argument("--inputs", metavar="FILE", help="an .npz with the arguments by name instead, for one step or stacked for several")
    check.add_argument("--ranks", choices=("threads", "mpi"), default="threads", help="the N devices are threads, or processes that mpiexec starts")
    check.set_defaults(run=_verify)
    launch.fill(commands.add_parser("launch", help="start a program as several ranks, on one node or several"))
    return top


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _explain(given: argparse.Namespace) -> int:
    if given.rank not in range(given.devices):
        parser().error(f"--rank {given.rank} is not one of the ranks 0 to {given.devices - 1}")
    job = load_job(given.job)
    if given.html is None:
        print(explain(job, devices=given.devices, rank=given.rank, stages=given.stage or STAGES, strategy=given.strategy))
        return 0
    Path(given.html).write_text(explain_page(job, devices=given.devices, rank=given.rank, strategy=given.strategy), encoding="utf-8")
    print(f"wrote {given.html}")
    return 0


def _verify(given: argparse.Namespace) -> int:
    return command(given.job, given.devices, given.strategy, given.steps, given.seed, given.ranks, given.inputs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code: 0, or 1 after an error that is printed."""
    given = parser().parse_args(arguments)
    try:
        return int(given.run(given))
    except JobflowError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
