"""The program's arrays in modules that jobs call."""

from __future__ import annotations

from typing import Any

import numpy as np
from module_cases import Inputs, X, at_once, case

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn


@case
def arrays_of_the_program_are_constants() -> dict[str, Any]:
    """Create tensors from numbers and arrays in forward, or in the body itself; ranks may store shards of them."""

    class Scaled(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x - flow.tensor(X.mean(0))) * flow.as_tensor([1.0, 2, 3, 4, 5, 6]) + flow.tensor(X)[flow.tensor([7, 6, 5, 4, 3, 2, 1, 0])]

    model = Scaled()

    @flow.global_function()
    def job(x: Inputs) -> tp.Numpy:  # type: ignore[valid-type]
        return model(x) * flow.tensor([[1.0, 0, 1, 0, 1, 0]])

    np.testing.assert_allclose(job(X), at_once(model) * [1, 0, 1, 0, 1, 0], rtol=1e-6)
    return {"y": job(X)}
