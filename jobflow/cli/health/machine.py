"""Checks of Python, cores, memory, shared memory, and the disk for checkpoints."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from jobflow.cli.health.child import ask, probe
from jobflow.cli.health.finding import GIB, NOTE, OK, PROBLEM, Finding, judged
from jobflow.core.version import __version__
from jobflow.runtime.comm import shared_memory as shm
from jobflow.runtime.world.environment import usable_cores

#: bytes of shared memory: below the first MPI may crash, below the second ranks may exchange tensors by messages
SHARED_LEAST, SHARED_ENOUGH = 32 << 20, 1 * GIB
DISK_LEAST, DISK_ENOUGH = 1 * GIB, 10 * GIB
MEMORY_ENOUGH = 1 * GIB
#: seconds for a durable write of a small file above which a note is printed
SLOW_SYNC = 0.05
CONTROL_GROUPS, SYSTEM = Path("/sys/fs/cgroup"), Path("/sys/devices/system/cpu")


def python() -> Iterator[Finding]:
    """Report the version of the interpreter; pip has checked that it is supported."""
    yield Finding("Python", OK, f"{platform.python_version()} ({sys.executable})")


def job() -> Iterator[Finding]:
    """Compare a small training job on two threads with the same computation in NumPy."""
    answer, again = ask(probe("job")), "pip install --force-reinstall jobflow-sbp"
    if answer.failure:
        yield Finding("jobflow", PROBLEM, f"{__version__}: a small job failed: {answer.failure}", "install it again", again)
    else:
        yield Finding("jobflow", OK, f"{__version__}: a small job trained on 2 threads in {answer.data['seconds']:.2f} s, with correct results")


def cores() -> Iterator[Finding]:
    """Report the number of ranks that can have a separate core each."""
    there = os.cpu_count() or 1
    mine = usable_cores()
    real = whole(mine)
    total = f"{len(mine)} usable" + (f" of {there}" if there != len(mine) else "") + (f", threads of {real}" if real != len(mine) else "")
    total += f": at most {real} ranks have a separate core"
    allowed, busy = quota(), os.getloadavg()[0]
    limited = allowed is not None and allowed < real
    fix = f"run at most {max(1, int(allowed or 0))} ranks, or start the container with more cores"
    keeps = f"; other programs use them (load {busy:.1f}), so timings are slow now"
    yield judged(
        "cores",
        total,
        (limited, NOTE, f", but this container is limited to the time of {allowed or 0:g}", fix, ""),
        (busy > len(mine), NOTE, keeps, "", "uptime; top"),
    )


def whole(processors: set[int]) -> int:
    """Return the number of physical cores of these logical processors; the number of processors if the system does not list cores."""
    try:
        return len({(SYSTEM / f"cpu{number}" / "topology" / "thread_siblings_list").read_text() for number in processors})
    except OSError:
        return len(processors)


def quota() -> float | None:
    """Return the limit of a container's processor time in cores, or None without a limit."""
    with suppress(OSError, ValueError):
        most, period = (CONTROL_GROUPS / "cpu.max").read_text().split()
        return None if most == "max" else int(most) / int(period)
    with suppress(OSError, ValueError):
        most = (CONTROL_GROUPS / "cpu" / "cpu.cfs_quota_us").read_text()
        return int(most) / int((CONTROL_GROUPS / "cpu" / "cpu.cfs_period_us").read_text()) if int(most) > 0 else None
    return None


def memory() -> Iterator[Finding]:
    """Report the memory that is available to programs; less than MEMORY_ENOUGH is a note."""
    free = available()
    yield judged("memory", f"{free / GIB:.1f} GiB free", (free < MEMORY_ENOUGH, NOTE, "", "end other programs, or ask for more", ""))


def available() -> int:
    """Return the bytes of memory available on the machine, or in the container if its limit is lower."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no limit, or "max"
        limit = int((CONTROL_GROUPS / "memory.max").read_text())
        free = min(free, limit - int((CONTROL_GROUPS / "memory.current").read_text()))
    return free


def shared_memory() -> Iterator[Finding]:
    """Check the shared memory through which the ranks of a node exchange tensors."""
    if not os.path.isdir(shm.FOLDER):
        yield Finding("/dev/shm", NOTE, "missing; ranks share memory through a file in another folder")
        return
    size, free = shm.size(), shm.available()
    usable = min(free, shm.limit())
    limited = f", of which {shm.LIMIT} allows {usable / GIB:.2f} GiB" if usable < free else ""
    fix, command = "remove files of killed programs", "ls -la /dev/shm"
    if size < 2 * SHARED_ENOUGH:
        fix, command = "make it larger, as root; for a container: docker run --shm-size=8g", "mount -o remount,size=8g /dev/shm"
    if limited:
        fix, command = "set a larger limit, or none", f"unset {shm.LIMIT}"
    yield judged(
        "/dev/shm",
        f"{free / GIB:.2f} GiB free of {size / GIB:.2f}{limited}",
        (free < SHARED_LEAST, PROBLEM, ": MPI may not start", fix, command),
        (usable < SHARED_ENOUGH, NOTE, ": ranks with larger models exchange tensors by messages, which is slower", fix, command),
    )


def disk() -> Iterator[Finding]:
    """Check the disk of the working directory, to which a training writes checkpoints and reports."""
    here = Path.cwd()
    answer = ask(probe("disk"))
    if answer.failure:
        fix = 'start in a directory that can be written to, or set "output:" in the configuration'
        yield Finding("disk", PROBLEM, f"{here} cannot be written to: {answer.failure}", fix, f"df -h {here}; ls -ld {here}")
        return
    free, sync, rate = (answer.data[name] for name in ("free", "sync", "rate"))
    text = f"{free / GIB:.1f} GiB free in {here} ({answer.data['kind']}); a small file is durable after {1e3 * sync:.1f} ms, {rate / 1e6:.0f} MB/s"
    room, sizes = "free space, or set output: in the configuration", f"du -sh {here}/*"
    yield judged(
        "disk",
        text,
        (free < DISK_LEAST, PROBLEM, ": too little for checkpoints", room, sizes),
        (free < DISK_ENOUGH, NOTE, "", "keep few checkpoints (checkpoint.keep_last), or free space", sizes),
        (sync > SLOW_SYNC, NOTE, ": saving is slow", "set checkpoint.asynchronous: true, or save on a local disk", ""),
    )
