"""The sections of a configuration: keys, kinds of values, ranges, defaults, and what they mean.

This is the one place that says so: messages, `jobflow config schema` and docs/configuration.md are made of it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from jobflow.trainer.config.layers import Layer
from jobflow.trainer.config.section import Derived, Section

Count = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
#: decay rates of running means
Decay = Annotated[float, Field(ge=0, lt=1)]
#: how the name of a number that evaluation gives is written, and the import path of a function
METRIC = r"^validation/\w+$"
IMPORTED = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
Metric = Annotated[str, Field(pattern=METRIC)]

# -------------------------------------------------------------------- model


class Model(Section):
    """What is trained: a Python function that builds it, or a list of layers."""

    builder: Annotated[str | None, Field(pattern=IMPORTED, description='"module:function"; see the model builders')] = None
    arguments: Annotated[dict[str, Any], Field(description="keyword arguments of the builder", default_factory=dict)]
    layers: Annotated[tuple[Layer, ...] | None, Field(min_length=1, description="a plain net instead of a builder")] = None
    loss: Annotated[
        Literal["softmax_cross_entropy", "mean_squared_error"] | None, Field(description="of the layers' output; a builder has its own")
    ] = None


# -------------------------------------------------------------------- data


class Reader(Section):
    """Where samples come from.  Beside `reader` stand the arguments of that reader."""

    model_config = ConfigDict(extra="allow")

    reader: Annotated[str, Field(description="the kind of samples")]

    @property
    def arguments(self) -> dict[str, Any]:
        """All keys but `reader`."""
        return dict(self.model_extra or {})


class Data(Section):
    """The samples, and how they are put into batches."""

    train: Annotated[Reader, Field(description="samples to learn from")]
    validation: Annotated[Reader | None, Field(description="samples to measure on while training")] = None
    test: Annotated[Reader | None, Field(description="samples for `jobflow eval`")] = None
    batch_size: Annotated[int, Field(ge=1, description="samples per step, over all devices")]
    evaluation_batch_size: Annotated[int, Field(ge=1, description="samples per step of an evaluation"), Derived("${data.batch_size}")]
    shuffle: Annotated[bool, Field(description="a new order in each epoch, from `seed`")] = True
    drop_last: Annotated[bool, Field(description="leave out the last batch of an epoch if it is smaller")] = False
    prefetch: Annotated[int, Field(ge=0, le=1024, description="batches that are read ahead")] = 2


# -------------------------------------------------------------------- optimizer


class Constant(Section):
    """lr"""

    name: Annotated[Literal["constant"], Field(description="always lr")]


class Cosine(Section):
    """From lr to alpha lr along half a cosine."""

    name: Annotated[Literal["cosine"], Field(description="from lr to alpha lr along half a cosine")]
    steps: Annotated[int | None, Field(ge=1, description="how long it falls; null: to the end of training")] = None
    alpha: Annotated[float, Field(ge=0, le=1, description="the share of lr that is left at the end")] = 0.0


class Linear(Section):
    """From lr to end_lr along a line."""

    name: Annotated[Literal["linear"], Field(description="from lr to end_lr along a line")]
    steps: Annotated[int | None, Field(ge=1, description="how long it falls; null: to the end of training")] = None
    end_lr: Annotated[float, Field(ge=0, description="the rate at the end")] = 0.0


class Polynomial(Section):
    """From lr to end_lr: (lr - end_lr) (1 - step / steps)^power + end_lr."""

    name: Annotated[Literal["polynomial"], Field(description="(lr - end_lr) (1 - step / steps)^power + end_lr")]
    steps: Annotated[int | None, Field(ge=1, description="how long it falls; null: to the end of training")] = None
    end_lr: Annotated[float, Field(ge=0, description="the rate at the end")] = 0.0
    power: Annotated[float, Field(gt=0, description="of the fall; 1 is a line")] = 1.0
    cycle: Annotated[bool, Field(description="begin again after `steps`, over a longer time each")] = False


class Exponential(Section):
    """lr decay_rate^(step / steps)"""

    name: Annotated[Literal["exponential"], Field(description="lr decay_rate^(step / steps)")]
    steps: Annotated[int, Field(ge=1, description="after how many steps decay_rate is reached")]
    decay_rate: Annotated[float, Field(gt=0, le=1, description="the share of lr that is left after `steps`")]
    staircase: Annotated[bool, Field(description="fall all at once after each `steps`")] = False


class Piecewise(Section):
    """lr up to the first boundary, lr scales[i] after boundary i."""

    name: Annotated[Literal["piecewise"], Field(description="lr up to the first boundary, lr scales[i] after boundary i")]
    boundaries: Annotated[tuple[Steps, ...], Field(min_length=1, description="steps, rising")]
    scales: Annotated[tuple[NotNegative, ...], Field(min_length=1, description="shares of lr, one per boundary")]


Schedule = Annotated[Constant | Cosine | Linear | Polynomial | Exponential | Piecewise, Field(discriminator="name")]


class _Optimizer(Section):
    name: str
    lr: Annotated[float, Field(gt=0, description="learning rate")]
    clip_norm: Annotated[Positive | None, Field(description="largest norm of all gradients together; null: any")] = None
    schedule: Annotated[Schedule, Field(description="how the learning rate changes")] = Constant(name="constant")
    warmup_steps: Annotated[int, Field(ge=0, description="steps in which the rate rises to lr")] = 0


class _Decaying(_Optimizer):
    weight_decay: Annotated[float, Field(ge=0, description="each step takes lr weight_decay of every weight")] = 0.0


class Sgd(_Decaying):
    """w - lr g"""

    name: Annotated[Literal["sgd"], Field(description="plain gradient descent")]


class Momentum(_Decaying):
    """v = momentum v - lr g, w + v"""

    name: Annotated[Literal["momentum"], Field(description="gradient descent with momentum")]
    momentum: Annotated[Decay, Field(description="the share of the last change that is kept")] = 0.9


class _Moments(_Optimizer):
    beta1: Annotated[Decay, Field(description="of the mean gradient")] = 0.9
    beta2: Annotated[Decay, Field(description="of the mean squared gradient")] = 0.999


class Adam(_Moments):
    """Adam."""

    name: Annotated[Literal["adam"], Field(description="Adam")]
    epsilon: Annotated[float, Field(gt=0, description="added to the divisor")] = 1e-8
    bias_correction: Annotated[bool, Field(description="as if the means had not begun at 0")] = True


class AdamW(_Moments, _Decaying):
    """Adam with decoupled weight decay."""

    name: Annotated[Literal["adamw"], Field(description="Adam with decoupled weight decay")]
    epsilon: Annotated[float, Field(gt=0, description="added to the divisor")] = 1e-8
    bias_correction: Annotated[bool, Field(description="as if the means had not begun at 0")] = True


class Lamb(_Moments, _Decaying):
    """Adam's direction, as long as the weights of each variable."""

    name: Annotated[Literal["lamb"], Field(description="Adam's direction, as long as the weights of each variable")]
    epsilon: Annotated[float, Field(gt=0, description="added to the divisor")] = 1e-6


