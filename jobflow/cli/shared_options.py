"""Options shared by several commands."""

from __future__ import annotations

import argparse

from jobflow.core.command_line import whole

at_least_one = whole(1)


def add_job(parser: argparse.ArgumentParser, devices: int | None, for_what: str, *, configurations: bool = False) -> None:
    """Add a job and its parallelism; or a configuration, if the command accepts `configurations`."""
    job = 'path/to/file.py:job or module:job; in place of the job a call that makes one: "gpt.py:make_train_job(Size())"'
    parser.add_argument("job", help=f"{job}{'; or the YAML file of a configuration' if configurations else ''}")
    default = "" if devices is None else f" (default {devices})"
    parser.add_argument("--devices", type=at_least_one, default=devices, metavar="N", help=f"{for_what}{default}")
    parser.add_argument("--strategy", metavar="S", help="dp, tp, pp, zero1, zero2, zero3, 2x2, data=2,tensor=2 ... (default: the job's own)")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add overrides of configuration values."""
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="set a value, such as optimizer.lr=0.1; VALUE is YAML"
    )


def add_configuration(parser: argparse.ArgumentParser, *, trained: bool = False) -> None:
    """Add a configuration and, if `trained`, its checkpoint."""
    parser.add_argument("config", metavar="FILE", help="the YAML file")
    add_settings(parser)
    parser.add_argument("--devices", type=at_least_one, metavar="N", help="run on N devices of this process (strategy.devices)")
    if trained:
        parser.add_argument("--checkpoint", metavar="DIR", help="which one, or a directory of them (default: the newest good one of the output)")
