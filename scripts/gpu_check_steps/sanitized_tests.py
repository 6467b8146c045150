"""Run tests under compute-sanitizer's memcheck, with full tracebacks and arrays outside of CuPy's pool.

python sanitized_tests.py TEST...
"""

from __future__ import annotations

import os
import subprocess
import sys

import cuda_tools

#: exit code of compute-sanitizer if it reports an error
ERRORS = 9


def main(*tests: str) -> int:
    command = cuda_tools.find("compute-sanitizer")
    if command is None:
        print("NOT THERE compute-sanitizer is not installed", flush=True)
        return 0
    memcheck = [command, "--tool", "memcheck", "--target-processes", "all", f"--error-exitcode={ERRORS}"]
    pytest = [sys.executable, "-m", "pytest", "-vv", "--tb=long", "-p", "no:cacheprovider", *tests]
    return subprocess.run([*memcheck, *pytest], env=os.environ | {"JOBFLOW_GPU_POOL": "none"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
