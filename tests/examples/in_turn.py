"""Programs one after another in one process, or on one world of ranks: `in_turn.py '["PROGRAM", "OPTION", ...]' ...`."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import jobflow as flow

for command in sys.argv[1:]:
    program, *options = json.loads(command)
    sys.argv[:] = [program, *options]
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")
    if flow.env.get_rank() == 0:
        print(f"that was {command}", flush=True)
    flow.clear_default_session()
