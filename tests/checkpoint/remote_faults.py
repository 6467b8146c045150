"""Saves to a store that fails at any request, or whose client is killed: no complete checkpoint is lost, no incomplete one is read.

A case saves a new step, or replaces the newest one.  One request fails, or all from one on, or the client is killed there.  Then the store works
again.  The newest intact checkpoint must be the previous one, or the new one if the save reported success.  The next save must succeed and leave
nothing unfinished.

As a program under mpiexec, it runs the same cases with ranks that are processes.  Its argument is the URL of the store's server, whose failures
rank 0 controls.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crashing
import fsspec
import numpy as np
import s3fs
from crashing import Case, session_on, state
from s3_server import DEATHS, FAILURES, Store

from jobflow.core.errors import CheckpointError
from jobflow.data import open_reader
from jobflow.engine.session import Session
from jobflow.program.commands import ExchangeItems
from jobflow.storage import drafts, sessions, store
from jobflow.storage.remote import AnyPath, path_of
from jobflow.storage.series import Series

s3fs.S3FileSystem.retries = 1
ROOT = "s3://bucket/steps"


@dataclass(frozen=True)
class Strike:
    """A fault of a save at request `at`, or from that request on."""

    at: int = 0
    how: str = ""
    for_good: bool = False
    replaces: bool = False
    asynchronous: bool = False

    def __str__(self) -> str:
        when = "from request" if self.for_good else "at request"
        return f"[{'replacing' if self.replaces else 'new'}{', asynchronous' * self.asynchronous}: {self.how} {when} {self.at}]"


def series() -> Series:
    return Series(path_of(ROOT), keep_last=2)


def newest() -> int:
    return series().steps()[-1]


def save(session: Session, step: int, values: int, asynchronous: bool = False) -> str:
    """Save the values of another step under the name of this one; return the error, "" on success."""
    session.write(state(values))
    try:
        saving = series().save(session, step, {"step": values}, asynchronous=asynchronous)
        if asynchronous:
            session.write(state(99))
        saving.wait()
    except CheckpointError as error:
        return str(error)
    return ""


def begin(session: Session) -> None:
    """Save two intact steps."""
    for step in (1, 2):
        if text := save(session, step, step):
            raise RuntimeError(text)


def requests(session: Session, server: Store, strike: Strike) -> int:
    """Return the number of requests of a save without a fault."""
    last = newest()
    server.arm(0, "")
    text = save(session, last + (not strike.replaces), last + 1, strike.asynchronous)
    if text:
        raise RuntimeError(f"{strike}: without a fault: {text}")
    return len(server.disarm())


def attempt(session: Session, server: Store, strike: Strike) -> list[str]:
    """Return the problems after a save with a fault, and of the next save."""
    last, before = sessions.on_first(session, newest_step)
    values = 1000 + last
    sessions.on_first(session, lambda: server.arm(strike.at, strike.how, strike.for_good))
    output = save(session, last + (not strike.replaces), values, strike.asynchronous)
    sessions.on_first(session, server.disarm)
    problems = sessions.on_first(session, lambda: list(verdict(before, values, output)))
    alike = session.world.call(ExchangeItems(output)) if session.world.multi else [output]
    if len(set(alike)) > 1:
        problems.append(f"other: ranks do not say the same: {alike}")
    return [f"{strike} {problem}" for problem in (*problems, *goes_on(session, last + 2))]


def newest_step() -> tuple[int, Any]:
    """Return the newest step and its contents."""
    last = newest()
    return last, glance(series().path_of(last))


def glance(path: AnyPath) -> Any:
    """Return the step whose values a checkpoint contains, by one of its tensors."""
    result = store.load(path)
    step = int(result.extra["step"])
    return step if result["rows"].tobytes() == state(step)["rows"].tobytes() else f"mixed: {path} says it is of step {step}"


def verdict(before: Any, values: int, output: str | None) -> Iterator[str]:
    """Return the problems after `values` replaced those `before`; `told` is the report of the save, None if it was killed."""
    result = series().newest_good()
    there = None if result.path is None else glance(result.path)
    complete = output == "" or (output is not None and "is complete, but" in output)
    if there not in (before, values) or (complete and there != values):
        yield f"{'mixed' if 'mixed' in str(there) else 'lost'}: the newest holds {there}, and {values} was saved over {before}: {output!r}"
    if output is not None and not complete and there == values and "nobody knows" not in output:
        yield f"other: it says that nothing was saved, and it was: {output!r}"
    if output and ROOT not in output:
        yield f"other: the error does not name the checkpoint: {output!r}"
    if any("manifest.json is missing" not in skipped.reason for skipped in result.skipped):
        yield f"broken: {result.skipped}"


def goes_on(session: Session, step: int) -> list[str]:
    """Return the problems of the next save, which must leave nothing unfinished."""
    text = save(session, step, step)
    left = sessions.on_first(session, lambda: [newest() == step and glance(series().path_of(step)), *drafts.unfinished_in(path_of(ROOT))])
    return [f"stuck: the next saving says {text!r}, and there is {left}"] if text or left != [step] else []


def killed(server: Store, strike: Strike) -> list[str]:
    """Return the problems after a save whose process is killed, and of the next one.

    This process sends no requests to the store, so that it can be forked.
    """
    case = Case(ranks=2)
    last, before = result_in_child(newest_step)
    values = 1000 + last

    def work() -> None:
        with session_on(case) as session:
            server.arm(strike.at, strike.how, pid=os.getpid())
            save(session, last + (not strike.replaces), values, strike.asynchronous)

    def after() -> list[str]:
        problems = list(verdict(before, values, None))
        with session_on(case) as session:
            return problems + goes_on(session, last + 2)

    code = crashing.in_child(work)  # 0 if it asked less often this time whether the others are done, so that it never came so far
    server.disarm()
    problems: list[str] = result_in_child(after)
    return [f"{strike} {problem}" for problem in (*problems, *([] if code in (-9, 0) else [f"other: the process ended with {code}"]))]


def result_in_child(work: Callable[[], Any]) -> Any:
    """Return the result of a call in a child process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "told"
        if crashing.in_child(lambda: path.write_bytes(pickle.dumps(work()))) != 0:
            raise RuntimeError("the process that should tell failed")
        return pickle.loads(path.read_bytes())


