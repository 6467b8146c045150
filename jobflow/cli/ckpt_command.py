"""`jobflow ckpt ls|show|verify|diff|export|convert`: the options; checkpoints.py does the work."""

from __future__ import annotations

import argparse
from typing import Any

from jobflow.core.command_line import not_negative

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
#: an argument: its name and the keywords of `add_argument`
Argument = tuple[str, dict[str, Any]]
NAMES: Argument = (
    "--names",
    {"nargs": "+", "default": ["*"], "metavar": "PATTERN", "help": 'only tensors whose names match, such as "conv*" (default: all)'},
)
TYPES: Argument = (
    "--types-from",
    {"metavar": "CHECKPOINT", "help": "where the types of legacy variables without `meta` files are taken from, by name"},
)
QUICK = "only look whether all files are there; do not read the tensors to check their hashes"
RELATIVE = "|a-b| <= A + R max(|a|,|b|) is the same (default 0: all bits)"
#: action -> help line, description, arguments
ACTIONS: dict[str, tuple[str, str, tuple[Argument, ...]]] = {
    "ls": (
        "list the checkpoints in a directory",
        "Step, time, size, metrics of every checkpoint, and whether it is whole.",
        (("directory", {"help": "the directory that holds the checkpoints"}), ("--quick", {"action": "store_true", "help": QUICK})),
    ),
    "show": (
        "show what a checkpoint holds",
        "Every tensor with its type and shards, and what was saved beside them.",
        (("checkpoint", {"help": ANY}), NAMES),
    ),
    "verify": (
        "check every hash of checkpoints",
        "Read every byte and compare with the hashes; name tensor, file and offset of what is damaged.  Exit code 1 if something is.",
        (("checkpoints", {"nargs": "+", "metavar": "checkpoint", "help": "checkpoints, or a directory of them"}),),
    ),
    "diff": (
        "compare two checkpoints",
        "Names that only one has, shapes, element types, and the largest differences of every tensor.  Exit code 1 if tensors differ; what\n"
        "was saved beside them (step, metrics, ...) is shown where it differs, but does not count.",
        (
            ("first", {"help": ANY}),
            ("second", {"help": ANY}),
            NAMES,
            ("--rtol", {"type": not_negative, "default": 0.0, "metavar": "R", "help": RELATIVE}),
            ("--atol", {"type": not_negative, "default": 0.0, "metavar": "A", "help": "see --rtol (default 0)"}),
        ),
    ),
    "export": (
        "write tensors to a .npz or .safetensors file",
        "Write tensors to a NumPy .npz file, where bfloat16 becomes float32, or to a .safetensors file.",
        (
            ("checkpoint", {"help": "a checkpoint or a legacy directory"}),
            ("file", {"help": "the .npz or .safetensors file to write"}),
            NAMES,
            ("--force", {"action": "store_true", "help": "replace the file if it exists"}),
            TYPES,
        ),
    ),
    "convert": (
        "convert between checkpoints, legacy directories, .npz and .safetensors files",
        "The source's format is recognised.  Without --to the target is a .npz or .safetensors file if it is called so, else\n"
        "a legacy directory if the source is a checkpoint, else a checkpoint.",
        (
            ("source", {"help": ANY}),
            ("target", {"help": "what to write; it must not exist"}),
            ("--to", {"choices": ("jobflow", "legacy", "npz", "safetensors"), "help": "the target's format"}),
            NAMES,
            TYPES,
        ),
    ),
}


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="action", required=True, metavar="|".join(ACTIONS))
    for name, (line, description, arguments) in ACTIONS.items():
        command = commands.add_parser(name, help=line, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        for flag, options in arguments:
            command.add_argument(flag, **options)


def run(options: argparse.Namespace) -> int:
    from jobflow.cli import checkpoints
    from jobflow.core.errors import CheckpointError

    try:
        return int(getattr(checkpoints, options.action)(options))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CheckpointError(f"jobflow ckpt {options.action}: {error}") from error
