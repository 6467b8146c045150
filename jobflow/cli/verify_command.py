"""`jobflow verify`: compare a job on N devices with the same job on one."""

from __future__ import annotations

import argparse

from jobflow.cli.shared_options import add_job, at_least_one

DESCRIPTION = "Run a job on one device and on N, compare every tensor, and name the first op that differs; exit code 1 if one does."

EXAMPLES = """\
examples:
  jobflow verify examples/hybrid_mlp.py:train_job --devices 2
  jobflow verify "examples/gpt.py:make_train_job(Size(blocks=2))" --devices 4 --strategy 2x2
  jobflow verify model.py:train_job --devices 2 --ranks mpi --inputs batch.npz"""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    add_job(parser, 2, "how many devices")
    parser.add_argument("--steps", type=at_least_one, default=2, metavar="K", help="how many steps (default 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the random arguments (default 0)")
    parser.add_argument("--inputs", metavar="FILE", help="an .npz with the arguments by name instead, for one step or stacked for several")
    parser.add_argument("--ranks", choices=("threads", "mpi"), default="threads", help="the N devices are threads, or processes that mpiexec starts")


def run(given: argparse.Namespace) -> int:
    """Compare, and print the report."""
    from jobflow.tools.verify import command

    return command(given.job, given.devices, given.strategy, given.steps, given.seed, given.ranks, given.inputs)
