"""Jobs of a checked configuration for training, evaluation and prediction, each for batches of a fixed number of rows.

A job is declared for every batch length, because a builder may depend on the length. All train jobs share one name, so that they share
variables, and dropout continues with the same random numbers.

A job averages the outputs of a builder within each sample and returns one value per row. The client sums over rows in float64, in the order of
the rows. So a metric is the mean over the actual samples, independent of the number of ranks and of the split of the last batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.compiler.front.dynamic_loss_scale import NOT_FINITE
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, at_line, counted, did_you_mean_or
from jobflow.core.layout import cut
from jobflow.core.types import Array, TensorType, bfloat16, float16, float32, int32, int64
from jobflow.data.batch import per_device
from jobflow.data.batches import Batches
from jobflow.data.mixed_samples import OTHER, SHARE, MixedSamples
from jobflow.data.readers import open_reader
from jobflow.data.samples import Samples, Stream
from jobflow.engine.body import JobBody
from jobflow.engine.job import Job
from jobflow.engine.job_config import FunctionConfig
from jobflow.engine.options import EnvSettings
from jobflow.engine.session import Session
from jobflow.engine.staged_job import StagedJob
from jobflow.graph.ir import Variable
from jobflow.legacy.optimizer.from_options import optimizer_of
from jobflow.legacy.optimizer.job_optimizers import Minimizer
from jobflow.models.generation.key_value_cache import JobCache
from jobflow.ops import elementwise as ew
from jobflow.ops import reduce as rd
from jobflow.ops.axes import reshape
from jobflow.ops.broadcast import broadcast_to
from jobflow.ops.guarded_update import COUNT
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.world.launched import launched
from jobflow.strategies import mesh, mirrored
from jobflow.trainer.config import Loaded, TrainConfig
from jobflow.trainer.config.optimizer_schema import Plateau
from jobflow.trainer.criterion import SCORES
from jobflow.trainer.facts import sizes_of, with_facts
from jobflow.trainer.fingerprint import ROWS, Fingerprint
from jobflow.trainer.freezing import check_frozen
from jobflow.trainer.means import check_mean
from jobflow.trainer.mixing import mixed_samples
from jobflow.trainer.network import Network, key_line, layered, line_of, network_of
from jobflow.trainer.optimizing import optimizer_from
from jobflow.trainer.parameter_groups import check_groups
from jobflow.trainer.set_metrics.configured_metrics import SetMetrics
from jobflow.trainer.step_extensions import StepExtension
from jobflow.typing.annotations import Bundle, ListNumpy, Numpy

#: names of the jobs for training, evaluation, prediction and generation
TRAIN, EVALUATION, PREDICTION, GENERATION = "train", "evaluation", "prediction", "generation"
#: the field of tokens of language models, and the argument of a job with the number of earlier tokens
TOKENS, EARLIER = "tokens", "earlier_tokens"
#: name of the train job's result that counts non-finite gradient elements
HALTED = "#halted"
#: name of the variable with this count
COUNTER = f"{NOT_FINITE}-{TRAIN}"
#: types of a sample by field
Fields = Mapping[str, TensorType]


@dataclass
class Jobs:
    """The jobs of a configuration in a separate session, declared on demand for samples with the fields `fields`."""

    loaded: Loaded
    session: Session
    network: Network
    #: open readers by name in the configuration: train, validation, test
    samples: dict[str, Samples | Stream]
    #: steps of the whole training, for learning rate schedules, and per epoch; the latter is 0 for streams
    steps: int
    steps_per_epoch: int
    fields: Fields = field(default_factory=dict)
    #: True if callbacks may change the learning rate
    adjustable: bool = False
    #: callbacks that add operations to the train job
    extensions: Sequence[StepExtension] = ()
    #: names of the model's means, after a job has been traced
    metrics: tuple[str, ...] = ()
    #: names of the outputs of a prediction, after a predict job has been traced
    outputs: tuple[str, ...] = ()
    #: parameters and other variables of the model by name, after the train job has been traced
    variables: Mapping[str, Variable] = field(default_factory=dict)
    #: the training samples of mixup and cutmix; None without both
    mixed: MixedSamples | None = None
    #: the configured metrics over a set
    set_metrics: SetMetrics = field(init=False)
    _made: dict[tuple[Any, ...], Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.set_metrics = SetMetrics(self.loaded)

    @property
    def config(self) -> TrainConfig:
        return self.loaded.config

    def take(self, samples: Samples | Stream) -> None:
        """Set the fields that the jobs read to the fields of `samples`."""
        self.fields = {name: TensorType(tuple(one.shape), one.dtype) for name, one in samples.fields.items()}
        self.network = layered(self.network, self.fields)

    @property
    def read(self) -> Fields:
        """The fields that train and evaluation jobs read: those of the model, and those of the configured metrics."""
        fields = self.network.taken(self.fields)
        return fields | {name: self.fields[name] for name in self.set_metrics.fields if name in self.fields and name not in fields}

    @property
    def trained(self) -> Fields:
        """The fields that a train job reads: also those of mixed samples."""
        more = {} if self.mixed is None else {name: self.mixed.fields[name] for name in (OTHER, SHARE)}
        return {**self.read, **{name: TensorType(field.shape, field.dtype) for name, field in more.items()}}

    @property
    def ranks(self) -> int:
        """The number of devices."""
        return self.session.device_count()

    def mirrored(self, rows: int) -> bool:
        """Return True if a batch of `rows` samples uses the mirrored view; batches with fewer samples than ranks do not."""
        return self.config.strategy.view == "mirrored" and rows >= self.ranks

    def train(self, rows: int, step: int | None = None) -> Job:
        """Return the job for one training step over `rows` samples, with the operations of callbacks that are due in `step`; by default, with all.

        The results are the loss and all metrics, as one value per row or as means over parts of the batch. The result HALTED counts the non-finite
        gradient elements of an earlier step; variables have not changed since that step.
        """
        return self._job(TRAIN, rows, self.trained, tuple(one for one in self.extensions if step is None or one.is_due(step)))

    def evaluation(self, rows: int) -> Job:
        """Return the job that computes the loss and all metrics of `rows` samples without an update."""
        return self._job(EVALUATION, rows, self.read)

    def prediction(self, rows: int, fields: Fields | None = None) -> Job:
        """Return the job that computes the scores of `rows` samples without labels."""
        return self._job(PREDICTION, rows, self.network.inputs(self.fields if fields is None else fields))

    def generation(self, count: int, length: int) -> Job:
        """Return the job that reads `count` tokens of one sequence after those in a cache of `length` tokens.

        The arguments are the tokens, int32 [1, count], and the number of earlier tokens, int64 [1].
        """
        types = {TOKENS: TensorType((count,), int32), EARLIER: TensorType((), int64)}
        return self._job(GENERATION, 1, types, length=length)

    def exported(self, rows: int) -> Job:
        """Return the predict job for `rows` samples in the consistent view and in float32, without a strategy."""
        return self._declared(PREDICTION, rows, self.network.inputs(self.fields), plain=True)

    def arguments(self, job: Job, batch: Mapping[str, Any]) -> list[Any]:
        """Convert a batch to the arguments of a job; in the mirrored view, one array per rank."""
        placeholders = job.signature.placeholders()
        return [per_device(batch[name], self.ranks) if declared.per_device else batch[name] for name, declared in placeholders]

    def call(self, job: Job, batch: Mapping[str, Any]) -> dict[str, Array]:
        """Run a job on a batch, and return its outputs by name."""
        return self.session.call(job, tuple(self.arguments(job, batch)))

    def over(self, batches: Batches, job: Callable[[int], Job], use: Callable[[int, dict[str, Array]], None]) -> None:
        """Run `job(size)` once on each batch of one pass over `batches`, where `size` is the number of samples in the batch.

        After each batch, call `use` with this size and the outputs of the job.
        """
        with batches.start(epochs=1) as reading:
            for batch in reading:
                with batch.told():
                    use(batch.size, self.call(job(batch.size), batch.arguments))

    def pieces(self, rows: int, microbatches: int = 1) -> list[int]:
        """Return the number of rows of each microbatch; in the mirrored view, of each microbatch on each rank."""
        ranks = [stop - start for start, stop in cut(rows, self.ranks)] if self.mirrored(rows) else [rows]
        return [stop - start for own in ranks for start, stop in cut(own, min(microbatches, own))]

    def microbatches(self, rows: int) -> int:
        """Return the number of microbatches of a training batch: as configured, or fewer if the batch is too short."""
        strategy = self.config.strategy
        count = strategy.microbatches or strategy.accumulation
        least = self.pieces(rows)[-1]
        if self.mirrored(rows) and rows % self.ranks and count >= least:
            count = least - 1  # with one row per rank, a mean cannot be distinguished from per-row values
        return max(1, min(count, least))

    def check_lengths(self) -> None:
        """Raise ConfigError if the model cannot be traced for a batch length of training or of its evaluations."""
        data, types = self.config.data, {TRAIN: self.trained, EVALUATION: self.read}
        train = lengths(self.samples["train"], data.batch_size, data.drop_last)
        evaluation = lengths(self.samples.get("validation"), data.evaluation_batch_size, False)
        others = [(TRAIN, rows, "training") for rows in train[1:]]
        others += [(EVALUATION, rows, "evaluation") for rows in evaluation if train and rows != train[0]]
        for kind, rows, word in others:
            job = self._declared(kind, rows, types[kind])
            named = zip(job.signature.placeholders(), job.declared_shapes(self.session), strict=True)
            shapes = [shape[0] if declared.per_device else shape for (_, declared), shape in named]
            try:
                job.trace(self.session, job.placement(self.session), shapes)
            except Exception as error:
                advice = "Set data.drop_last: true" if kind == TRAIN else "Set data.evaluation_batch_size to a divisor of the number of samples"
                raise ConfigError(
                    f"{self.network.where}: {self.network.what} accepts batches of {counted(train[0], 'sample')}, but not the batch of "
                    f"{rows:,} in {word}; its code seems to contain a fixed number of samples. "
                    f"{advice}, or use the length of the arguments, such as x.shape[0]. The error: {error}"
                ) from error

    def evaluated(self, prefix: str = "validation") -> list[str]:
        """Return the names of the metrics of an evaluation, after a job has been traced."""
        return [f"{prefix}/{name}" for name in dict.fromkeys([*self.metrics, *self.set_metrics.scalars])]

    def check_metrics(self) -> None:
        """Raise ConfigError if the configuration names a metric that the traced model does not return."""
        known, early = self.evaluated(), self.config.evaluation.early_stopping
        waited = {"evaluation.early_stopping.metric": early.metric if early else None, "checkpoint.best_metric": self.config.checkpoint.best_metric}
        if self.config.sweep is not None:
            waited["sweep.metric"] = self.config.sweep.metric
            known += self.evaluated("train")
        plan = self.config.optimizer.schedule
        waited["optimizer.schedule.metric"] = plan.metric if isinstance(plan, Plateau) else None
        for key, metric in waited.items():
            if metric is not None and metric not in known:
                near = did_you_mean_or(metric, known, f"there are {', '.join(known)}; the section metrics adds more")
                raise ConfigError(f'{self.loaded.origin(key)}: {key}: the model returns no metric "{metric}"{near}')

    def fingerprint(self) -> Fingerprint | None:
        """Return the fingerprint of the train job's program in the consistent view.

        The program is traced for ROWS samples, or for a whole batch if the first trace fails; return None if both traces fail.
        """
        for rows in (ROWS, self.config.data.batch_size):
            job = self._declared(TRAIN, rows, self.network.taken(self.fields), plain=True)
            with suppress(Exception):  # a model may accept only the lengths of its run; `check_lengths` has checked those
                program, _ = job.trace(self.session, job.placement(self.session), job.declared_shapes(self.session))
                return Fingerprint.of_program(program)
        return None

    # ---------------------------------------------------------------- declaration

    def _job(self, kind: str, rows: int, types: Fields, due: tuple[StepExtension, ...] = (), length: int = 0) -> Job:
        key = (kind, rows, tuple(types.items()), due, length)
        if key not in self._made:
            self._made[key] = self._declared(kind, rows, types, due, length)
            self.session.register(self._made[key])
        return self._made[key]

    def _declared(self, name: str, rows: int, types: Fields, due: tuple[StepExtension, ...] = (), length: int = 0, *, plain: bool = False) -> Job:
        """Declare a job, a train job with the operations of the callbacks `due`; with `plain`, in the consistent view and without a strategy.

        `length` is the length of the cache of a job for generation.
        """
        bodies: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any]]] = {
            TRAIN: (self._train, {"metrics": not plain, "due": due}),
            EVALUATION: (self._measured, {"metrics": not plain}),
            PREDICTION: (self._predicted, {}),
            GENERATION: (self._continued, {"length": length}),
        }
        body, options = bodies[name]

        def function(*values: Any) -> Any:
            with at_line(line_of(self.loaded, "model")):
                return body(dict(zip(types, values, strict=True)), **options)

        own = not plain and self.mirrored(rows) and name != GENERATION
        array, length = (ListNumpy, -(-rows // self.ranks)) if own else (Numpy, rows)
        function.__name__ = name
        function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(field, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=array.Placeholder((length, *type.shape), type.dtype))
                for field, type in types.items()
            ],
            return_annotation=Bundle[Numpy],
        )
        strategy, config = self.config.strategy, FunctionConfig()
        if plain:
            return StagedJob(function, name == TRAIN, config, self.network.where, optimizer_of)
        config.strategy(mirrored() if own else mesh(data=strategy.data, tensor=strategy.tensor, pipeline=strategy.pipeline, zero=strategy.zero))
        if name == TRAIN and self.microbatches(rows) > 1:
            config.divide(self.microbatches(rows), key_line(self.loaded, f"strategy.{'microbatches' if strategy.microbatches else 'accumulation'}"))
        if strategy.precision != "float32":
            config.mixed_precision({"float16": float16, "bfloat16": bfloat16}[strategy.precision])
        return StagedJob(function, name == TRAIN, config, self.network.where, optimizer_of)

    def _train(self, batch: dict[str, Any], metrics: bool, due: Sequence[StepExtension]) -> dict[str, Any]:
        body: JobBody = scope.current().interpreter  # type: ignore[assignment]
        body.frozen = self.config.freeze
        outputs, results = self._outputs(batch, metrics)
        self.variables = dict(body.variables)
        check_frozen(self.loaded, self.variables)
        check_groups(self.loaded, self.variables)
        with at_line(line_of(self.loaded, "optimizer")):
            optimizer: Minimizer = optimizer_from(self.config, self.steps, adjustable=self.adjustable, extensions=due)
            optimizer.minimize(_weighed(outputs["loss"], next(iter(batch.values()))))
        return {**_by_row(outputs, batch), **results, HALTED: body.slot(f"{NOT_FINITE}-{body.name}", COUNT, 0, None)}

    def _measured(self, batch: dict[str, Any], metrics: bool) -> dict[str, Any]:
        outputs, results = self._outputs(batch, metrics)
        return {**_by_row(outputs, batch), **results}

    def _outputs(self, batch: dict[str, Any], metrics: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the outputs to be averaged over the samples, and with `metrics` the results for metrics over a set."""
        fields = {*self.network.taken(self.fields), OTHER, SHARE}
        outputs = dict(self.network({name: x for name, x in batch.items() if name in fields}))
        if "loss" not in outputs:
            raise self.network.without_loss(outputs, batch, self.fields)
        scores = outputs.pop(SCORES, None)
        means = {name: x for name, x in outputs.items() if not metrics or name not in self.set_metrics.outputs}
        self.metrics = tuple(means)
        if not metrics:
            return means, {}
        known = outputs if scores is None else {**outputs, "scores": scores}
        with at_line(line_of(self.loaded, "metrics")):
            return means, self.set_metrics.results(known, batch, self.network.what)

    def _predicted(self, batch: dict[str, Any]) -> dict[str, Any]:
        results = dict(self.network(batch))
        self.outputs = tuple(results)
        return results

    def _continued(self, batch: dict[str, Any], length: int) -> dict[str, Any]:
        return dict(self.network({TOKENS: batch[TOKENS]}, JobCache(batch[EARLIER], length)))