class Lars(_Decaying):
    """Momentum with a rate per variable in proportion to |w| / |g|."""

    name: Annotated[Literal["lars"], Field(description="momentum, with a rate per variable in proportion to |w| / |g|")]
    momentum: Annotated[Decay, Field(description="the share of the last change that is kept")] = 0.9
    epsilon: Annotated[float, Field(gt=0, description="added to the divisor")] = 1e-9
    coefficient: Annotated[float, Field(gt=0, description="the factor of |w| / |g|")] = 1e-4


class RmsProp(_Optimizer):
    """w - lr g / sqrt(mean of g^2)"""

    name: Annotated[Literal["rmsprop"], Field(description="gradients divided by their mean size")]
    decay_rate: Annotated[Decay, Field(description="of the mean squared gradient")] = 0.99
    epsilon: Annotated[float, Field(gt=0, description="added to the mean squared gradient")] = 1e-8
    centered: Annotated[bool, Field(description="divide by the variance instead")] = False


Optimizer = Annotated[Sgd | Momentum | Adam | AdamW | Lamb | Lars | RmsProp, Field(discriminator="name")]

# -------------------------------------------------------------------- how it runs


class Strategy(Section):
    """How the work is spread over devices; see docs/strategies.md."""

    view: Annotated[Literal["consistent", "mirrored"], Field(description="whether the model speaks of all devices or of one")] = "consistent"
    devices: Annotated[
        Count | Literal["all"], Field(description='ranks; "all": as many as mpiexec starts, else as data x tensor x pipeline asks for')
    ] = "all"
    data: Annotated[int | None, Field(ge=1, description="parts of the batch; null: what the others leave")] = None
    tensor: Annotated[int, Field(ge=1, description="parts of each layer")] = 1
    pipeline: Annotated[int, Field(ge=1, description="groups of ranks with some of the layers each")] = 1
    zero: Annotated[int, Field(ge=0, le=3, description="1-3: variables, gradients, and what is read lie split over the data ranks")] = 0
    accumulation: Annotated[int, Field(ge=1, description="parts of the batch that are computed one after another")] = 1
    microbatches: Annotated[int | None, Field(ge=1, description="parts of the batch in a pipeline; null: those of accumulation")] = None
    recompute: Annotated[bool, Field(description="compute activations again in the backward pass, to save memory")] = False
    precision: Annotated[Literal["float32", "bfloat16", "float16"], Field(description="of products and convolutions")] = "float32"


