"""Run planted steps as `scripts/gpu_check` runs real ones: python planted_steps.py FOLDER PART SECONDS STEP..."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts" / "gpu_check_steps"))

from step_runner import Step, run_steps  # noqa: E402

#: ignores SIGTERM and starts a child in a new session that does the same
ENDLESS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('RESULT {"before": 1}', flush=True)
pid = os.fork()
if pid == 0:
    os.setsid()
    print("child", os.getpid(), flush=True)
time.sleep(600)
"""
PROGRAMS = {
    "good": "print('RESULT {\"figure\": 0.5}')",
    "failing": "print('a word before the end'); raise SystemExit(3)",
    "pytest": "print('tests/a.py::test_x[1] \\n[gw0] [ 50%] FAILED tests/a.py::test_x[1] '); raise SystemExit(1)",
    "crashing": "import os, signal; print('RESULT {\"before\": 2}', flush=True); os.kill(os.getpid(), signal.SIGSEGV)",
    "endless": ENDLESS,
    "absent": "print('NOT THERE no such library')",
    "cut": "print('RESULT {\"half\": ')",
    "leaving": "import subprocess; print('left', subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)",
    "skipped": "print('===== 3 skipped in 0.05s =====')",
    "counted": "print('===== 2 passed, 1 skipped in 0.05s =====')",
    "expected": "print('OK  GPU'); raise SystemExit(1)",
    "unexpected": "print('problem  GPU')",
}
EXPECTS = {"expected": "^OK +GPU", "unexpected": "^OK +GPU"}


def main(folder: str, part: str, seconds: str, *names: str) -> None:
    steps = [Step(name, 5.0, (sys.executable, "-c", PROGRAMS[name]), expects=EXPECTS.get(name, "")) for name in names if name in PROGRAMS]
    steps += [Step(name, 5.0, (f"/nowhere/{name}",)) for name in names if name not in PROGRAMS]
    run_steps(part, steps, Path(folder), float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
