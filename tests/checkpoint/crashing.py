"""A save that is killed or fails, and the verdict on its leftovers.

A case runs in its own process, or as ranks under mpiexec.  `root/steps` contains step 1.  A fault occurs while step 2 is saved next to it or, with
`replace`, in its place.  Afterwards step 1 (or, replaced, step 2) must exist and be intact.  No loaded checkpoint may mix both, and the next start
must remove leftovers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from faults import FAILURES, NEVER, Fault

import jobflow as flow
from jobflow.core.errors import CheckpointError
from jobflow.distributed import mpiexec
from jobflow.engine.session import Session, started_session
from jobflow.storage import file_system as files
from jobflow.storage import sessions, store
from jobflow.storage.file_system import Files
from jobflow.storage.series import Series

ROOT = Path(__file__).parents[2]
OLD, NEW, AFTER = 1, 2, 3
#: seconds
MPI_LIMIT = 90
#: seconds that a saving of these variables takes, or less
WINDOW = 0.015
#: name -> (shape, element type, axis along which ranks hold it or None)
VARIABLES: dict[str, tuple[tuple[int, ...], Any, int | None]] = {
    "rows": ((9, 4), flow.float32, 0),
    "columns": ((3, 6), flow.float64, 1),
    "whole": ((5,), flow.float32, None),
    "count": ((1,), flow.int64, None),
}


def state(step: int) -> dict[str, Any]:
    """Return the variables' values at a step."""
    source = np.random.default_rng(step)
    return {name: (source.normal(size=shape) * 100).astype(dtype.numpy) for name, (shape, dtype, _) in VARIABLES.items()}


@dataclass(frozen=True)
class Case:
    """One save and its fault: at change `at` of rank `victim`."""

    ranks: int = 1
    way: str = "threads"
    asynchronous: bool = False
    replace: bool = False
    victim: int = 0
    at: int = NEVER
    how: str = "before"
    seed: int = 0
    #: names are exchanged in one step, as Linux can; else by way of a third name, when for a moment only the next start finds the old step
    swap: bool = True
    #: the series keeps one step only, so that the old one is removed once the new one is there
    prune: bool = False

    def __str__(self) -> str:
        when = "asynchronous" if self.asynchronous else "synchronous"
        name = "new" if not self.replace else "replacing" if self.swap else "replacing by a third name"
        name += ", pruning" if self.prune else ""
        what = "killed at some time" if self.how == "time" else f"rank {self.victim} {self.how} at change {self.at}"
        return f"[{self.ranks} {self.way}, {when}, {name}: {what}, seed {self.seed}]"

    @property
    def fault(self) -> Fault:
        return Fault(self.victim, self.at, self.how, self.seed)


def series_of(root: Path, case: Case) -> Series:
    return Series(root / "steps", keep_last=1 if case.prune else 3)


def target_of(root: Path, case: Case) -> Path:
    return series_of(root, case).path_of(OLD if case.replace else NEW)


# ---- in the process that saves -------------------------------------------------------------------------------------------------------


@contextmanager
def session_on(case: Case) -> Iterator[Session]:
    """Return a session on this many ranks whose variables have different layouts."""
    if case.way == "mpi":
        flow.env.client("multi")
    else:
        flow.config.cpu_device_num(case.ranks)

    @flow.global_function("predict")
    def job() -> flow.typing.Numpy:
        total = None
        for name, (shape, dtype, axis) in VARIABLES.items():
            layout = flow.distribute.broadcast() if axis is None else flow.distribute.split(axis)
            variable = flow.get_variable(name, shape, dtype, flow.zeros_initializer(dtype), distribute=layout)
            part = flow.math.reduce_sum(flow.cast(variable, flow.float32))
            total = part if total is None else total + part
        return total

    try:
        job()
        yield started_session()
    finally:
        flow.clear_default_session()


def save_steps(case: Case, root: Path) -> None:
    """Save once with the fault and report an error; then save once more, as training would."""
    fault = case.fault
    output: dict[str, Any] = {"saved": False, "error": "", "kind": ""}
    with session_on(case) as session:
        assert session.world is not None
        own = session.world.ranks[0].index
        session.write(state(NEW))
        fault.install()
        if not case.swap:
            files._exchanged = lambda a, b: False
        (root / "begun").touch()
        try:
            then = series_of(root, case).prune if case.prune else None
            target = target_of(root, case)
            saving = sessions.save(session, target, {"step": NEW}, asynchronous=case.asynchronous, replace=case.replace, then=then)
            if case.asynchronous:
                session.write(state(99))  # training goes on meanwhile
            saving.wait()
            output["saved"] = True
        except CheckpointError as error:
            output |= {"error": str(error), "kind": type(error).__name__}
        files.use(Files)
        if case.how in FAILURES:
            session.write(state(AFTER))
            sessions.save(session, Series(root / "steps").path_of(AFTER), {"step": AFTER}).wait()
    (root / f"telling-{own}").write_text(json.dumps({**output, "met": fault.met, "log": fault.log}))
    os.replace(root / f"telling-{own}", root / f"told-{own}.json")  # it may be killed while it tells, too


