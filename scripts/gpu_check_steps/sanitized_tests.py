"""Run tests under compute-sanitizer's memcheck, with full tracebacks.

python sanitized_tests.py TEST...
"""

from __future__ import annotations

import shutil
import subprocess
import sys

#: exit code of compute-sanitizer if it reports an error
ERRORS = 9


def main(*tests: str) -> int:
    command = shutil.which("compute-sanitizer")
    if command is None:
        print("NOT THERE compute-sanitizer is not installed", flush=True)
        return 0
    checked = [command, "--tool", "memcheck", "--target-processes", "all", f"--error-exitcode={ERRORS}"]
    pytest = [sys.executable, "-m", "pytest", "-vv", "--tb=long", "-p", "no:cacheprovider", *tests]
    return subprocess.run([*checked, *pytest], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
