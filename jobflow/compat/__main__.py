"""The command `python -m jobflow.compat script.py arguments ...`, which runs a program written for OneFlow."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from jobflow.compat import import_forms, library_names, numpy_names
from jobflow.engine.returned import show_as
from jobflow.runtime.world.environment import CHECKPOINTS

USAGE = "usage: python -m jobflow.compat (script.py | -m module) [argument ...]"


def main(words: Sequence[str]) -> None:
    """Run the script `words[0]`, or the module `words[1]` after "-m", as the main program.

    Without a program, or with -h or --help, print the usage and exit.
    """
    if not words or words[0] in ("-h", "--help") or (words[0] == "-m" and len(words) < 2):
        print(f"{USAGE}\n\nRun a program written for OneFlow 0.2 to 0.4 without changes, including its imports of oneflow.")
        raise SystemExit(0 if words and words[0] != "-m" else 2)
    import_forms.install()
    numpy_names.restore()
    library_names.restore()
    show_as(numpy_names.as_result)
    os.environ.setdefault(CHECKPOINTS, "oneflow")
    if words[0] == "-m":
        sys.argv, sys.path[0] = list(words[1:]), os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = list(words), os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
