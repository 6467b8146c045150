"""Two ranks of which one ends, or falls behind: `ending.py CASE`; however they were started."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import jobflow as flow
from jobflow import nn
from jobflow.eager.state import state
from jobflow.runtime.comm import message_queue

ME = state().rank.index
P = flow.placement("cpu", [0, 1])
x = flow.ones(4, 4, placement=P, sbp=flow.sbp.split(0))
x.numpy()


def accident() -> None:
    """Say when what must end the job happens."""
    print(f"accident {time.time()}", file=sys.stderr, flush=True)


class Broken(nn.Graph):
    def build(self, given: Any) -> Any:
        if ME == 1:
            accident()
            raise ValueError("no luck with 41")
        return given.sum().to_global(sbp=flow.sbp.broadcast)


def error() -> None:
    """Rank 1 raises while rank 0 is in numpy()."""
    if ME == 1:
        accident()
        raise ValueError("no luck with 41")
    x.numpy()


def leave() -> None:
    if ME == 1:
        accident()
        sys.exit(0)
    x.numpy()


def item_alone() -> None:
    """Rank 0 asks for a number, and nothing comes after."""
    accident()
    if ME == 0:
        x.sum().item()


def print_alone() -> None:
    accident()
    if ME == 1:
        print(x)


def numpy_alone() -> None:
    """Rank 0 asks for numbers, then both communicate."""
    accident()
    if ME == 0:
        x.numpy()
    (x + 1).to_global(sbp=flow.sbp.broadcast)


def build() -> None:
    Broken()(x)


def kill() -> None:
    if ME == 1:
        accident()
        os.kill(os.getpid(), signal.SIGKILL)
    x.numpy()


def slow() -> None:
    """Rank 1 comes late; as late as ten seconds would be in life."""
    message_queue.PATIENCE = 0.3
    if ME == 1:
        time.sleep(0.8)
    print(float(x.sum()), flush=True)


globals()[sys.argv[1]]()