def strikes(count: dict[tuple[bool, bool], int], hows: tuple[str, ...], seed: int, most: int) -> list[Strike]:
    """Return a sample of faults, with each failure and each kind of save equally often."""
    source = random.Random(seed)
    result = [
        Strike(at, how, for_good, replaces, asynchronous)
        for (replaces, asynchronous), requests in count.items()
        for at in range(1, requests + 1)
        for how in hows
        for for_good in ((False, True) if hows is FAILURES else (False,))
    ]
    source.shuffle(result)
    groups: dict[Any, list[Strike]] = {}
    for strike in result:
        groups.setdefault((strike.how, strike.for_good, strike.replaces), []).append(strike)
    turns = [group[i] for i in range(max(map(len, groups.values()))) for group in groups.values() if i < len(group)]
    return turns[: most or None]


WAYS = [(False, False), (True, True), (True, False), (False, True)]


def sweep(server: Store, most: int, seed: int) -> tuple[int, list[str]]:
    """Return the number of tried failures and their problems; try all if `most` is 0."""
    with session_on(Case(ranks=2)) as session:
        begin(session)
        count = {way: requests(session, server, Strike(replaces=way[0], asynchronous=way[1])) for way in WAYS}
        tried = strikes(count, FAILURES, seed, most)
        return len(tried), [problem for strike in tried for problem in attempt(session, server, strike)]


def kills(server: Store, most: int, seed: int) -> tuple[int, list[str]]:
    """Return the same for killed clients."""

    def count() -> list[int]:
        with session_on(Case(ranks=2)) as session:
            begin(session)
            return [requests(session, server, Strike(replaces=replaces, asynchronous=asynchronous)) for replaces, asynchronous in WAYS]

    tried = strikes(dict(zip(WAYS, result_in_child(count), strict=True)), DEATHS, seed, most)
    return len(tried), [problem for strike in tried for problem in killed(server, strike)]


def main() -> None:
    """Run one of two processes."""
    server = Store(sys.argv[1])
    with session_on(Case(ranks=2, way="mpi")) as session:
        begin(session)
        problem = refused(session)
        tried = [Strike(4, "lost", True), Strike(9, "denied", replaces=True, asynchronous=True)]
        problems = [problem for strike in tried for problem in attempt(session, server, strike)]
        result = sessions.load(session, sessions.on_first(session, series().newest_good).path)
        problems += sessions.on_first(session, lambda: uploads_in_parts(server))
    print(json.dumps([result["step"], problem, read(), *problems]), flush=True)


def uploads_in_parts(server: Store) -> list[str]:
    """Return the problems of large files, which are sent in several requests: a file exists only if all were answered."""
    fsspec.config.conf["s3"] = {"default_block_size": 5 * 2**20}  # the least that S3 takes
    large, target = {"w": np.arange(17 * 2**18, dtype=np.float32)}, path_of("s3://bucket/large")
    store.save(target, large)
    server.arm(0, "")
    store.save(target, large, replace=True)
    log = server.disarm()
    if sum("partNumber" in output for output in log) != 2 or not np.array_equal(store.load(target)["w"], large["w"]):
        return [f"other: it was not saved in 2 parts: {log}"]
    begins = next(i for i, output in enumerate(log, 1) if "uploads" in output)
    problems = []
    for at in range(begins, begins + 4):  # the upload begins, two parts, it is completed
        server.arm(at, "denied", for_good=False)
        try:
            store.save(target, {"w": large["w"] + 1}, replace=True)
            problems.append(f"lost: request {at} was denied, and nothing is said: {log}")
        except CheckpointError as error:
            if "nothing was changed" not in str(error) or np.any(store.load(target)["w"] != large["w"]):
                problems.append(f"mixed: request {at} of {log} was denied: {error}")
        again = server.disarm()
        if at > begins and not any(output.startswith("DELETE") and "uploadId" in output for output in again):
            problems.append(f"stuck: the parts of an upload that was given up stay in the store: {again}")
    return problems


def refused(session: Session) -> str:
    """Return the error for a store that is private to each process."""
    try:
        sessions.save(session, "memory://steps/1")
    except CheckpointError as error:
        return str(error)
    return ""


def read() -> list[float]:
    """Read data from the store on both ranks, through one local copy."""
    samples = open_reader("numpy", path="s3://bucket/data/x.npy")
    return [float(value) for value in samples.read([2, 0])["x"]]


if __name__ == "__main__":
    main()
