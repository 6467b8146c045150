"""`flow.model`: models with custom steps, trained by `fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow.core.errors import ArgumentError, JobError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(3, 8, 4)).astype(np.float32)
Y = (X.sum(2) > 0).astype(np.int32)


class Batches(flow.model.NumpyDataModule):
    def forward(self, step_idx: int = 0, optimizer_idx: int = 0) -> Any:
        return X[step_idx % 3], Y[step_idx % 3]


class Drawn(flow.model.DataModule):
    def forward(self, step_idx: int = 0, optimizer_idx: int = 0) -> Any:
        return (flow.data.decode_random((4,), flow.float32, batch_size=8, initializer=flow.ones_initializer()),)


class Functions(flow.model.Model):
    """A model whose steps use functions of jobs."""

    rates = (0.5,)

    def forward(self, x: Any) -> Any:
        return flow.layers.dense(x, 2, name="classes", kernel_initializer=flow.random_uniform_initializer(-1, 1))

    def training_step(self, batch: Any, optimizer_idx: int = 0) -> Any:
        x, labels = batch
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, self(x))
        return (loss, flow.math.reduce_mean(loss)) if optimizer_idx else loss

    def validation_step(self, batch: Any) -> Any:
        return {"logits": self(batch[0])}

    def configure_optimizers(self) -> Any:
        each = [flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [rate]), momentum=0) for rate in self.rates]
        return each if len(each) > 1 else each[0]


class Modules(Functions):
    """A model whose steps use modules with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = flow.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.classes(x)


class Twice(Functions):
    rates = (0.5, 0.0)


class Numbered(Functions):
    """A model whose steps take all optional arguments, as in OneFlow 0.4."""

    def training_step(self, batch: Any, optimizer_idx: int) -> Any:
        assert optimizer_idx == 0
        return super().training_step(batch, optimizer_idx)


class OfBatches(Functions):
    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return super().training_step(batch)


class Notes(flow.model.Callback):
    def __init__(self) -> None:
        self.training: list[Any] = []
        self.validation: list[Any] = []

    def on_training_step_end(self, outputs: Any, step_idx: int, optimizer_idx: int) -> None:
        loss = outputs[0] if isinstance(outputs, tuple) else outputs
        self.training.append((step_idx, optimizer_idx, loss.numpy().mean()))

    def on_validation_step_end(self, outputs: Any, step_idx: int) -> None:
        self.validation.append((step_idx, outputs["logits"].numpy().shape))


def configured(kind: Any = flow.model.TrainingConfig, data: Any = None) -> Any:
    config = kind()
    config.config_data(data or Batches())
    return config


@pytest.mark.parametrize("devices", [1, 2])
def test_a_model_is_trained_validated_and_saved(fresh: None, tmp_path: Path, devices: int) -> None:
    flow.config.cpu_device_num(devices)
    notes, validation, saves = Notes(), configured(flow.model.ValidationConfig), flow.model.CheckpointConfig()
    validation.config_step_interval(4)
    saves.config_save(str(tmp_path / "at"), 3)
    Functions().fit(configured(), validation, saves, [notes], max_steps=8)
    losses = [loss for _, _, loss in notes.training]
    assert [(step, optimizer) for step, optimizer, _ in notes.training] == [(step, 0) for step in range(8)] and losses[-1] < losses[0] / 2
    assert notes.validation == [(3, (8, 2)), (7, (8, 2))] and sorted(path.name for path in tmp_path.iterdir()) == ["at-2", "at-5"]

    flow.clear_default_session()
    flow.config.cpu_device_num(1)
    again = Notes()
    saves.config_load(str(tmp_path / "at-5"))
    saves.save_dirpath = None
    Functions().fit(configured(), checkpoint_config=saves, callbacks=again, max_steps=2)
    np.testing.assert_allclose([loss for *_, loss in again.training], losses[6:], rtol=1e-5)


def test_models_of_modules_and_several_optimizers(fresh: None) -> None:
    notes = Notes()
    model = Modules()
    before = model.classes.weight.numpy().copy()
    model.fit(configured(), callbacks=notes, max_steps=6)
    assert notes.training[-1][2] < notes.training[0][2] and not np.array_equal(before, model.classes.weight.numpy())

    flow.clear_default_session()
    notes = Notes()
    Twice().fit(configured(), callbacks=notes, max_steps=3)
    assert [(step, optimizer) for step, optimizer, _ in notes.training] == [(step, number) for step in range(3) for number in range(2)]
    assert all(first > second for (*_, first), (*_, second) in zip(notes.training[::2], notes.training[1::2], strict=True))


@pytest.mark.parametrize("kind", [Numbered, OfBatches])
def test_a_step_takes_the_number_of_its_optimizer_or_none(fresh: None, kind: Any) -> None:
    notes = Notes()
    kind().fit(configured(), callbacks=notes, max_steps=4)
    assert [optimizer for _, optimizer, _ in notes.training] == [0] * 4 and notes.training[-1][2] < notes.training[0][2]


def test_batches_may_be_computed_in_the_job(fresh: None) -> None:
    notes = Notes()
    Functions().fit(None, configured(flow.model.ValidationConfig, Drawn()), callbacks=notes, max_steps=10)
    assert notes.validation == [(9, (8, 2))]


class Wrong(flow.model.NumpyDataModule):
    def forward(self, step_idx: int = 0, optimizer_idx: int = 0) -> Any:
        return X[0]


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: Functions().fit(), JobError, "neither training_config nor validation_config was passed; pass one of them"),
        (lambda: Functions().fit(flow.model.TrainingConfig()), JobError, r"the TrainingConfig has no data; call its config_data\(...\)"),
        (lambda: configured(data=Functions()), ArgumentError, "pass a model.DataModule or a model.NumpyDataModule"),
        (lambda: Functions().fit(configured(data=Wrong())), ArgumentError, "Wrong.forward at .* returned ndarray; return a tuple of NumPy arrays"),
        (lambda: flow.model.Model().fit(configured()), NotImplementedError, "Model has no configure_optimizers"),
        (lambda: flow.model.CheckpointConfig().config_save("x", 0), ArgumentError, "step_interval is 0; pass an int of at least 1"),
    ],
)
def test_wrong_arguments_of_fit_raise(fresh: None, call: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
