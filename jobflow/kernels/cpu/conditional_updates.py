"""Guarded updates on CPUs: non-finite gradient elements are counted, and updates are skipped if the count is positive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array, bool_
from jobflow.kernels import registry
from jobflow.kernels.registry import implements
from jobflow.kernels.target import CPU
from jobflow.ops.guarded_update import CountNotFinite, GuardedUpdate
from jobflow.ops.op import Binder, Call


@implements(CountNotFinite)
def count(op: CountNotFinite, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (n,) = inputs, outputs
    finite = device.scratch(tuple(x.shape), bool_)
    return [(np.isfinite, (x, finite)), (_count_false, (finite, n))]


def _count_false(finite: Array, n: Array) -> None:
    n[0] = finite.size - np.count_nonzero(finite)


@implements(GuardedUpdate)
def guarded_calls(op: GuardedUpdate, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    *own, bad = inputs
    return [(_unless, (bad, registry.bind(op.op, CPU, device, own, outputs)))]


def _unless(bad: Array, calls: list[Call]) -> None:
    if not bad[0]:
        for function, arguments in calls:
            function(*arguments)
