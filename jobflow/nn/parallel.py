"""Data parallel training of local modules: every rank has the whole module and a part of the batch.

Gradients are averaged over all ranks while the backward pass runs.

Parameters are put in buckets in the order in which their gradients come, last parameters first.  The ranks average a bucket when
the next one is complete: by then the others have usually come as far, so that nobody waits.  (A rank has one core: more than waiting
cannot be hidden.)  All ranks go through the buckets in one order, whatever they compute in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import JobError, user_line
from jobflow.core.layout import SUM
from jobflow.eager.collectives import reduced, spread
from jobflow.eager.state import EagerState, state
from jobflow.eager.tensor import Tensor, own


class _Bucket:
    """Parameters of one element type whose gradients travel together."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.missing = {id(p) for p in parameters}

    def average(self, here: EagerState) -> None:
        """Every gradient becomes the mean of the ranks'; a rank that has none gives zeros."""
        flat = np.concatenate([_gradient(p).reshape(-1) for p in self.parameters])
        total = reduced(here, flat, SUM, "the gradients of DistributedDataParallel")
        at = 0
        for p in self.parameters:
            part = total[at : at + p.type.size].reshape(p.type.shape)
            at += p.type.size
            if p._gradient is None:
                p._gradient = Tensor(p.type, None, np.empty(p.type.shape, p.type.dtype.numpy))
            np.divide(part, here.rank.size, out=p._gradient.array)
            p._gradient.wrote()
        self.missing = {id(p) for p in self.parameters}


def _gradient(p: Tensor) -> np.ndarray[Any, Any]:
    return np.zeros(p.type.shape, p.type.dtype.numpy) if p._gradient is None else p._gradient.array


class _Averaging:
    """The buckets of one module, and how far the backward pass that runs has come."""

    def __init__(self, parameters: Sequence[Tensor], bucket_size: int) -> None:
        self.buckets: list[_Bucket] = []
        self.done = 0
        self.begun = False
        run: list[Tensor] = []
        for p in reversed(parameters):
            if run and (len(run) == bucket_size or run[0].type.dtype is not p.type.dtype):
                self.buckets.append(_Bucket(run))
                run = []
            run.append(p)
        if run:
            self.buckets.append(_Bucket(run))
        self.bucket_of = {id(p): bucket for bucket in self.buckets for p in bucket.parameters}

    def watch(self) -> None:
        """Be told of every gradient."""
        for bucket in self.buckets:
            for p in bucket.parameters:
                p.hooks = {**(p.hooks or {}), id(self): self._taking(p)}

    def _taking(self, p: Tensor) -> Any:
        def take(gradient: Tensor) -> None:
            here = state()
            if not self.begun:
                self.begun = True
                here.own.after_backward.append(self.finish)
            self._average_complete(here)  # those before this gradient, which is not yet in place
            self.bucket_of[id(p)].missing.discard(id(p))

        return take

    def _average_complete(self, here: EagerState) -> None:
        """The buckets that are complete, in order, up to the first that is not."""
        while self.done < len(self.buckets) and not self.buckets[self.done].missing:
            self.buckets[self.done].average(here)
            self.done += 1

    def finish(self) -> None:
        """What is left, at the end of the backward pass."""
        here = state()
        for bucket in self.buckets[self.done :]:
            bucket.average(here)
        self.done, self.begun = 0, False


def DistributedDataParallel(module: Any, *, broadcast_buffers: bool = True, broadcast_parameters: bool = True, bucket_size: int = 10) -> Any:
    """`module`, whose gradients are from now on averaged over all ranks; `bucket_size` parameters travel together.

    Its parameters and buffers take the values they have on rank 0, buffers again before every call of the module in training.
    Raises: JobError for a module with global tensors, whose layouts say how they are parallel.
    """
    here = state()
    parameters = [p for p in module.parameters() if p._needs_gradient]
    for name, p in module.named_parameters():
        if p.layout is not None:
            raise JobError(
                f"DistributedDataParallel at {user_line()}: parameter {name} is global ({p.layout}); global modules are parallel by "
                f"themselves: omit DistributedDataParallel, or use local parameters"
            )
    if here.rank.size > 1:
        if broadcast_parameters:
            _take_over(here, module.parameters(), "the parameters of DistributedDataParallel")
        _Averaging(parameters, bucket_size).watch()
        buffers = list(module.buffers())
        if broadcast_buffers and buffers:
            _take_over(here, buffers, "the buffers of DistributedDataParallel")
            module.register_forward_pre_hook(lambda m, _: _take_over(here, m.buffers(), "buffers of a module") if m.training else None)
    return module


def _take_over(here: EagerState, tensors: Any, what: str) -> None:
    """The values of rank 0."""
    for x in tensors:
        own(x)[...] = spread(here, x.array, 0, what)
        x.wrote()
