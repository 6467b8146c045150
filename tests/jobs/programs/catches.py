"""A program under mpiexec that catches everything around its job calls, in two sessions; only rank 0 continues after them."""

from __future__ import annotations

import numpy as np

import jobflow as flow
import jobflow.typing as tp

for session in (1, 2):
    flow.clear_default_session()
    try:

        @flow.global_function()
        def twice(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
            return x * 2

        print(session, twice(np.arange(4)).sum())
    except BaseException as error:  # noqa: BLE001 - on purpose
        print("caught", repr(error))
    finally:
        print("behind", session)
