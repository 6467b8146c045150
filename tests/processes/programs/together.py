"""Python threads that begin at the same moment, and switch as often as possible."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def at_once(count: int, work: Callable[[int], None], names: Callable[[int], str] = "worker {}".format) -> None:
    """Call `work(number)` in `count` threads, and raise the first error of any of them."""
    sys.setswitchinterval(1e-6)
    start = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), name=names(number)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
