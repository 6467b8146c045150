"""Start of threads. Without address space, `threading.Thread.start` fails, or waits forever for a thread that died before it began."""

from __future__ import annotations

import mmap
import resource
import threading
from collections.abc import Callable

from jobflow.core.errors import JobError, user_line

#: bytes of address space that a thread needs in addition to its stack: a memory arena of Python and the frames of its first calls
ROOM = 4 << 20
#: bytes of the stack where RLIMIT_STACK sets no limit
STACK = 8 << 20


def start_thread(work: Callable[[], object], name: str, *, daemon: bool = True) -> threading.Thread:
    """Start a thread that calls `work`; raise JobError if the system has no thread or no memory for it."""
    check_space(f"start of thread {name!r}", _stack() + ROOM)
    try:
        thread = threading.Thread(target=work, name=name, daemon=daemon)
        thread.start()
    except RuntimeError as error:
        processes = _limit(resource.RLIMIT_NPROC)
        raise JobError(
            f"start of thread {name!r} at {user_line()}: {error}: the system allows no further thread ({processes} processes and threads of this "
            f"user); raise the limit (ulimit -u, or pids.max of the container), or start fewer ranks and readers"
        ) from None
    return thread


def check_space(operation: str, needed: int) -> None:
    """Raise JobError unless the process can map `needed` more bytes of address space."""
    try:
        mmap.mmap(-1, needed, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        raise JobError(f"{operation} at {user_line()}: it needs {needed >> 20} MiB of address space, but {address_space()}") from None


def address_space() -> str:
    """Return the message that the address space is used up, or the memory if the address space has no limit, with advice."""
    if not has_limit():
        return "the system has no memory left for the process; end other programs, use smaller batches, or start fewer ranks and readers"
    limit = _limit(resource.RLIMIT_AS, 20, " MiB")
    return (
        f"the address space of the process is used up ({limit}); raise the limit (ulimit -v), use smaller batches, or start fewer ranks and readers"
    )


def has_limit() -> bool:
    """Return True if the address space of this process has a limit."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _stack() -> int:
    """Return the bytes of address space that the stack of a new thread needs."""
    most, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return threading.stack_size() or (STACK if most == resource.RLIM_INFINITY else most)


def _limit(kind: int, shift: int = 0, unit: str = "") -> str:
    """Return the limit of the resource `kind` as text, such as "limit 512 MiB" or "no limit".

    The limit is shifted right by `shift` bits, and followed by `unit`.
    """
    most, _ = resource.getrlimit(kind)
    return "no limit" if most == resource.RLIM_INFINITY else f"limit {most >> shift}{unit}"
