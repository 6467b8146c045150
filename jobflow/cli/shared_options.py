"""Options shared by several commands."""

from __future__ import annotations

import argparse

from jobflow.core.command_line import whole

at_least_one = whole(1)


def add_job(parser: argparse.ArgumentParser, devices: int | None, for_what: str, *, configurations: bool = False) -> None:
    """Add the arguments for a job, its devices and its strategy; with `configurations`, the job may be a configuration file.

    `for_what` is the help text of --devices, and `devices` is its default.
    """
    job = 'path/to/file.py:job or module:job; in place of the name a call that returns a job: "gpt.py:make_train_job(Size())"'
    parser.add_argument("job", help=f"{job}{'; or the YAML file of a configuration' if configurations else ''}")
    default = "" if devices is None else f" (default {devices})"
    parser.add_argument("--devices", type=at_least_one, default=devices, metavar="N", help=f"{for_what}{default}")
    parser.add_argument("--strategy", metavar="S", help="dp, tp, pp, zero1, zero2, zero3, 2x2, data=2,tensor=2 ... (default: the job's own)")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the option `--set KEY=VALUE`, which overrides configuration values."""
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="set a value, such as optimizer.lr=0.1; VALUE is YAML"
    )


def add_configuration(parser: argparse.ArgumentParser, *, trained: bool = False) -> None:
    """Add the arguments for a configuration file and, with `trained`, for a checkpoint."""
    parser.add_argument("config", metavar="FILE", help="the YAML file")
    add_settings(parser)
    parser.add_argument("--devices", type=at_least_one, metavar="N", help="run on N devices of this process (strategy.devices)")
    if trained:
        parser.add_argument(
            "--checkpoint", metavar="DIR", help="a checkpoint, or a directory of checkpoints (default: the newest intact one in the output)"
        )
