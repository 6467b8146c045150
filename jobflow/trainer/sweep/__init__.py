"""Sweeps: several trainings of a configuration with other values, each a run in a folder of its own.

    result = run_sweep("run.yaml", ["sweep.values={optimizer.lr: [0.001, 0.003]}"])
    result.best.trial.values, result.best.value

trials             the section `sweep` -> trials: values, folder names, checked configurations
tpe                values of the next trial from the values and metrics of earlier trials, by Optuna
trial_results      the state of a sweep in its folder: sweep.json, sweep.csv and the table
sequential_trials  trials in sequence in this process, on all ranks
parallel_trials    several trials at once, each in a process
"""

from jobflow.trainer.sweep.sequential_trials import run_sweep
from jobflow.trainer.sweep.trial_results import Result, SweepResult
from jobflow.trainer.sweep.trials import Trial

__all__ = ["Result", "SweepResult", "Trial", "run_sweep"]
