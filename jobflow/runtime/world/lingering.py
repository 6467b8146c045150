"""The time between the end of a rank's main thread and the end of its process.

Other Python threads and child processes of the program run in that time, and the process ends after them.  They may call jobs.  If they
communicate with no other rank, ranks that wait for this one would wait forever.  So this rank ends the job after JOBFLOW_JOIN_SECONDS.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from jobflow.core.errors import NOWHERE, JobError, line_of
from jobflow.core.notices import notice
from jobflow.runtime.comm.waits import headline, listed
from jobflow.runtime.thread_start import start_thread
from jobflow.runtime.world import launched as launch
from jobflow.runtime.world import monitor
from jobflow.runtime.world.rank_authentication import longest_wait

#: seconds between polls for ranks that wait for this one
POLL = 0.2

#: Returns the operation of each rank that waits for this one; None if this rank has communicated after the end of its main thread.
Awaited: TypeAlias = Callable[[], Mapping[int, str] | None]


class _State:
    #: set when the process ends
    ended = threading.Event()
    thread: threading.Thread | None = None


def install(started: launch.Launch, awaited: Callable[[], Awaited]) -> None:
    """Install the monitoring that begins when the main thread ends; `awaited()` is then called once, to create the check for waiting ranks."""
    pid, shutdown = os.getpid(), threading._shutdown  # type: ignore[attr-defined]

    def main_has_ended() -> None:
        """Start `_watch` if threads or child processes still run, and then wait for all threads as the interpreter does."""
        try:
            if os.getpid() == pid and (remaining := _remaining()):
                _State.thread = start_thread(lambda: _watch(started, remaining, awaited()), "jobflow end of the main thread")
        finally:
            shutdown()

    threading._shutdown = main_has_ended  # type: ignore[attr-defined]


def close() -> None:
    """Stop the monitoring thread, if there is one, and wait until it has exited."""
    _State.ended.set()
    if _State.thread is not None:
        _State.thread.join()


def _remaining() -> str:
    """Return the name of a thread or child process that delays the end of this process; "" if there is none."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            line = line_of(sys._current_frames().get(thread.ident or 0))
            return f"thread {thread.name!r}{'' if line is NOWHERE else f' at {line}'}"
    processes = sys.modules.get("multiprocessing.process")
    children = [child for child in processes.active_children() if not child.daemon] if processes is not None else []
    return f"child process {children[0].name!r}" if children else ""


def _watch(started: launch.Launch, remaining: str, awaited: Awaited) -> None:
    """End the job if other ranks wait for this rank longer than the time limit.

    `remaining` names a thread or child process that still runs.  If `awaited()` returns None, this rank is active, and the function returns.
    """
    longest, since, announced = longest_wait(), float("inf"), False
    launch.announce_lingering(longest, remaining)
    while not _State.ended.wait(POLL):
        waiting = awaited()
        if waiting is None:
            return
        since = min(since, time.monotonic()) if waiting else float("inf")
        waited = time.monotonic() - since
        if waited < min(longest, monitor.PATIENCE):
            continue
        text = monitor.lingering_text(remaining, listed(sorted(waiting)), waited, headline(waiting[min(waiting)]))
        if waited >= longest:
            launch.end_job(JobError(text), started, text)
        if not announced:
            announced = True
            notice(f"rank {started.rank}: {text}; the job ends after {longest:g} s")
