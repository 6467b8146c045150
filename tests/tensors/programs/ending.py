"""Two ranks, one of which ends or falls behind: `ending.py CASE`, with any launcher."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import jobflow as flow
from jobflow import nn
from jobflow.runtime.comm import message_queue
from jobflow.tensors.state import state

ME = state().rank.index
P = flow.placement("cpu", [0, 1])
x = flow.ones(4, 4, placement=P, sbp=flow.sbp.split(0))
x.numpy()


def accident() -> None:
    """Print the time of the event that must end the job."""
    print(f"accident {time.time()}", file=sys.stderr, flush=True)


class Broken(nn.Graph):
    def build(self, value: Any) -> Any:
        if ME == 1:
            accident()
            raise ValueError("no luck with 41")
        return value.sum().to_global(sbp=flow.sbp.broadcast)


def error() -> None:
    """Rank 1 raises while rank 0 is in numpy()."""
    if ME == 1:
        accident()
        raise ValueError("no luck with 41")
    x.numpy()


def exits() -> None:
    if ME == 1:
        accident()
        sys.exit(0)
    x.numpy()


def item_alone() -> None:
    """Rank 0 calls item(), and no communication follows."""
    accident()
    if ME == 0:
        x.sum().item()


def print_alone() -> None:
    accident()
    if ME == 1:
        print(x)


def numpy_alone() -> None:
    """Rank 0 calls numpy(), then both ranks communicate."""
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
    """Rank 1 is late, by the scaled equivalent of ten seconds."""
    message_queue.PATIENCE = 0.3
    if ME == 1:
        time.sleep(0.8)
    print(float(x.sum()), flush=True)


globals()[sys.argv[1]]()
