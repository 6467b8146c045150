"""The programs of the documents about global tensors, each as it stands there, on ranks that are processes, started in all three ways.

They are `programs/global/*.py`.  What they print is what the documents print; the numbers are those of one process, on every layout.
"""

from __future__ import annotations

import ast
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from ranks import on_ranks

import jobflow as flow

FOLDER = Path(__file__).parent / "programs" / "global"
WAYS = [
    "mpiexec",
    "launcher",
    "by hand",
]
CUDA = 'jobflow.placement(type="cuda", ranks=[0, 1])'
#: what every rank prints
PRINTED = {
    "one_device": ["jobflow.Size([4, 8])"],
    "data_parallel": ["jobflow.Size([4, 8])"],
    "model_parallel": ["jobflow.Size([4, 8])"],
    "pipeline": ["jobflow.Size([4, 8])", "jobflow.Size([4, 3])"],
    "mixed_eager": ["jobflow.Size([4, 8]) jobflow.Size([4, 3])"],
    "mixed_graph": ["jobflow.Size([4, 8]) jobflow.Size([4, 3])"],
    "create": ["jobflow.Size([4, 5])", "jobflow.Size([2, 5])"],
    "dictionary": [f"jobflow.Size([4, 5]) {CUDA}"],
    "local_to_global": ["jobflow.Size([4, 5])"],
    "practice_data_parallel": ["(jobflow.sbp.split(dim=0),)", "jobflow.Size([4, 8])"],
    "practice_model_parallel": ["(jobflow.sbp.split(dim=1),)", "jobflow.Size([4, 8])"],
}
OF_FOUR = ("mixed_eager", "mixed_graph")
OF_TWO = tuple(name for name in PRINTED if name not in OF_FOUR)

S0, S1, B = "(jobflow.sbp.split(dim=0),)", "(jobflow.sbp.split(dim=1),)", "(jobflow.sbp.broadcast,)"


def drawn(*shapes: tuple[int, int]) -> list[np.ndarray[Any, Any]]:
    """Return the numbers that a single process draws after manual_seed(7)."""

    def program(rank: int) -> list[np.ndarray[Any, Any]]:
        flow.manual_seed(7)
        return [flow.randn(*shape).numpy() for shape in shapes]

    return on_ranks(1, program)[0]


def expected() -> dict[str, dict[str, tuple[str, np.ndarray[Any, Any]]]]:
    """By program, of its global tensors: the sbp and the values."""
    x, w = drawn((4, 5), (5, 8))
    w0, w1, first = drawn((5, 8), (8, 3), (4, 5))
    (piece,) = drawn((2, 5))
    data_parallel, model_parallel = ({"x": (a, x), "w": (b, w), "out": (c, x @ w)} for a, b, c in ((S0, B, S0), (B, S1, S1)))
    mixed = {"in_stage0": (S0, first), "out_stage0": (S0, first @ w0), "out_stage1": (S1, first @ w0 @ w1)}
    pipeline = {"w0": w0, "w1": w1, "in_stage0": first, "in_stage1": first @ w0, "out_stage0": first @ w0, "out_stage1": first @ w0 @ w1}
    practice = [{"y" if name == "out" else name: value for name, value in names.items()} for names in (data_parallel, model_parallel)]
    return {
        "one_device": {},
        "data_parallel": data_parallel,
        "model_parallel": model_parallel,
        "pipeline": {name: (B, value) for name, value in pipeline.items()},
        "mixed_eager": mixed,
        "mixed_graph": mixed,
        "create": {"x": (S0, x)},
        "dictionary": {"x": (S0, x)},
        "local_to_global": {"x_global": (S0, np.concatenate([piece, piece]))},
        "practice_data_parallel": practice[0],
        "practice_model_parallel": practice[1],
    }


def _alone(way: str, program: str) -> Any:
    """Two of them; --full has all, in all ways."""
    return pytest.param(way, program, marks=[] if (way, program) in (("mpiexec", "mixed_graph"), ("launcher", "create")) else [pytest.mark.full])


def _case(way: str, programs: tuple[str, ...], size: int) -> Any:
    rarely = size == 4 and way != "by hand"
    return pytest.param(way, programs, size, marks=[pytest.mark.full] if rarely else [], id=f"{way} {size}")


def test_all_are_there() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "in_turn") == sorted(PRINTED)


