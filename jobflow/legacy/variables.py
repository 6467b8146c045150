"""Variables of a job: `get_variable`, and properties of the traced job for the layers.

    full name = namespaces and name joined with "-"

A full name denotes the same storage in every job of the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from numbers import Integral
from typing import TYPE_CHECKING, cast

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, ConfigError, DuplicateNameError, JobError, SbpError, ShapeError, user_line
from jobflow.core.layout import Sbp, Split
from jobflow.core.types import DType, Tensor, TensorType, float32
from jobflow.engine.distribute import Distribute, ParallelDistribution, broadcast, current_placement, mesh_sbp
from jobflow.expressions.philox import random_stream
from jobflow.graph.ir import Variable
from jobflow.legacy.initializers import Initializer, from_conf
from jobflow.legacy.job_dispatch import all_of, is_tensor, of_kinds
from jobflow.legacy.regularizers import Regularizer
from jobflow.ops import elementwise as ew
from jobflow.ops.layout_ops import ToLocal
from jobflow.ops.scalar import Detach
from jobflow.ops.source import ReadVariable
from jobflow.tensors.parameters import described

if TYPE_CHECKING:
    from jobflow.engine.staged_job import StagedBody


def current_job(what: str) -> StagedBody:
    """Return the job being traced; raise JobError outside of a job."""
    interpreter = scope.current().interpreter
    if interpreter is None:
        raise JobError(f"{what} at {user_line()}: called outside a job; call it in the body of a function decorated with global_function")
    return cast("StagedBody", interpreter)


def layer_name(job: StagedBody, prefix: str) -> str:
    """Return the first `<prefix>_<n>` that is not a prefix of a variable name in this job, for a layer without a name."""
    for n in count(1):
        name = f"{prefix}_{n}"
        full = scope.current().full_name(name)
        if not any(known.startswith((f"{full}-", f"{full}_")) for known in job.variables):
            return name
    raise AssertionError("unreachable")


def get_variable(
    name: str,
    shape: Sequence[int] | None = None,
    dtype: DType | None = float32,
    initializer: Initializer | None = None,
    regularizer: Regularizer | None = None,
    trainable: bool | None = None,
    model_name: str | None = None,
    random_seed: int | None = None,
    parallel_distribution: ParallelDistribution | Distribute | None = None,
    distribute: Distribute | None = None,
    reuse: bool = True,
) -> Tensor:
    """Return the variable `name`, which is created at its first use in the session.

    If `dtype` is None, it is the job's default type; `trainable` None means True. `distribute` (one constraint) or `parallel_distribution` (one per
    mesh dimension) sets the layout; the default is broadcast. The initial value depends on the job's seed and the name, or on `random_seed` alone.
    Variables with equal `random_seed`, shape and initializer have equal initial values. `model_name` has no effect.

    Raises: DuplicateNameError if `reuse` is False and this job already uses the name; ConfigError without an initializer. Another shape or layout of
    the same variable raises ShapeError or SbpError.

    Examples:
        >>> import jobflow.typing as tp
        >>> @flow.global_function()
        ... def bias(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        ...     zeros = flow.zeros_initializer()
        ...     return x + flow.get_variable("bias", (2,), initializer=zeros)
        ...
        >>> bias(np.float32([1, 2]))
        array([1., 2.], dtype=float32)
    """
    job = current_job(f"get_variable({name!r})")
    full = scope.current().full_name(name)
    known = job.variables.get(full)
    if known is not None:
        _check_storage(job, known, parallel_distribution or distribute)
        return _in_stage(job, _fetch(job, known, shape, reuse))
    if not isinstance(shape, list | tuple) or not all(isinstance(n, Integral) and int(n) > 0 for n in shape):
        raise ArgumentError(f"get_variable({full!r}) at {user_line()}: shape must be a list or tuple of positive ints, not {shape!r}")
    type = TensorType(tuple(int(n) for n in shape), dtype or job.default_dtype)
    placement = current_placement(f"get_variable({full!r})")
    first = _default_initializer(job, full) if initializer is None else initializer
    if not hasattr(first, "op"):
        raise ConfigError(f"variable {full!r} at {user_line()}: initializer must be an initializer such as constant_initializer(0.1), not {first!r}")
    penalty = Regularizer() if regularizer is None else regularizer
    if not isinstance(penalty, Regularizer):
        raise ConfigError(f"variable {full!r} at {user_line()}: regularizer must be a regularizer such as regularizers.l2(0.01), not {penalty!r}")
    read = job.variable(
        Variable(
            name=full,
            type=type,
            initializer=first.op(type.shape, type.dtype, *random_stream(job.seed, random_seed, full)),
            placement=placement,
            sbp=_storage(full, type, parallel_distribution, distribute),
            trainable=trainable is not False,
            l1=penalty.l1,
            l2=penalty.l2,
        )
    )
    return _in_stage(job, read)


def _in_stage(job: StagedBody, read: Tensor) -> Tensor:
    """Return `read`, the value of a variable, or the stale value of `ssp_variable_proxy` in a pipeline stage with several buffers."""
    count, key = scope.current().buffered, variable_of(read)
    return ssp_variable_proxy(read, count)[1] if count > 1 and key is not None and job.variables[key].trainable else read


def _fetch(job: StagedBody, known: Variable, shape: Sequence[int] | None, reuse: bool) -> Tensor:
    if not reuse:
        raise DuplicateNameError(
            f"variable {known.name!r} at {user_line()} already exists in this job; pass another name to the layer, or open a scope.namespace"
        )
    if shape is not None and tuple(shape) != known.type.shape:
        raise ShapeError(
            f"get_variable({known.name!r}) at {user_line()}: shape {tuple(shape)} differs from {known.type}, its type in this job; pass another name"
        )
    return job.variable(known)


def _default_initializer(job: StagedBody, full: str) -> Initializer:
    conf = None if job.config is None else job.config.options.get("default_initializer_conf")
    if conf is None:
        raise ConfigError(
            f"variable {full!r} at {user_line()} has no initializer; pass initializer=, or set default_initializer_conf in the function_config"
        )
    return from_conf(conf)


def _storage(full: str, type: TensorType, each: ParallelDistribution | Distribute | None, one: Distribute | None) -> tuple[Sbp, ...]:
    """Return the layout of a variable, with S or B per mesh dimension.

    OneFlow 0.2 had `distribute` in the position of `parallel_distribution`, so `each` may have either type.
    """
    if each is not None and one is not None:
        raise ArgumentError(f"get_variable({full!r}) at {user_line()}: pass distribute or parallel_distribution, not both")
    target = one or each or broadcast()
    what = f"get_variable({full!r})"
    placement = current_placement(what)
    sbp = mesh_sbp(what, target, type, placement)
    if scope.current().view == "mirrored" and placement.size > 1 and any(isinstance(one, Split) for one in sbp):
        raise SbpError(
            f"{what} at {user_line()}: layout {', '.join(map(str, sbp))} of {type} on {placement} is not possible in the mirrored view, where "
            f"variables are replicated; omit distribute, or use scope.consistent_view()"
        )
    return sbp


def _check_storage(job: StagedBody, known: Variable, target: ParallelDistribution | Distribute | None) -> None:
    """Raise SbpError if `target`, unless None, is another layout than the layout of the variable `known` in this job."""
    if target is None:
        return
    what = f"get_variable({known.name!r})"
    sbp = mesh_sbp(what, target, known.type, known.placement)
    if sbp != known.sbp:
        first = job.reads[known.name].node.where
        raise SbpError(
            f"{what} at {user_line()}: layout {', '.join(map(str, sbp))} of {known.type} differs from {', '.join(map(str, known.sbp))} at {first}; "
            f"pass the same layout in both places, or redistribute the value by parallel_cast"
        )


def variable_of(value: Tensor) -> str | None:
    """Return the full name of the variable that `value` reads, or None for a computed value."""
    node = getattr(value, "node", None)
    while node is not None:
        if isinstance(node.op, ReadVariable):
            return node.op.key
        # the mirrored view reads the local copy of a variable
        node = node.inputs[0].node if isinstance(node.op, ToLocal) else None
    return None


def assign(ref: Tensor, value: Tensor, dtype: DType | None = None, name: str | None = None) -> None:
    """Set the variable `ref`, a result of get_variable, to `value` at the end of the run.

    `dtype` and `name` have no effect.

    Raises: ArgumentError if `ref` is a computed tensor; ShapeError if `value` has another type.
    """
    key = variable_of(ref)
    if key is None:
        raise ArgumentError(f"assign at {user_line()}: ref must be a variable, not the computed tensor {ref}; pass a result of get_variable")
    if not is_tensor(value):
        raise ArgumentError(f"assign at {user_line()}: value must be a tensor of the job, not {described(value)}")
    if value.tensor_type != ref.tensor_type:
        raise ShapeError(f"assign at {user_line()}: value {value.tensor_type} must have the type of variable {key!r} {ref.tensor_type}")
    current_job("assign").assign(key, value)


def ssp_variable_proxy(var: Tensor, buffer_size: int = 1, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return (var, value of var `buffer_size` - 1 runs ago), with the initial value in the first runs: stale weights for pipelines.

    Gradients of the second result are added to the gradient of var. The intermediate values are variables `<variable>-ssp-<i>`.

    Raises: ArgumentError for a computed `var` or a `buffer_size` below 1.
    """
    key = variable_of(var)
    if key is None or buffer_size < 1:
        what = f"buffer_size must be at least 1, not {buffer_size}" if key else f"var must be a result of get_variable, not the computed {var}"
        raise ArgumentError(f"experimental.ssp_variable_proxy at {user_line()}: {what}")
    job = current_job("experimental.ssp_variable_proxy")
    known = job.variables[key]
    later: Tensor = var
    for i in range(buffer_size - 1):
        older = job.variable(replace(known, name=f"{key}-ssp-{i}", trainable=False, l1=0.0, l2=0.0))
        job.assign(f"{key}-ssp-{i}", later)
        later = older
    if later is var:
        return var, ew.identity(var, name=name)
    (still,) = job.apply(Detach(), [ew.subtract(later, var)], None)
    return var, ew.add(var, still, name=name)


globals().update(all_of(__name__, globals(), __name__, of_kinds))
