"""The schema of a configuration: each key's name, type, default, meaning, and synonyms in other programs, one line per key.

Checks, messages, suggestions, `jobflow config schema` and docs/configuration.md are generated from the schema, so a new key is a new line here.
`rules` checks several keys together.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from jobflow.core.imports import IMPORT_PATH
from jobflow.trainer.config.optimizer_schema import Optimizer as Optimizer
from jobflow.trainer.config.schema_fields import METRIC as METRIC
from jobflow.trainer.config.schema_fields import Count, Imported, MetricKey, NotNegative, OneOf, Positive, Share
from jobflow.trainer.config.schema_fields import Notes as Notes
from jobflow.trainer.config.schema_fields import Section as Section
from jobflow.trainer.config.schema_fields import key as key
from jobflow.trainer.config.schema_metrics import Metric
from jobflow.trainer.config.sweep_schema import Sweep

#: one number for both axes, or height and width
Sizes = Count | tuple[Count, Count]
Activation = Literal["relu", "gelu", "tanh", "sigmoid", "elu", "leaky_relu", "swish", "softmax", "softplus"]
Padding = Literal["same", "valid"]
#: losses with class numbers as labels
CLASS_LOSSES = ("softmax_cross_entropy", "cross_entropy", "nll_loss", "multi_margin_loss")
#: losses of scores and labels: two of the trainer, and those of `jobflow.nn.functional`
Loss = Literal[
    "softmax_cross_entropy", "mean_squared_error", "cross_entropy", "nll_loss", "multi_margin_loss", "mse_loss", "l1_loss", "smooth_l1_loss",
    "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "soft_margin_loss",
    "hinge_embedding_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
]  # fmt: skip
EveryEpochs = Annotated[Count | None, key("interval in epochs; null: not by epochs")]
EverySteps = Annotated[Count | None, key("interval in steps; null: not by steps", "save_every save_steps log_every log_steps interval")]

# -------------------------------------------------------------------- layers of a plain net


class Dense(Section):
    units: Annotated[Count, key("number of outputs", "hidden features out_features size")]
    activation: Annotated[Activation | None, key("activation after the layer; null: none")] = None
    use_bias: Annotated[bool, key("add a bias", "bias")] = True


class Conv2d(Section):
    filters: Annotated[Count, key("number of output channels", "channels out_channels")]
    kernel_size: Annotated[Sizes, key("in pixels, one number or [height, width]", "kernel ksize")] = 3
    strides: Annotated[Sizes, key("in pixels, one number or [height, width]", "stride")] = 1
    padding: Annotated[Padding, key("same: the output is as large as the input, by strides; valid: no padding")] = "same"
    groups: Annotated[Count, key("number of groups of channels that are convolved separately")] = 1
    activation: Annotated[Activation | None, key("activation after the layer; null: none")] = None
    use_bias: Annotated[bool, key("add a bias")] = True


class Pool2d(Section):
    size: Annotated[Sizes, key("size of the window in pixels, one number or [height, width]")] = 2
    strides: Annotated[Sizes | None, key("in pixels; null: the same as size")] = None
    padding: Annotated[Padding, key("same or valid, as in conv2d")] = "valid"


class NoArguments(Section):
    """A layer without arguments."""


class Dropout(Section):
    rate: Annotated[Share, key("fraction of the values that are set to 0", "p prob drop_rate")]


class BatchNorm(Section):
    axis: Annotated[int, key("axis of the channels")] = 1
    momentum: Annotated[Share, key("momentum of the moving mean and variance")] = 0.9
    epsilon: Annotated[Positive, key("added to the variance", "eps delta")] = 1e-5


class LayerNorm(Section):
    epsilon: Annotated[Positive, key("added to the variance")] = 1e-5


class ActivationLayer(Section):
    function: Annotated[Activation, key("name of the function")]


class Embedding(Section):
    rows: Annotated[Count, key("number of rows of the table")]
    units: Annotated[Count, key("length of each row")]


class Reshape(Section):
    shape: Annotated[tuple[Annotated[int, Field(ge=-1)], ...], key("shape without the batch axis; one size may be -1", min_length=1)]


class Layer(OneOf):
    """One layer: a map whose only key is its kind, or the kind alone if it needs no arguments."""

    _such: ClassVar[str] = "one layer, such as dense: {units: 10}"

    dense: Annotated[Dense | None, key("fully connected layer over the last axis: y = activation(x w + b)", "linear fc")] = None
    conv2d: Annotated[Conv2d | None, key("convolution of images, with channels first", "conv")] = None
    max_pool2d: Annotated[Pool2d | None, key("maximum of each window of an image", "maxpool max_pool")] = None
    avg_pool2d: Annotated[Pool2d | None, key("mean of each window of an image")] = None
    global_avg_pool2d: Annotated[NoArguments | None, key("mean of each channel of an image")] = None
    flatten: Annotated[NoArguments | None, key("joins all axes except the first")] = None
    dropout: Annotated[Dropout | None, key("sets random values to 0 during training")] = None
    batch_norm: Annotated[
        BatchNorm | None, key("batch normalisation: channels with mean 0 and variance 1 over the batch", "batchnorm bn batch_normalization")
    ] = None
    layer_norm: Annotated[LayerNorm | None, key("layer normalisation: rows with mean 0 and variance 1 over the last axis", "layernorm ln")] = None
    activation: Annotated[ActivationLayer | None, key("an activation as a separate layer")] = None
    embedding: Annotated[Embedding | None, key("whole numbers -> rows of a table that is learned")] = None
    reshape: Annotated[Reshape | None, key("changes the shape")] = None


# -------------------------------------------------------------------- model


class Model(Section):
    """The model: a Python function that builds it, an `nn.Module`, or a list of layers."""

    builder: Annotated[str | None, key('a function or a class of modules, as "module:function"', pattern=IMPORT_PATH)] = None
    arguments: Annotated[dict[str, Any], key("keyword arguments of the builder", "args kwargs params", default_factory=dict)]
    layers: Annotated[tuple[Layer, ...] | None, key("a list of layers, instead of a builder", min_length=1)] = None
    loss: Annotated[
        Loss | Imported | None,
        key('loss of the output of layers or of a module, by name or as "module:function"; a builder returns its own', "criterion loss_fn"),
    ] = None
    loss_arguments: Annotated[dict[str, Any] | None, key("keyword arguments of the loss; null: none", "loss_args loss_kwargs")] = None
    label_smoothing: Annotated[Share | None, key("fraction of each label that is distributed over all classes; null: none", "smoothing")] = None
    class_weights: Annotated[
        tuple[NotNegative, ...] | Literal["balanced"] | None,
        key("weight of the loss per class; balanced: from the number of training samples per class; null: none", "class_weight weights"),
    ] = None
    pos_weight: Annotated[
        NotNegative | tuple[NotNegative, ...] | None,
        key("weight of label 1 in binary_cross_entropy_with_logits: a number, or one per score; null: none", "positive_weight scale_pos_weight"),
    ] = None


# -------------------------------------------------------------------- data


class Reader(Section):
    """A reader of samples.  The other keys are its arguments."""

    model_config = ConfigDict(extra="allow")

    reader: Annotated[str, key("name of the reader")]

    @property
    def arguments(self) -> dict[str, Any]:
        """All keys except `reader`."""
        return dict(self.model_extra or {})


class Data(Section):
    """Samples and batches."""

    train: Annotated[Reader, key("training samples")]
    validation: Annotated[Reader | None, key("samples for evaluation during training", "val valid dev")] = None
    test: Annotated[Reader | None, key("samples for `jobflow eval`")] = None
    batch_size: Annotated[Count, key("samples per step, over all devices together", "batch batchsize bs global_batch_size")]
    evaluation_batch_size: Annotated[
        Count, key("samples per step of an evaluation", "eval_batch_size validation_batch_size test_batch_size", "${data.batch_size}")
    ]
    shuffle: Annotated[bool, key("shuffle the samples in each epoch, with `seed`")] = True
    drop_last: Annotated[bool, key("omit the last batch of an epoch if it is smaller")] = False
    mixup: Annotated[
        Positive | None, key("mix pairs of training samples; alpha of the Beta distribution of fractions, such as 0.2; null: never", "mixup_alpha")
    ] = None
    cutmix: Annotated[
        Positive | None, key("replace a box of a training image by that of another one; alpha, such as 1.0; null: never", "cutmix_alpha")
    ] = None
    prefetch: Annotated[int, key("number of batches that are read ahead", ge=0, le=1024)] = 2


# -------------------------------------------------------------------- how it runs


class Strategy(Section):
    """Parallelism and precision; see docs/strategies.md."""

    view: Annotated[Literal["consistent", "mirrored"], key("consistent: the model describes the whole batch; mirrored: one device")] = "consistent"
    devices: Annotated[
        Count | Literal["all"],
        key("number of ranks; all: those of mpiexec, else data x tensor x pipeline", "gpus num_gpus world_size num_devices device_num ranks"),
    ] = "all"
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        key("kind of device; cuda: GPUs, or CPUs with a notice if there is no GPU; auto: GPUs if there are any", "accelerator"),
    ] = "auto"
    data: Annotated[Count | None, key("number of parts of the batch; null: devices / (tensor x pipeline)", "dp data_parallel")] = None
    tensor: Annotated[Count, key("number of parts of each layer", "tp tensor_parallel model_parallel")] = 1
    pipeline: Annotated[Count, key("number of groups of ranks in the pipeline, each with some of the layers", "pp pipeline_parallel num_stages")] = 1
    zero: Annotated[int, key("ZeRO stage; 0: none", "zero_stage zero_optimization", ge=0, le=3)] = 0
    accumulation: Annotated[
        Count,
        key(
            "parts of the batch that are computed one after another",
            "gradient_accumulation accumulate gradient_accumulation_steps accumulation_steps",
        ),
    ] = 1
    microbatches: Annotated[Count | None, key("number of parts of the batch in a pipeline; null: that of accumulation")] = None
    recompute: Annotated[
        bool, key("compute activations again in the backward pass, to save memory", "gradient_checkpointing activation_checkpointing checkpointing")
    ] = False
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"], key("element type of matrix products and convolutions", "amp dtype mixed_precision fp16 bf16")
    ] = "float32"


class Training(Section):
    """Length of the training: epochs or steps."""

    epochs: Annotated[Count | None, key("number of passes over all samples", "num_epochs max_epochs n_epochs epoch")] = None
    steps: Annotated[Count | None, key("number of updates", "num_steps max_steps iterations max_iters step")] = None
    halt_where_not_finite: Annotated[bool, key("stop before a gradient that is not finite changes a variable; reads all gradients once more")] = True


class EarlyStopping(Section):
    """Early stopping of the training when a metric does not improve."""

    metric: Annotated[MetricKey, key("name of the metric")] = "validation/loss"
    mode: Annotated[Literal["min", "max"], key("min: smaller is better; max: larger is better")] = "min"
    patience: Annotated[Count, key("number of evaluations without improvement before training stops")]
    min_delta: Annotated[NotNegative, key("smallest change that counts as an improvement")] = 0.0


class Evaluation(Section):
    """Evaluation on `data.validation` during training."""

    every_epochs: EveryEpochs = None
    every_steps: EverySteps = None
    early_stopping: Annotated[EarlyStopping | None, key("stop when a metric does not improve; null: never", "early_stop earlystopping")] = None


class Checkpoint(Section):
    """Saving and resuming."""

    directory: Annotated[str, key("folder of the checkpoints", "dir save_dir checkpoint_dir", derived="${output}/checkpoints", min_length=1)]
    every_epochs: EveryEpochs = None
    every_steps: EverySteps = None
    keep_last: Annotated[Count, key("number of newest checkpoints that are kept", "keep max_to_keep save_total_limit")] = 3
    keep_best: Annotated[int, key("number of best checkpoints that are kept in addition", ge=0)] = 0
    best_metric: Annotated[MetricKey | None, key("metric that decides which is best", "monitor metric")] = None
    best_mode: Annotated[Literal["min", "max"], key("min: smaller is better; max: larger is better")] = "min"
    asynchronous: Annotated[bool, key("write in the background", "async")] = True
    resume: Annotated[str, key("auto: the newest complete checkpoint; never: start again; or the path of a checkpoint", min_length=1)] = "auto"
    accept_changed_model: Annotated[bool, key("resume although the model's program is not the one that saved the checkpoint")] = False


class Logging(Section):
    """Progress, metrics files and reports."""

    every_steps: Annotated[Count, key("steps between records")] = 10
    jsonl: Annotated[bool, key("write metrics.jsonl")] = True
    csv: Annotated[bool, key("write metrics.csv")] = True
    tensorboard: Annotated[bool, key("write TensorBoard events; needs tensorboardX")] = False
    report: Annotated[bool, key("write report.html and curves.png")] = True
    progress: Annotated[Literal["auto", "bar", "plain", "none"], key("progress bar or plain lines; auto: a bar on a terminal")] = "auto"


Patterns = tuple[Annotated[str, Field(min_length=1)], ...]


class StartFrom(Section):
    """Initial values of the model from another run or a file, for a run that does not resume; `*` in patterns stands for any text."""

    path: Annotated[
        str,
        key(
            "a run, a checkpoint, a folder of Hugging Face, or a .safetensors, .npz or .pt file",
            "file checkpoint ckpt weights model model_name_or_path",
            min_length=1,
        ),
    ]
    rename: Annotated[
        dict[str, str] | Literal["gpt2", "llama"],
        key(
            "pattern of names in the file: name in the model, in order; or the names of a Hugging Face model",
            "mapping map renames",
            default_factory=dict,
        ),
    ]
    transpose: Annotated[Patterns, key("patterns of the model's variables that are transposed matrices in the file", "transposed")] = ()
    only: Annotated[Patterns, key("patterns of the model's variables that are loaded", "include names", min_length=1)] = ("*",)
    skip: Annotated[Patterns, key("patterns of the model's variables that are not loaded, such as a new head", "except exclude ignore")] = ()
    strict: Annotated[bool, key("an error if the file lacks a variable; false: the variable keeps its initial value")] = True


class Callback(Section):
    """A callback of the run: a class derived from `jobflow.trainer.Callback`, and its arguments."""

    callback: Annotated[str, key('a class of callbacks, as "module:Class"', pattern=IMPORT_PATH)]
    arguments: Annotated[dict[str, Any], key("keyword arguments of the class", "args kwargs params", default_factory=dict)]


class TrainConfig(Section):
    """A training run."""

    name: Annotated[str, key("name of the run", derived="the name of the file", min_length=1)]
    seed: Annotated[int, key("seed of weights, dropout and the order of samples", "random_seed rng", ge=0, lt=2**63)] = 0
    output: Annotated[str, key("output folder", "output_dir outdir out workdir", derived="runs/${name}", min_length=1)]
    model: Annotated[Model, key("the model to train", "net network")]
    start_from: Annotated[
        StartFrom | None, key("initial values from another run or file, as a path or a map", "init_from pretrained finetune finetune_from load_from")
    ] = None
    freeze: Annotated[Patterns, key("patterns of variables that are not trained", "frozen freeze_layers")] = ()
    data: Annotated[Data, key("readers of samples, and batches")]
    optimizer: Annotated[Optimizer, key("the kind of optimizer, and its options", "optim optimiser")]
    strategy: Annotated[Strategy, key("parallelism and precision")] = Strategy()
    training: Annotated[Training, key("length of the training in epochs or steps")]
    evaluation: Annotated[Evaluation, key("evaluation during training", "eval evaluate validate")] = Evaluation()
    metrics: Annotated[tuple[Metric, ...], key("metrics over whole sets, such as [accuracy, f1]", "metric")] = ()
    checkpoint: Annotated[Checkpoint, key("checkpoints", "save ckpt checkpoints")]
    logging: Annotated[Logging, key("progress and metrics files", "log logger")] = Logging()
    sweep: Annotated[Sweep | None, key("several trainings with other values; null: one training", "hyperparameter_search search")] = None
    callbacks: Annotated[tuple[Callback, ...], key('objects whose methods the trainer calls; an entry may be "module:Class" alone')] = ()