# ---- around it -----------------------------------------------------------------------------------------------------------------------


def begin(root: Path) -> None:
    """Create `root/steps` with step 1."""
    (root / "steps").mkdir(parents=True)
    with session_on(Case(ranks=2)):  # what is imported now is not imported in every child
        pass
    save_plainly(root, OLD)


def save_plainly(root: Path, step: int) -> None:
    """Save a step on 2 ranks without a fault."""
    case = Case(ranks=2)

    def work() -> None:
        with session_on(case) as session:
            session.write(state(step))
            sessions.save(session, Series(root / "steps").path_of(step), {"step": step}).wait()

    if _forked(work) != 0:
        raise RuntimeError(f"step {step} could not be saved")


def report_of(work: Callable[[Path], None], path: Path) -> list[str]:
    """Return the list that `work` writes to `path` in its own process."""
    if _forked(lambda: work(path)) != 0:
        raise RuntimeError("the process that should tell failed")
    return [str(line) for line in json.loads(path.read_text())]


def _forked(work: Callable[[], None], meanwhile: Callable[[int], None] = lambda pid: None) -> int:
    """Run the work in a child; return the child's exit status as from `waitpid`."""
    pid = os.fork()
    if pid:
        meanwhile(pid)
        return os.waitpid(pid, 0)[1]
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - the child ends here in any case
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _kill_some_time(delay: float, begun: Path, pid: int) -> None:
    """Kill a process a delay after it has created a file."""
    while not begun.exists():
        time.sleep(0.0005)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)


def in_child(work: Callable[[], None]) -> int:
    """Run the work in a process; return the exit code, -9 if it was killed."""
    return os.waitstatus_to_exitcode(_forked(work))


