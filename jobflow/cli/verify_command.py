"""`jobflow verify`: does a job give on N devices what it gives on one?"""

from __future__ import annotations

import argparse

from jobflow.cli.words import at_least_one

DESCRIPTION = "Run a job on one device and on N, compare every tensor, and name the first op that differs; exit code 1 if one does."

EXAMPLES = """\
examples:
  jobflow verify examples/hybrid_mlp.py:train_job --devices 2
  jobflow verify "examples/gpt.py:make_train_job(Size(blocks=2))" --devices 4 --strategy 2x2
  jobflow verify model.py:train_job --devices 2 --ranks mpi --inputs batch.npz"""


def fill(parser: argparse.ArgumentParser) -> None:
    """Give the parser the command's options."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument("job", help='path/to/file.py:job or module:job; in place of the job a call that makes one: "gpt.py:make_train_job(Size())"')
    parser.add_argument("--devices", type=at_least_one, default=2, metavar="N", help="how many devices (default 2)")
    parser.add_argument("--strategy", metavar="S", help="dp, tp, pp, zero1, zero2, zero3, 2x2, data=2,tensor=2 ... (default: the job's own)")
    parser.add_argument("--steps", type=at_least_one, default=2, metavar="K", help="how many steps (default 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the random arguments (default 0)")
    parser.add_argument("--inputs", metavar="FILE", help="an .npz with the arguments by name instead, for one step or stacked for several")
    parser.add_argument("--ranks", choices=("threads", "mpi"), default="threads", help="the N devices are threads, or processes that mpiexec starts")


def run(given: argparse.Namespace) -> int:
    """Compare, and print the report."""
    from jobflow.tools.verify import command

    return command(given.job, given.devices, given.strategy, given.steps, given.seed, given.ranks, given.inputs)
