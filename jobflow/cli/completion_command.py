"""`jobflow completion`: print a script that completes `jobflow` commands in a shell."""

from __future__ import annotations

import argparse
import importlib

SHELLS = ("bash", "zsh", "tcsh")

EXAMPLES = """\
examples:
  eval "$(jobflow completion bash)"                                               # in this shell; or in ~/.bashrc
  jobflow completion bash > ~/.local/share/bash-completion/completions/jobflow    # from the next shell on
  jobflow completion zsh > ~/.zfunc/_jobflow                                      # with fpath+=~/.zfunc before compinit
  jobflow completion tcsh > ~/.jobflow.tcsh                                       # with `source ~/.jobflow.tcsh` in ~/.tcshrc"""

#: arguments that are files, by metavar or name
FILES, FOLDERS = {"FILE", "PATH", "script", "job", "config", "checkpoint", "first", "second", "source", "target"}, {"DIR", "directory"}


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = "Print a script that completes `jobflow` commands in a shell.", EXAMPLES
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def run(options: argparse.Namespace) -> int:
    from jobflow.cli import parser, parsers
    from jobflow.cli.command_table import COMMANDS

    shtab = importlib.import_module("shtab")
    top = parser(COMMANDS.values())
    for action in (action for below in parsers(top) for action in below._actions):
        word = str(action.metavar or action.dest)
        if action.choices is None and (word in FILES | FOLDERS or action.dest in FILES):
            action.complete = shtab.DIRECTORY if word in FOLDERS else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(top, options.shell))
    return 0
