"""A logger to Weights & Biases, by the package wandb: in files of the run's folder, unless the user configures another mode."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from jobflow.core.errors import ConfigError, user_line
from jobflow.core.extras import optional
from jobflow.trainer.experiment_logger import ExperimentLogger, parameters_of
from jobflow.trainer.training_run import TrainingRun

MODES = ("offline", "online", "shared", "disabled")
#: seconds in which the helper process ends by itself
PATIENCE = 10.0


class WandB(ExperimentLogger):
    """A callback that logs a run to Weights & Biases.

    `mode` defaults to WANDB_MODE, else to "offline": files in the folder "wandb" of the run's output, which `wandb sync` uploads.  A resumed run has
    the same id.  The helper process of the package ends with the run, also after an error.
    """

    def __init__(self, project: str | None = None, name: str | None = None, mode: str | None = None, every: int = 10) -> None:
        super().__init__(every)
        if mode is not None and mode not in MODES:
            raise ConfigError(f"WandB at {user_line()}: mode is {mode!r}; pass one of {', '.join(MODES)}")
        self._project, self._name, self._mode = project, name, mode
        self._run: Any = None
        self._helpers: list[psutil.Process] = []

    def on_start(self, run: TrainingRun) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # which sends reports about the package itself, also in the mode "offline"
        wandb = optional("wandb", "the callback WandB")
        mode = self._mode or os.environ.get("WANDB_MODE") or "offline"
        resumes, known = self.run_id is not None and mode != "offline", _children()
        self.run_id = self.run_id or uuid4().hex[:8]
        quiet = wandb.Settings(console="off", silent=mode == "offline", save_code=False, disable_git=True, x_disable_stats=True, x_disable_meta=True)
        run.output.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=self._project or run.name, name=self._name or run.name, id=self.run_id, resume="allow" if resumes else None,
                mode=mode, dir=str(run.output), config=parameters_of(run), settings=quiet,
            )  # fmt: skip
        finally:
            self._helpers = [process for process in _children() if process not in known and _is_helper(process)]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self, ended: str, failed: bool) -> None:
        run, self._run = self._run, None
        helpers, self._helpers = self._helpers, []
        try:
            if run is not None:
                run.summary["jobflow.ended"] = ended
                run.finish(exit_code=int(failed))
                optional("wandb", "the callback WandB").teardown()
        finally:
            _end(helpers)


def _children() -> list[psutil.Process]:
    return list(psutil.Process().children(recursive=True))


def _is_helper(process: psutil.Process) -> bool:
    """Return True for a process of the package wandb: its program wandb-core, or the command `wandb service`."""
    try:
        command = process.cmdline()
    except psutil.NoSuchProcess:
        return False
    return Path(next(iter(command), "")).name == "wandb-core" or {"wandb", "service"} <= {Path(part).name for part in command}


def _end(processes: list[psutil.Process]) -> None:
    """Wait for processes, and end those that remain after `PATIENCE` seconds."""
    _, left = psutil.wait_procs(processes, timeout=PATIENCE)
    for process in left:
        process.terminate()
    for process in psutil.wait_procs(left, timeout=PATIENCE)[1]:
        process.kill()
