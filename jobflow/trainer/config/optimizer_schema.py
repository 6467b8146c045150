"""The schema of optimizers, parameter groups and learning rate schedules; see `schema`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from jobflow.trainer.config.schema_fields import IMPORTED, Count, Imported, MetricKey, NotNegative, Positive, Section, Share, key, selector

FallSteps = Annotated[Count | None, key("number of steps of the schedule; null: all steps of the training")]

# -------------------------------------------------------------------- schedules


class Constant(Section):
    name: Annotated[Literal["constant"], key("always lr")]


class Cosine(Section):
    name: Annotated[Literal["cosine"], key("half a cosine from lr to alpha lr")]
    steps: FallSteps = None
    alpha: Annotated[float, key("final rate as a fraction of lr", ge=0, le=1)] = 0.0


class Linear(Section):
    name: Annotated[Literal["linear"], key("a line from lr to end_lr")]
    steps: FallSteps = None
    end_lr: Annotated[NotNegative, key("final rate")] = 0.0


class Polynomial(Section):
    name: Annotated[Literal["polynomial"], key("from lr to end_lr: (lr - end_lr) (1 - step / steps)^power + end_lr")]
    steps: FallSteps = None
    end_lr: Annotated[NotNegative, key("final rate")] = 0.0
    power: Annotated[Positive, key("exponent; 1 is a line")] = 1.0
    cycle: Annotated[bool, key("start again after `steps`, each time for longer")] = False


class Exponential(Section):
    name: Annotated[Literal["exponential"], key("lr decay_rate^(step / steps)")]
    steps: Annotated[Count, key("steps after which the rate is decay_rate lr")]
    decay_rate: Annotated[float, key("rate after `steps` as a fraction of lr", "gamma", gt=0, le=1)]
    staircase: Annotated[bool, key("change only after each `steps`")] = False


class Piecewise(Section):
    name: Annotated[Literal["piecewise"], key("lr up to the first boundary, lr scales[i] after boundary i")]
    boundaries: Annotated[tuple[Count, ...], key("steps in increasing order", "milestones", min_length=1)]
    scales: Annotated[tuple[NotNegative, ...], key("fractions of lr, one per boundary", min_length=1)]


class OneCycle(Section):
    name: Annotated[Literal["one_cycle"], key("half a cosine from start lr up to lr, then half a cosine down to end lr")]
    steps: FallSteps = None
    rise: Annotated[float, key("fraction of the steps in which the rate rises", "pct_start", gt=0, lt=1)] = 0.3
    start: Annotated[float, key("first rate as a fraction of lr", gt=0, le=1)] = 0.04
    end: Annotated[float, key("final rate as a fraction of lr", ge=0, le=1)] = 4e-6


class Plateau(Section):
    name: Annotated[Literal["plateau"], key("lr, multiplied by factor each time that a metric of the evaluations does not improve")]
    metric: Annotated[MetricKey, key("name of the metric")] = "validation/loss"
    mode: Annotated[Literal["min", "max"], key("min: smaller is better; max: larger is better")] = "min"
    factor: Annotated[float, key("factor of the rate", gt=0, lt=1)] = 0.1
    patience: Annotated[Count, key("number of evaluations without improvement before the rate falls")] = 10
    min_delta: Annotated[NotNegative, key("smallest change that counts as an improvement", "threshold")] = 0.0
    cooldown: Annotated[int, key("number of evaluations after a fall that are not counted", ge=0)] = 0
    min_lr: Annotated[NotNegative, key("smallest rate")] = 0.0


class ImportedSchedule(Section):
    name: Annotated[Imported, key("a function of `step`, the number of earlier updates, that returns the rate; it may have parameters lr and steps")]
    arguments: Annotated[dict[str, Any], key("keyword arguments of the function", "args kwargs params", default_factory=dict)]


Schedule = Annotated[
    Annotated[Constant, Tag("constant")]
    | Annotated[Cosine, Tag("cosine")]
    | Annotated[Linear, Tag("linear")]
    | Annotated[Polynomial, Tag("polynomial")]
    | Annotated[Exponential, Tag("exponential")]
    | Annotated[Piecewise, Tag("piecewise")]
    | Annotated[OneCycle, Tag("one_cycle")]
    | Annotated[Plateau, Tag("plateau")]
    | Annotated[ImportedSchedule, Tag(IMPORTED)],
    Discriminator(selector),
]

# -------------------------------------------------------------------- optimizers

Pattern = Annotated[str, Field(min_length=1)]


class Group(Section):
    """Parameters with a learning rate or weight decay of their own; the first matching group applies."""

    match: Annotated[Pattern | tuple[Pattern, ...], key('pattern of the names of parameters, such as "*.bias", or a list of patterns', "params")]
    lr: Annotated[Positive | None, key("learning rate, which follows the schedule; null: that of the optimizer", "learning_rate")] = None
    weight_decay: Annotated[NotNegative | None, key("weight decay; null: that of the optimizer", "wd decay")] = None


_ADDED = "each gradient has weight_decay w added, for each weight w"


class _Optimizer(Section):
    name: Annotated[str, key("which", "type kind optimizer_name")]
    lr: Annotated[Positive, key("learning rate", "learning_rate learningrate learn_rate base_lr lr_rate rate")]
    clip_norm: Annotated[
        Positive | None,
        key("maximum norm of all gradients together; null: no clipping", "gradient_clip clip_grad_norm grad_clip max_grad_norm clip max_norm"),
    ] = None
    clip_value: Annotated[Positive | None, key("maximum size of each element of a gradient; null: no clipping", "clip_grad_value")] = None
    groups: Annotated[tuple[Group, ...], key("learning rates and weight decays of groups of parameters", "param_groups parameter_groups")] = ()
    schedule: Annotated[Schedule, key("schedule of the learning rate", "scheduler lr_scheduler lr_schedule")] = Constant(name="constant")
    warmup_steps: Annotated[int, key("number of first steps in which the rate rises to lr", "warmup warm_up", ge=0)] = 0


class _Decaying(_Optimizer):
    weight_decay: Annotated[NotNegative, key("each step subtracts lr weight_decay w from each weight w", "wd l2 decay weightdecay")] = 0.0


class Sgd(_Decaying):
    name: Annotated[Literal["sgd"], key("plain gradient descent: w - lr g")]


class Momentum(_Decaying):
    name: Annotated[Literal["momentum"], key("gradient descent with momentum: v = momentum v - lr g, w + v")]
    momentum: Annotated[Share, key("fraction of the previous update that is kept")] = 0.9


class _Moments(_Optimizer):
    beta1: Annotated[Share, key("decay of the mean gradient")] = 0.9
    beta2: Annotated[Share, key("decay of the mean squared gradient")] = 0.999


class Adam(_Moments):
    name: Annotated[Literal["adam"], key("Adam")]
    epsilon: Annotated[Positive, key("added to the divisor")] = 1e-8
    bias_correction: Annotated[bool, key("correct the means for their start at 0")] = True


class AdamW(_Moments, _Decaying):
    name: Annotated[Literal["adamw"], key("Adam with decoupled weight decay")]
    epsilon: Annotated[Positive, key("added to the divisor")] = 1e-8
    bias_correction: Annotated[bool, key("correct the means for their start at 0")] = True


class Lamb(_Moments, _Decaying):
    name: Annotated[Literal["lamb"], key("the direction of Adam, scaled by the norm of each variable")]
    epsilon: Annotated[Positive, key("added to the divisor")] = 1e-6


class Lars(_Decaying):
    name: Annotated[Literal["lars"], key("momentum, with a rate per variable in proportion to |w| / |g|")]
    momentum: Annotated[Share, key("fraction of the previous update that is kept")] = 0.9
    epsilon: Annotated[Positive, key("added to the divisor")] = 1e-9
    coefficient: Annotated[Positive, key("the factor of |w| / |g|")] = 1e-4


class RmsProp(_Optimizer):
    name: Annotated[Literal["rmsprop"], key("gradients divided by their mean size: w - lr g / sqrt(mean of g^2)")]
    decay_rate: Annotated[Share, key("decay of the mean squared gradient")] = 0.99
    epsilon: Annotated[Positive, key("added to the mean squared gradient")] = 1e-8
    centered: Annotated[bool, key("divide by the standard deviation instead")] = False


class Adagrad(_Optimizer):
    name: Annotated[Literal["adagrad"], key("gradients divided by the root of the sum of their squares over all steps")]
    lr_decay: Annotated[NotNegative, key("decay of the rate: lr / (1 + step lr_decay)")] = 0.0
    epsilon: Annotated[Positive, key("added to the divisor")] = 1e-10
    initial_accumulator: Annotated[NotNegative, key("initial sum of squares")] = 0.0
    weight_decay: Annotated[NotNegative, key(_ADDED)] = 0.0


class Adadelta(_Optimizer):
    name: Annotated[Literal["adadelta"], key("gradients scaled by the sizes of earlier updates; lr is usually 1")]
    rho: Annotated[Share, key("decay of the mean squares")] = 0.9
    epsilon: Annotated[Positive, key("added to the mean squares")] = 1e-6
    weight_decay: Annotated[NotNegative, key(_ADDED)] = 0.0


class _AddedDecay(_Moments):
    epsilon: Annotated[Positive, key("added to the divisor")] = 1e-8
    weight_decay: Annotated[NotNegative, key(_ADDED)] = 0.0


class RAdam(_AddedDecay):
    name: Annotated[Literal["radam"], key("Adam with a rectified variance in the first steps")]
    decoupled: Annotated[bool, key("subtract the weight decay from the weights, as adamw does")] = False


class NAdam(_AddedDecay):
    name: Annotated[Literal["nadam"], key("Adam with Nesterov momentum")]
    momentum_decay: Annotated[NotNegative, key("decay of the momentum")] = 4e-3
    decoupled: Annotated[bool, key("subtract the weight decay from the weights, as adamw does")] = False


class Adamax(_AddedDecay):
    name: Annotated[Literal["adamax"], key("Adam with the largest gradients instead of their mean square")]


class Lion(_Decaying):
    name: Annotated[Literal["lion"], key("steps of size lr by the sign of a mean gradient")]
    beta1: Annotated[Share, key("share of the mean gradient in a step")] = 0.9
    beta2: Annotated[Share, key("decay of the mean gradient")] = 0.99


class Rprop(_Optimizer):
    name: Annotated[Literal["rprop"], key("steps by the sign of the gradient, with one step size per element; for whole batches")]
    shrink: Annotated[float, key("factor of the step size after a change of the sign", gt=0, lt=1)] = 0.5
    grow: Annotated[float, key("factor of the step size otherwise", gt=1)] = 1.2
    min_step: Annotated[Positive, key("smallest step size")] = 1e-6
    max_step: Annotated[Positive, key("largest step size")] = 50.0


class Asgd(_Optimizer):
    name: Annotated[Literal["asgd"], key("averaged gradient descent; the average is in the checkpoint as <parameter>-ax")]
    lambd: Annotated[NotNegative, key("decay term")] = 1e-4
    alpha: Annotated[Positive, key("exponent of the rate")] = 0.75
    t0: Annotated[NotNegative, key("step after which the average begins")] = 1e6
    weight_decay: Annotated[NotNegative, key(_ADDED)] = 0.0


class SparseAdam(_Moments):
    name: Annotated[Literal["sparse_adam"], key("Adam that does not change rows of a table without a gradient")]
    epsilon: Annotated[Positive, key("added to the divisor")] = 1e-8


class ImportedOptimizer(_Optimizer):
    name: Annotated[Imported, key("a class of jobflow.optim.Optimizer that defines `rule`")]
    arguments: Annotated[dict[str, Any], key("keyword arguments of the class, except lr", "args kwargs params", default_factory=dict)]


Optimizer = Annotated[
    Annotated[Sgd, Tag("sgd")]
    | Annotated[Momentum, Tag("momentum")]
    | Annotated[Adam, Tag("adam")]
    | Annotated[AdamW, Tag("adamw")]
    | Annotated[Lamb, Tag("lamb")]
    | Annotated[Lars, Tag("lars")]
    | Annotated[RmsProp, Tag("rmsprop")]
    | Annotated[Adagrad, Tag("adagrad")]
    | Annotated[Adadelta, Tag("adadelta")]
    | Annotated[RAdam, Tag("radam")]
    | Annotated[NAdam, Tag("nadam")]
    | Annotated[Adamax, Tag("adamax")]
    | Annotated[Lion, Tag("lion")]
    | Annotated[Rprop, Tag("rprop")]
    | Annotated[Asgd, Tag("asgd")]
    | Annotated[SparseAdam, Tag("sparse_adam")]
    | Annotated[ImportedOptimizer, Tag(IMPORTED)],
    Discriminator(selector),
]
