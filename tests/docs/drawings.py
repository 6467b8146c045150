"""The tensor of the drawings of layouts, and the ranks that store it."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobflow.core.layout import B, P, Placement, S

Array = np.ndarray[Any, Any]
X = np.arange(16).reshape(4, 4)
#: x = A @ W: each rank multiplies a column of A by a row of W, and the addends of the two ranks are partial sums
A, W = np.array([[i, 1] for i in range(4)]), np.array([[4, 4, 4, 4], [0, 1, 2, 3]])
NAMES = {S(0): "split(0)", S(1): "split(1)", B: "broadcast", P: "partial_sum"}
TWO, FOUR = Placement("cpu", (0, 1)), Placement("cpu", (0, 1, 2, 3), (2, 2))
