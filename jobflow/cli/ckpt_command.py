"""`jobflow ckpt ls|show|verify|diff|export|convert`: checkpoints seen from outside; checkpoints.py does the work."""

from __future__ import annotations

import argparse
from typing import Any

DESCRIPTION = """\
List, show, verify, compare, export and convert checkpoints.

A checkpoint is a directory with a manifest.json; directories of the legacy system (one directory per variable), .npz and
.safetensors files are read, too.
No command changes a checkpoint that exists."""

EXAMPLES = """\
examples:
  jobflow ckpt ls runs/lenet_digits/checkpoints
  jobflow ckpt show runs/lenet_digits/checkpoints/step-00000100 --names "conv*"
  jobflow ckpt verify runs/lenet_digits/checkpoints
  jobflow ckpt diff a/step-00000100 b/step-00000100 --rtol 1e-6
  jobflow ckpt export runs/lenet_digits/checkpoints/step-00000100 weights.npz --names "*weight" "*bias"
  jobflow ckpt convert old_snapshot runs/start                      a legacy directory becomes a checkpoint
  jobflow ckpt convert runs/lenet_digits/checkpoints/step-00000100 snapshot --to legacy

exit codes: 0 done; 1 an error, a damaged checkpoint (verify), or checkpoints that differ (diff); 2 a wrong command line"""

ANY = "a checkpoint, a legacy directory, a .npz or a .safetensors file"


def fill(parser: argparse.ArgumentParser) -> None:
    """Give the parser a subcommand for each thing to do."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="action", required=True, metavar="ls|show|verify|diff|export|convert")
    _fill_reading(commands)
    _fill_writing(commands)


def _fill_reading(commands: Any) -> None:
    listing = _add(commands, "ls", "list the checkpoints in a directory", "Step, time, size, metrics of every checkpoint, and whether it is whole.")
    listing.add_argument("directory", help="the directory that holds the checkpoints")
    listing.add_argument("--quick", action="store_true", help="only look whether all files are there; do not read the tensors to check their hashes")
    showing = _add(commands, "show", "show what a checkpoint holds", "Every tensor with its type and shards, and what was saved beside them.")
    showing.add_argument("checkpoint", help=ANY)
    _add_names(showing)
    verifying = _add(
        commands,
        "verify",
        "check every hash of checkpoints",
        "Read every byte and compare with the hashes; name tensor, file and offset of what is damaged.  Exit code 1 if something is.",
    )
    verifying.add_argument("checkpoints", nargs="+", metavar="checkpoint", help="checkpoints, or a directory of them")
    comparing = _add(
        commands,
        "diff",
        "compare two checkpoints",
        "Names that only one has, shapes, element types, and the largest differences of every tensor.  Exit code 1 if tensors differ; what\n"
        "was saved beside them (step, metrics, ...) is shown where it differs, but does not count.",
    )
    comparing.add_argument("first", help=ANY)
    comparing.add_argument("second", help=ANY)
    _add_names(comparing)
    comparing.add_argument("--rtol", type=_tolerance, default=0.0, metavar="R", help="|a-b| <= A + R max(|a|,|b|) is the same (default 0: all bits)")
    comparing.add_argument("--atol", type=_tolerance, default=0.0, metavar="A", help="see --rtol (default 0)")


def _fill_writing(commands: Any) -> None:
    exporting = _add(
        commands,
        "export",
        "write tensors to a .npz or .safetensors file",
        "Write tensors to a NumPy .npz file, where bfloat16 becomes float32, or to a .safetensors file.",
    )
    exporting.add_argument("checkpoint", help="a checkpoint or a legacy directory")
    exporting.add_argument("file", help="the .npz or .safetensors file to write")
    _add_names(exporting)
    exporting.add_argument("--force", action="store_true", help="replace the file if it exists")
    _add_types(exporting)
    converting = _add(
        commands,
        "convert",
        "convert between checkpoints, legacy directories, .npz and .safetensors files",
        "The source's format is recognised.  Without --to the target is a .npz or .safetensors file if it is called so, else\n"
        "a legacy directory if the source is\n"
        "a checkpoint, else a checkpoint.",
    )
    converting.add_argument("source", help=ANY)
    converting.add_argument("target", help="what to write; it must not exist")
    converting.add_argument("--to", choices=("jobflow", "legacy", "npz", "safetensors"), help="the target's format")
    _add_names(converting)
    _add_types(converting)


def _add(commands: Any, name: str, line: str, description: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return made


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--names", nargs="+", default=["*"], metavar="PATTERN", help='only tensors whose names match, such as "conv*" (default: all)')


def _add_types(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--types-from", metavar="CHECKPOINT", help="where the types of legacy variables without `meta` files are taken from, by name")


def _tolerance(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def run(given: argparse.Namespace) -> int:
    """Do what the subcommand says; the exit code."""
    from jobflow.cli import checkpoints
    from jobflow.core.errors import CheckpointError

    try:
        return checkpoints.ACTIONS[given.action](given)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CheckpointError(f"jobflow ckpt {given.action}: {error}") from error