def run(case: Case, root: Path) -> int:
    """Run the process of a case; return its exit status, or the launcher's exit code for several processes."""
    if case.way == "threads":
        kill_some_time = partial(_kill_some_time, random.Random(case.seed).uniform(0, WINDOW), root / "begun")
        status = _forked(lambda: save_steps(case, root), kill_some_time if case.how == "time" else lambda pid: None)
        return os.waitstatus_to_exitcode(status)
    command = [
        mpiexec.find() or "mpiexec",
        "-n",
        str(case.ranks),
        sys.executable,
        __file__,
        json.dumps(asdict(case)),
        str(root),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    try:
        job.communicate(timeout=MPI_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, 9)
        job.communicate()
    return job.returncode


def rank_report(root: Path, rank: int) -> dict[str, Any] | None:
    """Return the report of a rank's process; None if it ended before."""
    path = root / f"told-{rank}.json"
    return json.loads(path.read_text()) if path.exists() else None


# ---- the verdict ---------------------------------------------------------------------------------------------------------------------


def holds(path: Path) -> int | str:
    """Return the step whose values a checkpoint contains completely, or its problem."""
    try:
        result = store.load(path)
        values = {name: result[name] for name in result}
    except CheckpointError as error:
        return f"{error}"
    expected = state(step := int(result.extra["step"]))
    same = {name for name in expected if name in values and values[name].tobytes() == expected[name].tobytes()}
    return step if same == set(expected) == set(values) else f"mixed: of step {step} {path} has only {sorted(same)}"


def verdict(case: Case, root: Path, saved: bool) -> list[str]:
    """Return the problems of the directory after the case; `saved` is True if the save reported success."""
    series = Series(root / "steps")
    problems = []
    if not case.swap:
        series.clean()
    new = series.path_of(NEW)
    legal = {NEW} if saved and case.replace else {OLD, NEW} if case.replace else {OLD}
    gone = case.prune and new.exists() and not series.path_of(OLD).exists()
    if not gone and (remaining := holds(series.path_of(OLD))) not in legal:
        problems.append(f"{'mixed' if 'mixed' in str(remaining) else 'lost'}: step 1 holds {remaining}")
    if not case.replace and new.exists() and (result := holds(new)) != NEW:
        problems.append(f"{'mixed' if 'mixed' in str(result) else 'broken'}: the new step can be seen, and holds {result}")
    if not case.replace and saved and not new.exists():
        problems.append("lost: saving said that the new step is complete, and it is not there")
    return problems + _next_start(series)


def _next_start(series: Series) -> list[str]:
    """Return the problems of the next start, which finds a checkpoint, cleans, and saves again."""
    problems = []
    series.clean()
    there = {entry.name for entry in series.directory.iterdir()}
    steps = {series.path_of(step).name for step in series.steps()}
    if there - steps:
        problems.append(f"debris: {sorted(there - steps)} remain after the next start")
    good = series.newest_good()
    if good.path is None or good.skipped:
        problems.append(f"lost: the next start finds {good}")
    again = series.path_of(NEW)
    try:
        store.save(again, state(NEW), {"step": NEW}, replace=again.exists())
    except CheckpointError as error:
        problems.append(f"stuck: saving again fails: {error}")
    if holds(again) != NEW:
        problems.append(f"stuck: saving again gives {holds(again)}")
    return problems


def kill(case: Case, template: Path, root: Path) -> tuple[bool, list[str]]:
    """Run a case in which a process is killed; return (the fault occurred, the problems).  `root` is created and removed."""
    shutil.copytree(template, root)
    try:
        code = run(case, root)
        reports = [report for rank in range(case.ranks) if (report := rank_report(root, rank)) is not None]
        if code == 0:
            return False, [f"{case}: the process was not killed"] if any(report["met"] for report in reports) else []
        problems = verdict(case, root, any(report["saved"] for report in reports))
        if case.way == "threads" and code != -9:
            problems.append(f"other: the process ended with {code}")
        return True, [f"{case} {problem}" for problem in problems]
    finally:
        shutil.rmtree(root)


def fail(case: Case, template: Path, root: Path) -> tuple[bool, list[str]]:
    """Run a case in which a change fails; return (the fault occurred, the problems).

    The save continues, or stops with one error; training continues.
    """
    shutil.copytree(template, root)
    try:
        code = run(case, root)
        reports = [report for rank in range(case.ranks) if (report := rank_report(root, rank)) is not None]
        if code or not reports:
            return True, [f"{case} other: the process ended with {code}"]
        if not any(report["met"] for report in reports):
            return False, []
        problems = [problem for report in reports for problem in _report_problems(case, report, target_of(root, case))]
        if len({report["error"] for report in reports}) > 1 or len(reports) != (case.ranks if case.way == "mpi" else 1):
            problems.append(f"error: ranks do not say the same: {[report['error'] for report in reports]}")
        series = Series(root / "steps")
        if holds(series.path_of(AFTER)) != AFTER:
            problems.append(f"stuck: the next saving gives {holds(series.path_of(AFTER))}")
        return True, [f"{case} {problem}" for problem in [*problems, *verdict(case, root, all(report["saved"] for report in reports))]]
    finally:
        shutil.rmtree(root)


def _report_problems(case: Case, report: dict[str, Any], target: Path) -> Iterator[str]:
    """Return True if the report is right: no error after a split write; after any other fault success, or one error that names the checkpoint."""
    if case.how == "short" and not report["saved"]:
        yield f"error: a short write is an error: {report['error']}"
    if not report["saved"] and str(target) not in report["error"]:
        yield f"error: it does not name the checkpoint: {report['error']!r}"
    if not report["saved"] and "is complete" not in report["error"] and not case.replace and target.exists():
        yield f"error: it says that nothing was changed, but the new step is there: {report['error']!r}"


def changes(case: Case, template: Path, root: Path) -> dict[int, list[str]]:
    """Return, by rank, the kinds of changes of a save without a fault."""
    shutil.copytree(template, root)
    try:
        code = run(replace(case, at=NEVER), root)
        reports = [report for rank in range(case.ranks) if (report := rank_report(root, rank)) is not None]
        if code or not reports:
            raise RuntimeError(f"{case}: saving without a fault ended with {code}")
        problems = verdict(case, root, True)
        if problems:
            raise RuntimeError(f"{case}: without a fault: {problems}")
        result: dict[int, list[str]] = {}
        for rank, what, _ in (change for report in reports for change in report["log"]):
            result.setdefault(rank, []).append(what)
        return result
    finally:
        shutil.rmtree(root)


def every(case: Case, created: dict[int, list[str]], hows: tuple[str, ...]) -> Iterator[Case]:
    """Yield the case with every fault at every change of every rank."""
    for rank, kinds in created.items():
        for at, kind in enumerate(kinds):
            for how in hows:
                if kind == "write" or how not in ("torn", "short", "partly"):
                    yield replace(case, victim=rank, at=at, how=how)


def sample(cases: list[Case], count: int, seed: int) -> list[Case]:
    """Return a seeded sample of the cases, with each kind of save and fault equally often; all if there are fewer."""
    source = random.Random(seed)
    source.shuffle(cases)
    by_kind: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        by_kind.setdefault((case.ranks, case.asynchronous, case.replace, case.swap, case.prune, case.how), []).append(case)
    groups = list(by_kind.values()) if count else []
    turns = [group[i] for i in range(max(map(len, groups), default=0)) for group in groups if i < len(group)]
    return [replace(case, seed=source.randrange(2**31)) for case in turns[:count]]


def processes(case: Case, created: dict[int, list[str]], hows: tuple[str, ...]) -> list[Case]:
    """Yield the same saves by ranks that are processes under mpiexec, which make the same changes as threads."""
    return list(every(replace(case, way="mpi"), created, hows)) if case.ranks > 1 and case.swap and not case.prune else []


if __name__ == "__main__":
    save_steps(Case(**json.loads(sys.argv[1])), Path(sys.argv[2]))
