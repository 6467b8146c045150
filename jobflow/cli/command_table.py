"""The table of all commands of `jobflow`; the module of a command is imported when the command is used.

Such a module has two functions. `fill(parser)` adds options, examples and a description without slow imports. `run(options)` imports its
dependencies, runs the command, and returns the exit code.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from jobflow.core.dataclass import dataclass


@dataclass(frozen=True)
class Command:
    """A command with its line in `jobflow --help` and the name of its module."""

    name: str
    help: str
    module: str

    def load(self) -> ModuleType:
        """Import and return the module of the command."""
        return importlib.import_module(self.module)


#: commands that are also separate programs
ELSEWHERE = {"launch": "jobflow.distributed.launch"}


def _commands(**lines: str) -> tuple[Command, ...]:
    return tuple(Command(name, line, ELSEWHERE.get(name, f"jobflow.cli.{name}_command")) for name, line in lines.items())


#: commands by purpose
GROUPS: dict[str, tuple[Command, ...]] = {
    "train and predict": _commands(
        train="train the model of a YAML file, or resume its training",
        eval="measure a checkpoint on the data of its configuration",
        predict="run a checkpoint's predict job on files",
        export="write a trained model as an ONNX, safetensors or npz file",
        compare="compare runs in a table and on a page with their curves",
    ),
    "inspect": _commands(
        data="describe a file or the readers of a configuration, and find rows that cannot be read",
        tokenizer="train a tokenizer on a text, for models of parts of words",
        explain="print graph, layouts, boxing and plan of a job; nothing runs",
        verify="compare every tensor of a job on N devices and on one device",
    ),
    "ranks": _commands(
        launch="start a program as several ranks, on one node or several",
        run="run a script on N devices of one process, or as N ranks",
    ),
    "files": _commands(
        config="show, check and describe configurations",
        ckpt="list, show, verify, compare, export and convert checkpoints",
    ),
    "machine": _commands(
        doctor="check Python, BLAS, MPI, GPU, memory and disk, and suggest repairs",
        version="print the versions of jobflow and its dependencies",
        completion="print a completion script for bash, zsh or tcsh",
    ),
}

COMMANDS: dict[str, Command] = {command.name: command for group in GROUPS.values() for command in group}