def _weighed(loss: Any, like: Any) -> Any:
    """Repeat a scalar loss in the mirrored view once per row of `like`, so that ranks are weighted by their samples.

    Return other losses unchanged.
    """
    if not like.local or loss.tensor_type.size > 1:
        return loss
    return broadcast_to(reshape(loss, (1,)), (like.tensor_type.shape[0],))


def _by_row(outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
    """Convert every output to float32: the mean of each row of the batch, or one mean for an output without rows.

    Raises: ConfigError for a metric without rows that is not a mean over the batch.
    """
    rows = next(iter(batch.values())).tensor_type.shape[0]
    return {name: _rows_of(name, value, rows) for name, value in outputs.items()}


def _rows_of(name: str, value: Any, rows: int) -> Any:
    value = value if value.tensor_type.dtype is float32 else ew.cast(value, float32)
    if not value.tensor_type.shape or value.tensor_type.shape[0] % rows:
        if name != "loss":
            check_mean(name, value, rows)
        return reshape(rd.reduce_mean(value), (1,))
    if value.tensor_type.shape == (rows,):
        return value
    return rd.reduce_mean(reshape(value, (rows, value.tensor_type.size // rows)), 1)


class Means:
    """Means of metrics over samples; every sample counts once."""

    def __init__(self, samples: int = 0, sums: Mapping[str, float] | None = None) -> None:
        self.samples = samples
        self.sums = dict(sums or {})

    def add(self, outputs: Mapping[str, Array], rows: int, pieces: Sequence[int]) -> None:
        """Add the outputs of a job for a batch of `rows` samples; `pieces` is the result of `Jobs.pieces`."""
        self.samples += rows
        for name, array in outputs.items():
            self.sums[name] = self.sums.get(name, 0.0) + summed(array, rows, pieces)

    def values(self) -> dict[str, float]:
        """Return the means by name; {} without samples."""
        return {name: total / self.samples for name, total in self.sums.items()} if self.samples else {}


def summed(array: Array, rows: int, pieces: Sequence[int]) -> float:
    """Return the sum of an output over the `rows` rows of a batch.

    The array has one value per row, one mean per piece of the batch, or a mean over the whole batch. `pieces` are the row counts of the pieces.
    """
    wide = np.asarray(array, np.float64).reshape(-1)
    if wide.size == rows:
        return float(wide.sum())
    return float(wide @ np.asarray(pieces, np.float64)) if wide.size == len(pieces) else float(wide.mean() * rows)


# -------------------------------------------------------------------- sessions


@contextmanager
def prepared(
    loaded: Loaded, *, only: Sequence[str] = ("train", "validation", "test"), sizes: Callable[[Session], Mapping[str, int]] | None = None
) -> Iterator[Jobs]:
    """Yield the jobs of a configuration in a separate session, which is closed at the end of the block.

    Under mpiexec every rank is a client. `only` lists the readers to open. `sizes` returns facts of the training samples if their reader is not
    opened.
    """
    with session_of(loaded.config) as session:
        yield _opened(loaded if sizes is None else with_facts(loaded, sizes(session)), session, only)


@contextmanager
def session_of(config: TrainConfig) -> Iterator[Session]:
    """Yield a separate session with the seed and the devices of a configuration; the session is closed at the end of the block."""
    session = Session()
    environment = EnvSettings(client="multi" if launched() is not None else "single")
    with scope.using(root=scope.Root(session, environment), interpreter=None, placement=None):
        try:
            session.settings.seed = config.seed
            kind = config.strategy.device
            on_gpus = cuda.available() > 0 if kind == "auto" else kind == "cuda"
            setattr(session.settings, "gpu_device_num" if on_gpus else "cpu_device_num", devices_of(config))
            yield session
        finally:
            session.close()


def _opened(loaded: Loaded, session: Session, only: Sequence[str]) -> Jobs:
    samples: dict[str, Samples | Stream] = {}
    for place in only:
        if getattr(loaded.config.data, place) is not None:
            samples[place] = open_place(loaded.config, place, samples["train"].facts if "train" in samples else {})
    per_epoch = epoch_length(loaded.config, samples.get("train"))
    steps = loaded.config.training.steps or (loaded.config.training.epochs or 0) * per_epoch
    loaded = with_facts(loaded, sizes_of(samples["train"])) if "train" in samples else loaded
    jobs = Jobs(loaded, session, network_of(loaded), samples, steps, per_epoch)
    if "train" in samples and jobs.network.criterion is not None:
        jobs.network.criterion.balance(samples["train"])
    if samples:
        jobs.take(next(iter(samples.values())))
    if "train" in samples:
        jobs.mixed = mixed_samples(loaded, samples["train"], jobs.network, jobs.fields)
    return jobs


def lengths(samples: Samples | Stream | None, size: int, drop_last: bool) -> list[int]:
    """Return the distinct batch lengths of these samples, longest first: the full length for a stream, and [] for None."""
    if not isinstance(samples, Samples):
        return [] if samples is None else [size]
    whole, rest = divmod(len(samples), size)
    return ([size] if whole else []) + ([rest] if rest and not (drop_last and whole) else [])


def epoch_length(config: TrainConfig, samples: Samples | Stream | None) -> int:
    """Return the number of steps in an epoch, or 0 if the number of samples is unknown.

    Raises: ConfigError if an epoch has no steps, or if training.epochs is set and the length is unknown.
    """
    if samples is None:
        return 0
    if isinstance(samples, Stream):
        if config.training.steps is None:
            raise ConfigError("training.epochs: the reader of data.train has an unknown number of samples; set training.steps instead")
        return 0
    count, size = len(samples), config.data.batch_size
    if config.data.drop_last and count < size:
        raise ConfigError(
            f"data.batch_size: data.train has {count} samples, fewer than a batch of {size}; reduce the batch size, or set data.drop_last: false"
        )
    return count // size if config.data.drop_last else -(-count // size)


def open_place(config: TrainConfig, place: str, facts: Mapping[str, Any]) -> Samples | Stream:
    """Open the reader of data.<place>; raise ConfigError if the configuration has no such reader.

    `facts` are properties of the training samples, such as their classes.
    """
    reader = getattr(config.data, place)
    if reader is None:
        raise ConfigError(f"data.{place}: the configuration has no reader under this key; add a reader")
    return open_reader(reader.reader, facts or None, **reader.arguments)


def devices_of(config: TrainConfig) -> int:
    """Return the number of devices of a run: the number of started ranks, else the number in the configuration.

    Raises: ConfigError if strategy.devices differs from the number of started ranks.
    """
    started, strategy = launched(), config.strategy
    if started is None:
        return int((strategy.data or 1) * strategy.tensor * strategy.pipeline if strategy.devices == "all" else strategy.devices)
    if strategy.devices not in ("all", started.size):
        raise ConfigError(
            f"strategy.devices is {strategy.devices}, but {started.launcher} started {started.size} ranks; "
            f"start {strategy.devices}, or set devices: all"
        )
    return started.size