class Training(Section):
    """How long: epochs or steps."""

    epochs: Annotated[int | None, Field(ge=1, description="times through all samples")] = None
    steps: Annotated[int | None, Field(ge=1, description="updates")] = None
    halt_where_not_finite: Annotated[
        bool, Field(description="keep the variables from before the first gradient that is not finite; takes a pass over the gradients")
    ] = True


class EarlyStopping(Section):
    """The end of training when a number gets no better."""

    metric: Annotated[Metric, Field(description="which number")] = "validation/loss"
    mode: Annotated[Literal["min", "max"], Field(description="whether smaller or larger is better")] = "min"
    patience: Annotated[int, Field(ge=1, description="evaluations without a better one before it ends")]
    min_delta: Annotated[float, Field(ge=0, description="how much better counts")] = 0.0


class Evaluation(Section):
    """When the model is measured on `data.validation`."""

    every_epochs: Annotated[int | None, Field(ge=1, description="null: not by epochs")] = None
    every_steps: Annotated[int | None, Field(ge=1, description="null: not by steps")] = None
    early_stopping: Annotated[EarlyStopping | None, Field(description="null: train to the end")] = None


class Checkpoint(Section):
    """When and where the state is saved, and how a run goes on."""

    directory: Annotated[str, Field(min_length=1, description="where"), Derived("${output}/checkpoints")]
    every_epochs: Annotated[int | None, Field(ge=1, description="null: not by epochs")] = None
    every_steps: Annotated[int | None, Field(ge=1, description="null: not by steps")] = None
    keep_last: Annotated[int, Field(ge=1, description="how many of the newest are kept")] = 3
    keep_best: Annotated[int, Field(ge=0, description="how many of the best are kept besides")] = 0
    best_metric: Annotated[Metric | None, Field(description="which number says what is best")] = None
    best_mode: Annotated[Literal["min", "max"], Field(description="whether smaller or larger is better")] = "min"
    asynchronous: Annotated[bool, Field(description="write while training goes on")] = True
    resume: Annotated[str, Field(min_length=1, description="auto: from the newest good one; never; or the path of one")] = "auto"


class Logging(Section):
    """What is told while training, and written beside it."""

    every_steps: Annotated[int, Field(ge=1, description="steps between two records")] = 10
    jsonl: Annotated[bool, Field(description="records in metrics.jsonl")] = True
    csv: Annotated[bool, Field(description="records in metrics.csv")] = True
    tensorboard: Annotated[bool, Field(description="records for TensorBoard; its writer must be installed")] = False
    report: Annotated[bool, Field(description="a page with curves and tables at the end")] = True
    progress: Annotated[Literal["auto", "bar", "plain", "none"], Field(description="bar, or plain lines; auto: a bar on terminals")] = "auto"


class TrainConfig(Section):
    """A training run."""

    name: Annotated[str, Field(min_length=1, description="of the run"), Derived("the name of the file")]
    seed: Annotated[int, Field(ge=0, lt=2**63, description="of weights, dropout and the order of samples")] = 0
    output: Annotated[str, Field(min_length=1, description="where the run writes"), Derived("runs/${name}")]
    model: Annotated[Model, Field(description="what is trained")]
    data: Annotated[Data, Field(description="on what")]
    optimizer: Annotated[Optimizer, Field(description="how it learns")]
    strategy: Annotated[Strategy, Field(description="how the work is spread over devices")] = Strategy()
    training: Annotated[Training, Field(description="how long")]
    evaluation: Annotated[Evaluation, Field(description="when it is measured")] = Evaluation()
    checkpoint: Annotated[Checkpoint, Field(description="when it is saved")]
    logging: Annotated[Logging, Field(description="what is told")] = Logging()
