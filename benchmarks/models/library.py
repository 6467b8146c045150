"""The library that a benchmark model runs on: every model is one source, in names that jobflow and PyTorch have in common.

BENCHMARK_LIBRARY=torch python ...     # PyTorch; otherwise jobflow
"""

from __future__ import annotations

import os
from typing import Any

flow: Any
if os.environ.get("BENCHMARK_LIBRARY") == "torch":
    import torch as flow
    import torch.nn.functional as F
    from torch import nn
else:
    import jobflow as flow
    import jobflow.nn.functional as F
    from jobflow import nn

__all__ = ["F", "flow", "nn"]
