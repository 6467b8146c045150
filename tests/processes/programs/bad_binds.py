"""A job whose binding fails on its ranks for lack of memory, and which is then declared again with another shape and initial value."""

from __future__ import annotations

import sys

import numpy as np

import jobflow as flow
import jobflow.typing as tp

flow.config.cpu_device_num(int(sys.argv[1]))


@flow.global_function()
def before(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    return x + flow.get_variable("kept", shape=(2,), initializer=flow.constant_initializer(3.0))


@flow.global_function()
def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    w = flow.get_variable("w", shape=(4,), initializer=flow.constant_initializer(1.0))
    stored = flow.get_variable("kept", shape=(2,), initializer=flow.constant_initializer(4.0))
    return x + w + flow.math.reduce_sum(stored) + flow.math.reduce_sum(flow.constant(0.0, flow.float32, shape=(1 << 20, 1 << 20, 1 << 20)))


try:
    job(np.zeros(4, np.float32))
except flow.errors.JobflowError as error:
    print("refused:", "allocate" in str(error))
print(before(np.zeros(2, np.float32)).tolist())


def other() -> tp.Numpy:
    return flow.get_variable("w", shape=(3,), dtype=flow.float64, initializer=flow.constant_initializer(7.0))


other.__name__ = "job"
print(flow.global_function()(other)().tolist())
print({name: variable.numpy().tolist() for name, variable in flow.get_all_variables().items()})
