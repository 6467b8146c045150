"""Attention's gradient where cuDNN has given NaN: rows whose logsumexp is -100, for key lengths around multiples of 128.

The public report is cudnn-frontend#628.  jobflow has no attention operation yet, so there is nothing to check.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("jobflow.ops.attention") is None:
    print("NOT THERE jobflow has no attention operation", flush=True)
else:
    raise SystemExit("jobflow has an attention operation: check its gradient here, at key lengths 64, 128, 192, 1000 and 1024")
