"""`jobflow ckpt ls|show|verify|diff|export|convert`: the options; checkpoints.py has the implementation."""

from __future__ import annotations

import argparse
from typing import Any

from jobflow.core.command_line import not_negative

DESCRIPTION = """\
List, show, verify, compare, export and convert checkpoints.

A checkpoint is a directory with a manifest.json; directories of the legacy system (one directory per variable), .npz and
.safetensors files are supported, too.
No command changes an existing checkpoint."""

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
    {"metavar": "CHECKPOINT", "help": "checkpoint with the types of legacy variables without `meta` files, by name"},
)
QUICK = "check only that all files exist; do not read tensors to check their hashes"
RELATIVE = "|a-b| <= A + R max(|a|,|b|) counts as equal (default 0: all bits)"
#: action -> help line, description, arguments
ACTIONS: dict[str, tuple[str, str, tuple[Argument, ...]]] = {
    "ls": (
        "list the checkpoints in a directory",
        "Print step, time, size, metrics and state (intact or damaged) of every checkpoint.",
        (("directory", {"help": "the directory of checkpoints"}), ("--quick", {"action": "store_true", "help": QUICK})),
    ),
    "show": (
        "show the contents of a checkpoint",
        "Print every tensor with its type and shards, and the other saved entries.",
        (("checkpoint", {"help": ANY}), NAMES),
    ),
    "verify": (
        "check every hash of checkpoints",
        "Compare every byte with the hashes, and print tensor, file and offset of damaged data.  Exit code 1 for a damaged checkpoint.",
        (("checkpoints", {"nargs": "+", "metavar": "checkpoint", "help": "checkpoints, or a directory of them"}),),
    ),
    "diff": (
        "compare two checkpoints",
        "Print tensors that only one checkpoint has, and differences of shape, type and value.  Exit code 1 if tensors differ.\n"
        "Differences of other entries (step, metrics, ...) are printed, but do not change the exit code.",
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
        "The format of the source is detected.  Without --to, the suffix .npz or .safetensors of the target selects the format; else\n"
        "a checkpoint becomes a legacy directory, and other sources become a checkpoint.",
        (
            ("source", {"help": ANY}),
            ("target", {"help": "the path to write; it must not exist"}),
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
