"""`flow.model`: a model that defines a training step and a validation step, and a loop that runs them as jobs.

class Classifier(flow.model.Model):
    def forward(self, images): ...
    def training_step(self, batch):
        images, labels = batch
        return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, self(images))
    def configure_optimizers(self):
        return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0)

training = flow.model.TrainingConfig()
training.config_data(Batches())              # a NumpyDataModule: forward(step) returns a tuple of arrays
Classifier().fit(training, callbacks=[Losses()], max_steps=20)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.core.types import dtype_of
from jobflow.engine.job_config import ExecutionConfig
from jobflow.legacy.declare import global_function
from jobflow.nn.modules.module import Module
from jobflow.storage import session_variables as stored
from jobflow.typing import Numpy

__all__ = ["Callback", "CheckpointConfig", "DataModule", "Model", "NumpyDataModule", "TrainingConfig", "ValidationConfig"]


class DataModule(Module):
    """A source of batches for the body of a job: `forward(step_idx, optimizer_idx)` returns a tuple of tensors.

    `step_idx` is always 0, because the job is not traced again for each step.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, step_idx: int = 0, optimizer_idx: int = 0) -> Any:
        """Return a batch as a tuple of tensors; subclasses must define this method."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *arguments: Any) -> Any:
        return self.forward(*arguments)


class NumpyDataModule(DataModule):
    """A source of array batches: `forward(step_idx, optimizer_idx)` returns a tuple of arrays with the same shapes and types at each step."""

    def batch(self, step: int, optimizer: int) -> tuple[Any, ...]:
        """Return the batch of a step; raise ArgumentError if `forward` does not return a tuple of at least one array."""
        arrays = self.forward(step, optimizer)
        if not isinstance(arrays, tuple) or not arrays or not all(isinstance(array, np.ndarray) for array in arrays):
            raise ArgumentError(f"{type(self).__name__}.forward at {user_line()} returned {type(arrays).__name__}; return a tuple of NumPy arrays")
        return arrays


class TrainingConfig:
    """The training data of a model and the configuration of its jobs."""

    def __init__(self) -> None:
        self.exe_cfg = ExecutionConfig()
        self.data: DataModule | None = None

    def config_execution(self, exe_cfg: ExecutionConfig) -> None:
        """Set the configuration of the jobs; the default is `ExecutionConfig()`."""
        self.exe_cfg = exe_cfg

    def config_data(self, data: DataModule) -> None:
        """Set the source of batches; raise ArgumentError unless `data` is a DataModule."""
        if not isinstance(data, DataModule):
            raise ArgumentError(
                f"{type(self).__name__}.config_data at {user_line()}: data is {data!r}; pass a model.DataModule or a model.NumpyDataModule"
            )
        self.data = data


class ValidationConfig(TrainingConfig):
    """The data and jobs of validation, which runs one step after every `step_interval` training steps, by default 10."""

    def __init__(self) -> None:
        super().__init__()
        self.step_interval = 10

    def config_step_interval(self, step_interval: int = 1) -> None:
        """Set the number of training steps per validation step; raise ArgumentError unless `step_interval` is an int of at least 1."""
        self.step_interval = _interval("ValidationConfig.config_step_interval", step_interval)


class CheckpointConfig:
    """The checkpoint that `fit` loads first, and the interval at which `fit` saves checkpoints named `<dirpath>-<step>`.

    By default `fit` neither loads nor saves.
    """

    def __init__(self) -> None:
        self.load_dirpath: str | None = None
        self.save_dirpath: str | None = None
        self.save_interval = 1

    def config_load(self, dirpath: str) -> None:
        """Set the checkpoint that `fit` loads before the first step."""
        self.load_dirpath = dirpath

    def config_save(self, dirpath: str, step_interval: int = 1) -> None:
        """Set the path prefix of saved checkpoints, and the number of steps between two checkpoints.

        Raises: ArgumentError unless `step_interval` is an int of at least 1.
        """
        self.save_dirpath, self.save_interval = dirpath, _interval("CheckpointConfig.config_save", step_interval)


def _interval(what: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise ArgumentError(f"{what} at {user_line()}: step_interval is {value!r}; pass an int of at least 1")
    return value


class Callback:
    """A receiver of the results of each step; subclasses override its methods, which do nothing.

    The results are nested like the return value of the step, with arrays in place of tensors.
    """

    def on_training_step_end(self, outputs: Any, step_idx: int, optimizer_idx: int) -> None:
        """Handle the results of a training step of one optimizer."""

    def on_validation_step_end(self, outputs: Any, step_idx: int) -> None:
        """Handle the results of a validation step."""


class Model(Module):
    """A model trained by `fit`; its parameters belong to its modules, or to `flow.layers` called in `forward`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the model's outputs from arguments that the subclass chooses; subclasses must define this method."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def training_step(self, batch: Any, optimizer_idx: int = 0) -> Any:
        """Return the loss of a batch, or a tuple whose first entry is the loss.  Models with one optimizer may omit `optimizer_idx`."""
        raise NotImplementedError(f"{type(self).__name__} has no training_step")

    def validation_step(self, batch: Any) -> Any:
        """Return any results for a validation batch; callbacks receive the results as arrays."""
        raise NotImplementedError(f"{type(self).__name__} has no validation_step")

    def configure_optimizers(self) -> Any:
        """Return an optimizer of `flow.optimizer`, or a list of optimizers, each with a separate training step."""
        raise NotImplementedError(f"{type(self).__name__} has no configure_optimizers")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(True for _ in self.children()) or any(True for _ in self.parameters()):
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)  # calls job functions

    def fit(
        self,
        training_config: TrainingConfig | None = None,
        validation_config: ValidationConfig | None = None,
        checkpoint_config: CheckpointConfig | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        max_steps: int = 100,
    ) -> None:
        """Train for `max_steps` steps with the configured validation and checkpoints.  Without `training_config`, validate only.

        Raises: JobError without `training_config` and `validation_config`, or if one of them has no data.
        """
        described = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
        train = () if training_config is None else _steps(self, training_config, self._optimizers())
        validate = () if validation_config is None else _steps(self, validation_config, [None])
        if not train and not validate:
            raise JobError(f"{type(self).__name__}.fit at {user_line()}: neither training_config nor validation_config was passed; pass one of them")
        saves = checkpoint_config or CheckpointConfig()
        if saves.load_dirpath is not None:
            self.load_checkpoint(saves.load_dirpath)
        for step in range(max_steps):
            for optimizer, run in enumerate(train):
                outputs = run(step)
                for each in described:
                    each.on_training_step_end(outputs, step, optimizer)
            if validation_config is not None and (step + 1) % validation_config.step_interval == 0:
                outputs = validate[0](step)
                for each in described:
                    each.on_validation_step_end(outputs, step)
            if saves.save_dirpath is not None and (step + 1) % saves.save_interval == 0:
                self.save_checkpoint(f"{saves.save_dirpath}-{step}")

    def _optimizers(self) -> list[Any]:
        selected = self.configure_optimizers()
        optimizers = list(selected) if isinstance(selected, list | tuple) else [selected]
        for optimizer in optimizers:
            if not hasattr(optimizer, "minimize"):
                raise ArgumentError(
                    f"{type(self).__name__}.configure_optimizers returned {optimizer!r}; return an optimizer of flow.optimizer, or a list"
                )
        return optimizers

    def load_checkpoint(self, dirpath: str) -> None:
        """Set the variables of all jobs from the checkpoint `dirpath`, including train steps and optimizer slots."""
        stored.restore(dirpath)

    def save_checkpoint(self, dirpath: str) -> None:
        """Save the variables of all jobs as the checkpoint `dirpath`."""
        stored.save(dirpath)


