"""`jobflow version`: the versions of jobflow and its dependencies."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import sys

from jobflow.core.tables import TextTable
from jobflow.core.version import __version__

EXAMPLES = """\
examples:
  jobflow version
  jobflow version --json"""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = "Print the versions of jobflow, Python, NumPy and its BLAS, MPI and CuPy.", EXAMPLES
    parser.add_argument("--json", action="store_true", help="print JSON; null for a component that is not installed")


def run(options: argparse.Namespace) -> int:
    components = versions()
    if options.json:
        print(json.dumps(components, indent=2))
        return 0
    TextTable([], [(name, version or "not installed") for name, version in components.items()]).print()
    return 0


def versions() -> dict[str, str | None]:
    """Return the version of each component; None for a component that is not installed."""
    import numpy as np

    from jobflow.kernels import blas_threads
    from jobflow.runtime.device.cuda_device import cupy_version

    return {
        "jobflow": __version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})",
        "platform": platform.platform(),
        "NumPy": np.__version__,
        "BLAS": blas_threads.library(),
        "mpi4py": _of("mpi4py"),
        "MPI": mpi(),
        "CuPy": cupy_version(),
    }


def _of(package: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return None
    return str(importlib.import_module(package).__version__)


def mpi() -> str | None:
    """Return the first line of the MPI library's description, without starting MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        return None
    settings = importlib.import_module("mpi4py").rc
    settings.initialize = settings.finalize = False
    try:
        description = str(importlib.import_module("mpi4py.MPI").Get_library_version())
    except (ImportError, RuntimeError):  # no MPI library, or an unusable one
        return None
    lines = [line.split(":", 1) for line in description.replace("\0", "").splitlines()]
    return " ".join(" ".join(part.strip() for part in lines[0]).split())
