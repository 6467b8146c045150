"""A logger to MLflow, by the package mlflow-skinny: in the run's folder, or on the server that the user names."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobflow.core.extras import optional
from jobflow.trainer.experiment_logger import ExperimentLogger, parameters_of
from jobflow.trainer.training_run import TrainingRun

#: the folder in the run's output without a server
FOLDER = "mlruns"
#: maximum numbers of values and parameters in a message, and of characters of a parameter
MOST_VALUES, MOST_PARAMETERS, MOST_CHARACTERS = 1000, 100, 500


class MLflow(ExperimentLogger):
    """A callback that logs a run to MLflow.

    `uri` is a server or a database; the default is MLFLOW_TRACKING_URI, else the folder "mlruns" in the run's output.  `experiment` and `name`
    default to the name of the run.  A resumed run continues the same run of MLflow.
    """

    def __init__(self, uri: str | None = None, experiment: str | None = None, name: str | None = None, every: int = 10) -> None:
        super().__init__(every)
        self._uri, self._experiment, self._name = uri, experiment, name
        self._client: Any = None

    def on_start(self, run: TrainingRun) -> None:
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or (Path(run.output).resolve() / FOLDER).as_uri()
        # the package refuses folders and sends statistics about its use, unless the user decides otherwise
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        mlflow = optional("mlflow", "the callback MLflow")
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        if self.run_id is None:
            self.run_id = self._client.create_run(self._experiment_id(run), run_name=self._name or run.name).info.run_id
            parameters = [mlflow.entities.Param(key, value[:MOST_CHARACTERS]) for key, value in parameters_of(run).items()]
            for part in _parts(parameters, MOST_PARAMETERS):
                self._client.log_batch(self.run_id, params=part)
        else:
            self._client.update_run(self.run_id, status="RUNNING")

    def _experiment_id(self, run: TrainingRun) -> str:
        name = self._experiment or run.name
        experiment = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if experiment is None else experiment.experiment_id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        metric, now = optional("mlflow.entities", "the callback MLflow").Metric, int(time.time() * 1000)
        for part in _parts([metric(name, value, now, step) for name, value in values.items()], MOST_VALUES):
            self._client.log_batch(self.run_id, metrics=part)

    def close(self, ended: str, failed: bool) -> None:
        client, self._client = self._client, None
        if client is not None and self.run_id is not None:
            client.set_tag(self.run_id, "jobflow.ended", ended)
            client.set_terminated(self.run_id, "FAILED" if failed else "KILLED" if ended in ("interrupt", "terminated") else "FINISHED")


def _parts(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]