def _steps(model: Model, config: TrainingConfig, optimizers: Iterable[Any]) -> tuple[Callable[[int], Any], ...]:
    """Return one function per entry of `optimizers`; each function takes a step number, runs the step, and returns its results.

    An entry None stands for a validation step. Raises: JobError if `config` has no data.
    """
    what = f"{type(model).__name__}.fit at {user_line()}"
    if config.data is None:
        raise JobError(f"{what}: the {type(config).__name__} has no data; call its config_data(...) first")
    listed = list(optimizers)
    return tuple([_step(model, config.data, config.exe_cfg, optimizer, i, len(listed)) for i, optimizer in enumerate(listed)])


def _step(model: Model, data: DataModule, config: ExecutionConfig, optimizer: Any, number: int, count: int) -> Callable[[int], Any]:
    arrays = isinstance(data, NumpyDataModule)
    parameters_of_step = inspect.signature(model.training_step).parameters.values()
    takes_number = len(parameters_of_step) > 1 or any(each.kind is each.VAR_POSITIONAL for each in parameters_of_step)
    numbered = (number,) if count > 1 or takes_number else ()

    def body(*batch: Any) -> Any:
        arguments = batch if arrays else data.forward(0, number)
        if optimizer is None:
            return model.validation_step(arguments)
        results = model.training_step(arguments, *numbered)
        optimizer.minimize(results[0] if isinstance(results, tuple | list) else results)
        return results

    body.__name__ = f"{type(model).__name__}_{'validation' if optimizer is None else f'training_{number}'}"
    types = data.batch(0, number) if isinstance(data, NumpyDataModule) else ()
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    placeholders = [Numpy.Placeholder(array.shape, dtype_of(array.dtype)) for array in types]
    parameters = [inspect.Parameter(f"batch_{i}", kind, annotation=placeholder) for i, placeholder in enumerate(placeholders)]
    body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    job = global_function("predict" if optimizer is None else "train", config)(body)

    def run(step: int) -> Any:
        batch = data.batch(step, number) if isinstance(data, NumpyDataModule) else ()
        return job(*batch).get()

    return run
