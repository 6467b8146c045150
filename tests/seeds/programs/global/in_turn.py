"""Programs one after another on the same ranks: `in_turn.py PROGRAM...`.

After each, every rank prints, as a Python literal: its rank, the program, and of every global tensor that the program names its sbp
and its values.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import jobflow as flow

for name in sys.argv[1:]:
    flow.manual_seed(7)
    found = runpy.run_path(str(Path(__file__).with_name(f"{name}.py")), run_name="__main__")
    tensors = {key: x for key, x in sorted(found.items()) if isinstance(x, flow.Tensor) and x.is_global}
    values = {key: (repr(x.sbp), x.numpy().tolist()) for key, x in tensors.items()}
    print((flow.env.get_rank(), name, values), flush=True)
