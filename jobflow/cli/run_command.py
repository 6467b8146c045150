"""`jobflow run`: run an unchanged script on N devices of one process, or as N ranks.

The command replaces its process by the script or mpiexec, so signals, exit code and terminal are theirs.
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
Run a Python program on several devices without a change to it.

--devices N: in one process, whose N devices are threads; what the program says itself by flow.config.cpu_device_num or
gpu_device_num is overruled.  --ranks N: as N processes, by the mpiexec that belongs to this Python, else by `jobflow launch`,
under which every rank runs the program.  Neither: on as many devices as the program says.
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
    many.add_argument("--ranks", type=at_least_one, metavar="N", help="processes")
    launch.add_program(parser)


def run(options: argparse.Namespace) -> int:
    """Replace this process by the program or its launcher."""
    launch.check_script(options)
    if options.ranks is None:
        more = {} if options.devices is None else {DEVICES: str(options.devices)}
        _become(python(options), {**os.environ, **more})
    if (started := launched()) is not None:
        raise ConfigError(f"--ranks {options.ranks} but this is rank {started.rank} of {started.size} already, started by {started.launcher}")
    launcher = mpiexec.find()
    if launcher is not None:
        _become(mpiexec.ranks(launcher, options.ranks, python(options)), inherited(os.environ))
    say("there is no mpiexec, so the ranks are started without it and each of them runs the program")
    words = ["--nproc_per_node", str(options.ranks), *(["-m"] if options.module else []), options.script, *options.arguments]
    return launch.run(launch.fill(argparse.ArgumentParser()).parse_args(words))


def python(options: argparse.Namespace) -> list[str]:
    """Return the command that runs the program with this Python."""
    return [sys.executable, *(["-m"] if options.module else []), options.script, *options.arguments]


def _become(words: list[str], environment: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(words[0], words, environment)