@pytest.mark.mpi
@pytest.mark.parametrize(("way", "programs", "size"), [_case(way, programs, size) for programs, size in ((OF_TWO, 2), (OF_FOUR, 4)) for way in WAYS])
def test_programs_run_one_after_another(way: str, programs: tuple[str, ...], size: int) -> None:
    """All that take so many ranks, with their numbers."""
    code, lines, output = processes.started(way, size, str(FOLDER / "in_turn.py"), *programs)
    assert code == 0 and "Traceback" not in output, output
    tuples = [line for line in lines if re.match(r"\(\d", line)]
    assert sorted(line for line in lines if line not in tuples) == sorted(line for name in programs for line in PRINTED[name] * size)
    results = {(rank, name): values for rank, name, values in map(ast.literal_eval, tuples)}
    assert sorted(results) == sorted((rank, name) for rank in range(size) for name in programs)
    references = expected()
    for (_, name), values in results.items():
        assert {key: sbp for key, (sbp, _) in values.items()} == {key: sbp for key, (sbp, _) in references[name].items()}
        for key, (_, value) in values.items():
            np.testing.assert_allclose(np.array(value, np.float32), references[name][key][1], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize(("way", "program"), [_alone(way, program) for way in WAYS for program in PRINTED])
def test_a_program_runs_alone(way: str, program: str) -> None:
    """As its author would start it."""
    size = 4 if program in OF_FOUR else 2
    code, lines, output = processes.started(way, size, str(FOLDER / f"{program}.py"))
    assert code == 0 and "Traceback" not in output, output
    assert sorted(lines) == sorted(PRINTED[program] * size)
    assert output.count("there is no GPU") <= 1


# -------------------------------------------------------------------- two terminals

#: what is typed in both, one statement after another, and what the prompt answers
TYPED = [
    ("import jobflow as flow", None),
    ('placement = flow.placement("cuda", [0,1])', None),
    ("sbp = flow.sbp.split(0)", None),
    ("x = flow.randn(4,5,placement=placement, sbp=sbp)", None),
    ("x.shape", "jobflow.Size([4, 5])"),
    ("x.to_local()", r"tensor\(\[\[.*\]\], device='cuda:{rank}',\s+dtype=jobflow.float32\)"),
    ("x = flow.randn(2,5)", None),
    ("x_global = x.to_global(placement=placement, sbp=sbp)", None),
    ("x_global.shape", "jobflow.Size([4, 5])"),
    ("x = flow.randn(4,5,placement=placement, sbp=flow.sbp.split(0))", None),
    ("w = flow.randn(5,8,placement=placement, sbp=flow.sbp.broadcast)", None),
    ("y = flow.matmul(x,w)", None),
    ("y.sbp", "(jobflow.sbp.split(dim=0),)"),
    ("y.shape", "jobflow.Size([4, 8])"),
    ("x = flow.randn(4,5,placement=placement, sbp=flow.sbp.broadcast)", None),
    ("w = flow.randn(5,8,placement=placement, sbp=flow.sbp.split(1))", None),
    ("y = flow.matmul(x,w)", None),
    ("y.sbp", "(jobflow.sbp.split(dim=1),)"),
    ("y.shape", "jobflow.Size([4, 8])"),
    ("y", r"tensor\(\[\[.*\]\], placement=jobflow.placement\(type=\"cuda\", ranks=\[0, 1\]\),\s+sbp=.*, dtype=jobflow.float32\)"),
]


class Terminal:
    """A prompt of Python with the variables of a rank."""

    def __init__(self, rank: int, environment: dict[str, str]) -> None:
        self.rank = rank
        command = [sys.executable, "-i", "-q", "-u"]
        self.python = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self.output: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.python.stdout is not None
        for line in self.python.stdout:
            self.output.put(line)

    def type(self, statement: str) -> None:
        assert self.python.stdin is not None
        self.python.stdin.write(statement + "\n")
        self.python.stdin.flush()

    def answer(self, pattern: str) -> str:
        """Return the output once all of it matches."""
        text, deadline = "", time.monotonic() + processes.LIMIT
        while not (text.rstrip() == pattern or re.fullmatch(pattern, text.rstrip(), re.DOTALL)):
            try:
                text += self.output.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                raise AssertionError(f"terminal {self.rank} said {text!r}, not {pattern!r}") from None
        return text

    def close(self) -> None:
        assert self.python.stdin is not None
        self.python.stdin.close()

    def code(self) -> int:
        assert self.python.stdout is not None
        code = self.python.wait(processes.LIMIT)
        self.python.stdout.close()
        return code


def test_typed_in_two_terminals() -> None:
    """Statement by statement, in the second terminal first; a slip in one of them ends nothing."""
    port = processes.free_port()
    with processes.crowd() as jobs:
        marked = {"JOBFLOW_TEST": jobs.token, "PYTHONWARNINGS": "default"}
        terminals = [Terminal(rank, processes.clean({**processes.variables(rank, 2, port), **marked})) for rank in (1, 0)]
        for statement, pattern in TYPED:
            for terminal in terminals:
                terminal.type(statement)
            answers = [terminal.answer(pattern.replace("{rank}", str(terminal.rank))) for terminal in terminals if pattern is not None]
            if statement == "y":
                assert answers[0] == answers[1]
            elif statement == "x.to_local()":
                assert answers[0] != answers[1]
            elif statement == "sbp = flow.sbp.split(0)":
                terminals[0].type("1 / 0")
        for terminal in terminals:
            terminal.close()
        assert [terminal.code() for terminal in terminals] == [0, 0]
        jobs.leaves_nothing()
