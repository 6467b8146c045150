"""Train with a callback that raises at each event in turn, on several ranks; each rank prints its errors."""

from __future__ import annotations

import sys
from pathlib import Path

from jobflow.runtime.world.launched import launched
from jobflow.trainer import train
from jobflow.trainer.config import load
from jobflow.trainer.training_run import CallbackError

started = launched()
assert started is not None
for event in sys.argv[3:]:
    settings = f'callbacks=[{{callback: "stopping_callbacks:Raiser", arguments: {{event: "{event}"}}}}]'
    try:
        train(load(sys.argv[1], (f"output={Path(sys.argv[2]) / event.split()[-1]}", settings)))
    except CallbackError as error:
        print(f"{started.rank} {error}", flush=True)
