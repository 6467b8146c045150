"""Ctrl-C while programs start: one line, exit code 130, and no rank is left."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import processes
import pytest
from processes import MPIEXEC, crowd

HEAD = """\
import os, signal, sys, time, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)
import jobflow as flow
"""
LOST = """\
class Referent: pass
def interrupt(_): os.kill(os.getpid(), signal.SIGINT); len("a check for signals")
referent = Referent()
reference = weakref.ref(referent, interrupt)
del referent
time.sleep(20)
"""
STRING = 'exec("import os, time; os.kill(os.getpid(), 2); time.sleep(20)")\n'
COMMAND = """\
from jobflow.cli import main, version_command
version_command.run = lambda given: exec("import os, time; os.kill(os.getpid(), 2); time.sleep(20)")
sys.exit(main(["version"]))
"""
PACKAGE = """\
folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages")
os.mkdir(folder), sys.path.insert(0, folder)
with open(os.path.join(folder, "package.py"), "w") as file: file.write("raise KeyboardInterrupt")
import package
"""
TENSOR = "flow.tensor([1.0], placement=flow.placement('cpu', ranks=[0, 1]), sbp=flow.sbp.broadcast)\n"
STEPS = f"{TENSOR}print('ready', file=sys.stderr, flush=True)\nwhile True: {TENSOR}"
LATE = f"if os.environ['PMI_RANK'] == '1': os.execlp('sleep', 'sleep', '20')\nprint('ready', file=sys.stderr, flush=True)\n{TENSOR}"

EARLY = """\
import os, signal, sys, time
if os.environ["PMI_RANK"] == "1": os.execlp("sleep", "sleep", "20")
import jobflow
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", file=sys.stderr, flush=True)
time.sleep(20)
"""


def await_start_of_mpi() -> None:
    """Wait until the monitor of rank 0 of a job holds the name of a rank that starts MPI."""
    deadline = time.monotonic() + processes.LIMIT
    while ".0.starting" not in pathlib.Path("/proc/net/unix").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def program(folder: pathlib.Path, text: str) -> str:
    file = folder / "program.py"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(20)\n", "interrupted at {}:4"),
        (LOST, "interrupted at {}:9"),
        (STRING, "interrupted at {}:4"),
        (COMMAND, "interrupted"),
        (PACKAGE, "interrupted at {}:7"),
    ],
)
def test_ctrl_c_prints_one_line_and_exits_with_130(tmp_path: pathlib.Path, text: str, line: str) -> None:
    file = program(tmp_path, HEAD + text)
    ended = subprocess.run([sys.executable, file], env=processes.clean({}), capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (130, f"{line.format(file)}\n")


def test_tracebacks_of_ctrl_c_are_printed_on_request(tmp_path: pathlib.Path) -> None:
    file = program(tmp_path, f"{HEAD}raise KeyboardInterrupt\n")
    environment = processes.clean({"JOBFLOW_TRACEBACK": "1"})
    ended = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == -signal.SIGINT and ended.stderr.startswith("Traceback")


@pytest.mark.parametrize(("text", "line"), [(STEPS, "interrupted at "), (LATE, "jobflow: interrupted while MPI starts")])
def test_ctrl_c_ends_ranks_of_mpiexec_with_130(tmp_path: pathlib.Path, text: str, line: str) -> None:
    head = HEAD.replace("import jobflow as flow\n", "") if text is LATE else HEAD
    body = text.replace("print(", "import jobflow as flow\nprint(", 1) if text is LATE else text
    with crowd() as jobs:
        job = jobs.start([MPIEXEC, "-n", "2", sys.executable, program(tmp_path, head + body)])
        jobs.await_text(0, "ready")
        if text is LATE:
            await_start_of_mpi()
        job.send_signal(signal.SIGINT)
        [ended] = jobs.wait(10)
    assert ended.code == 130 and "Traceback" not in ended.err and ended.err.count("interrupted") == 1 and line in ended.err, ended


def test_ctrl_c_before_the_import_on_one_rank_ends_the_other_with_130(tmp_path: pathlib.Path) -> None:
    """Rank 1 ends by SIGINT, and the process manager then kills rank 0, which ignores it."""
    with crowd() as jobs:
        job = jobs.start([MPIEXEC, "-n", "2", sys.executable, program(tmp_path, EARLY)])
        jobs.await_text(0, "ready")
        job.send_signal(signal.SIGINT)
        [ended] = jobs.wait(10)
    assert (ended.code, ended.err) == (130, "ready\njobflow: interrupted\n"), ended


def test_ctrl_c_ends_ranks_of_jobflow_launch_with_130(tmp_path: pathlib.Path) -> None:
    with crowd() as jobs:
        job = jobs.start([*processes.LAUNCH, "--nproc_per_node", "2", program(tmp_path, HEAD + STEPS)])
        jobs.await_text(0, "ready")
        job.send_signal(signal.SIGINT)
        [ended] = jobs.wait(10)
    lines = [line for line in ended.err.splitlines() if not line.endswith("ready") and "OMP_NUM_THREADS" not in line]
    assert (ended.code, lines) == (130, ["jobflow launch: ended all ranks because of SIGINT"])


@pytest.mark.parametrize(
    ("program", "code", "printed"),
    [
        ("import jobflow; raise RuntimeError('worker died of KeyboardInterrupt')", 1, "RuntimeError: worker died"),
        ("import sys; sys.excepthook = lambda *a: print('mine'); import jobflow; raise KeyboardInterrupt", -2, "mine"),
        ("import sys, jobflow; p = sys.excepthook; sys.excepthook = lambda *a: (p(*a), print('cleanup')); raise KeyboardInterrupt", -2, "cleanup"),
        ("import code, jobflow; code.InteractiveInterpreter().runsource('raise KeyboardInterrupt'); print('continues')", 0, "continues"),
        ("import jobflow; raise KeyboardInterrupt", 130, "interrupted at"),
    ],
)
def test_hooks_and_errors_of_programs_keep_their_report(tmp_path: pathlib.Path, program: str, code: int, printed: str) -> None:
    file = tmp_path / "program.py"
    file.write_text("\n".join(program.split("; ")))
    done = subprocess.run(
        [sys.executable, str(file)],
        env=os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code and printed in done.stdout + done.stderr, done
