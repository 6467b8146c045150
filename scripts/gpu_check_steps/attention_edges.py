"""Attention gradients with logsumexp -100 at key lengths near multiples of 128 (NaN in cudnn-frontend#628).

jobflow has no attention operation yet, so there is nothing to check.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("jobflow.ops.attention") is None:
    print("NOT THERE jobflow has no attention operation", flush=True)
else:
    raise SystemExit("jobflow has an attention operation: check its gradient here, at key lengths 64, 128, 192, 1000 and 1024")
