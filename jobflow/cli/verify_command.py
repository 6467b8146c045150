"""`jobflow verify`: compare a job on N devices with the same job on one device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from jobflow.cli.shared_options import add_job, add_settings, at_least_one

if TYPE_CHECKING:
    from jobflow.trainer.config import Loaded

DESCRIPTION = "Run a job on one device and on N devices, compare every tensor, and print the first op that differs; exit code 1 if one does."

EXAMPLES = """\
examples:
  jobflow verify examples/hybrid_mlp.py:train_job --devices 2
  jobflow verify "examples/gpt.py:make_train_job(Size(blocks=2))" --devices 4 --strategy 2x2
  jobflow verify model.py:train_job --devices 2 --ranks mpi --inputs batch.npz
  jobflow verify configs/lenet_digits.yaml --devices 2          # the train job of a configuration, on its first batch"""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    add_job(parser, None, "number of devices (default 2, or that of the configuration if it is larger)", configurations=True)
    add_settings(parser)
    parser.add_argument("--steps", type=at_least_one, default=2, metavar="K", help="number of steps (default 2)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random arguments (default 0)")
    parser.add_argument("--inputs", metavar="FILE", help="an .npz file with the arguments by name, for one step or stacked for several steps")
    parser.add_argument("--ranks", choices=("threads", "mpi"), default="threads", help="the N devices are threads, or processes that mpiexec starts")


def run(options: argparse.Namespace) -> int:
    """Compare the job on one device with the job on N devices, and print the report."""
    import numpy as np

    from jobflow.runtime.world.launched import launched
    from jobflow.tools.verify import by_mpiexec, command, named_job

    of_configuration = Path(options.job).suffix in (".yaml", ".yml")
    if of_configuration:
        _refuse(options.inputs is not None, "--inputs", "a configuration always uses the first batch of data.train")
    else:
        _refuse(bool(options.settings), "--set", "only configurations have settings")
    loaded = _loaded(options) if of_configuration else None
    devices = options.devices or (2 if loaded is None else max(2, _devices_of(loaded)))
    if options.ranks == "mpi" and launched() is None:
        return by_mpiexec(devices)
    run_options = devices, options.strategy, options.steps, options.seed
    if loaded is None:
        return command(named_job(options.job), *run_options, None if options.inputs is None else dict(np.load(options.inputs)))
    from jobflow.trainer.training_batches import first_batch

    with first_batch(loaded) as (job, batch):
        return command(job, *run_options, batch)


def _refuse(condition: bool, option: str, why: str) -> None:
    from jobflow.core.errors import ConfigError

    if condition:
        raise ConfigError(f"jobflow verify {option}: {why}; omit {option}")


def _loaded(options: argparse.Namespace) -> Loaded:
    from jobflow.trainer.config import load

    return load(options.job, options.settings)


def _devices_of(loaded: Loaded) -> int:
    from jobflow.trainer.jobs import devices_of

    return devices_of(loaded.config)
