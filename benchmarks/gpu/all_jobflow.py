"""Train both models with jobflow, one process per run.

python all_jobflow.py [--small] [--host]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import workloads

HERE = Path(__file__).resolve().parent


def runs(small: bool) -> Iterator[tuple[str, str, str]]:
    """Yield model, batch and precision of each run, bfloat16 and small batches first."""
    sizes = workloads.sizes(small)
    for precision in ("bfloat16", "float32"):
        for which in range(2):
            for model in workloads.MODELS:
                yield model, str(sizes[model].batches[which]), precision


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small models")
    parser.add_argument("--host", action="store_true", help="on the CPU")
    options = parser.parse_args()
    flags = [f"--{name}" for name in ("small", "host") if getattr(options, name)]
    failed = []
    for run in runs(options.small):
        if subprocess.run([sys.executable, str(HERE / "run_jobflow.py"), *run, *flags], check=False).returncode:
            failed.append(" ".join(run))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
