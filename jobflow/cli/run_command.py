"""`jobflow run`: run an unchanged script on N devices of one process, or as N ranks.

The command replaces its process by the script or by mpiexec. So signals, the exit code and the terminal belong to that program.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from jobflow.cli.shared_options import at_least_one
from jobflow.core.errors import ConfigError
from jobflow.distributed import launch, mpiexec
from jobflow.distributed.processes import say
from jobflow.runtime.world.environment import DEVICES, inherited, launched

DESCRIPTION = """\
Run an unchanged Python program on several devices.

--devices N runs one process whose N devices are threads, and overrides the program's flow.config.cpu_device_num and
gpu_device_num.  --ranks N starts N processes by the mpiexec that belongs to this Python, else by `jobflow launch`, under which
every rank runs the program.  Without either option, the program selects its devices.
Programs over global tensors, and those that call flow.env.client("multi"), need --ranks."""

EXAMPLES = """\
examples:
  jobflow run --devices 2 examples/lenet_digits.py
  jobflow run --ranks 2 examples/lenet_digits.py --steps 20
  jobflow run --ranks 2 -m package.train --epochs 3"""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--devices", type=at_least_one, metavar="N", help="devices of one process")
    parser.set_defaults(foreign=dict.fromkeys(("-n", "-np", "--np", "--nproc", "--nproc_per_node", "--nproc-per-node"), "--ranks"))
    many.add_argument("--ranks", type=at_least_one, metavar="N", help="processes")
    launch.add_program(parser)


def run(options: argparse.Namespace) -> int:
    """Replace this process by the program, or by mpiexec or `jobflow launch` for several ranks."""
    launch.check_script(options)
    if options.ranks is None:
        more = {} if options.devices is None else {DEVICES: str(options.devices)}
        _become(python(options), {**os.environ, **more})
    if (started := launched()) is not None:
        raise ConfigError(
            f"--ranks {options.ranks}: {started.launcher} has already started {started.size} ranks; omit --ranks, or run without {started.launcher}"
        )
    launcher = mpiexec.find()
    if launcher is not None:
        _become(mpiexec.ranks(launcher, options.ranks, python(options)), inherited(os.environ))
    say("mpiexec is missing, so `jobflow launch` starts the ranks, and each rank runs the program")
    words = ["--nproc_per_node", str(options.ranks), *(["-m"] if options.module else []), options.script, *options.arguments]
    return launch.run(launch.fill(argparse.ArgumentParser()).parse_args(words))


def python(options: argparse.Namespace) -> list[str]:
    """Return the command that runs the program with this Python."""
    return [sys.executable, *(["-m"] if options.module else []), options.script, *options.arguments]


def _become(words: list[str], environment: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(words[0], words, environment)
