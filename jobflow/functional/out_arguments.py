"""The argument `out=` of functions of tensors: the result is computed first, and then copied into existing tensors.

`dispatch` calls `write_result` for the functions in `NAMES`, which have this argument in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from jobflow.core.errors import ArgumentError, DtypeError, JobError, PlacementError, ShapeError, counted, user_line
from jobflow.core.types import Typed
from jobflow.tensors.parameters import described
from jobflow.tensors.state import building_now, running, state
from jobflow.tensors.tensor import TensorBase

_NAMES = """
abs acos acosh add addbmm addcdiv addcmul addmm addmv addr all amax amin aminmax any arange asin asinh atan atan2 atanh baddbmm bernoulli
bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm bucketize cat ceil chain_matmul cholesky cholesky_ex
cholesky_inverse cholesky_solve clamp clip column_stack concat concatenate cond copysign cos cosh cross cummax cummin cumprod cumsum deg2rad det
diag diff digamma div divide dot dstack eig eigh eigvals eigvalsh empty entr eq erf erfc erfcx erfinv exp exp2 expit expm1 eye fix float_power floor
floor_divide fmax fmin fmod frac frexp full gammainc gammaincc gammaln gather gcd ge ger greater greater_equal gt heaviside histc
householder_product hstack hypot i0 i0e i1 i1e igamma igammac index_select inner inv inv_ex inverse isneginf isposinf kron kthvalue lcm ldexp le
lerp less less_equal lgamma linspace log log10 log1p log2 log_ndtr logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor
logit logspace logsumexp lt lu lu_factor lu_solve masked_select matmul matrix_norm matrix_power matrix_rank max maximum mean median min minimum mm
mode msort mul multi_dot multigammaln multinomial multiply mv mvlgamma nan_to_num nanmean nanmedian nanquantile ndtr ndtri ne neg negative nextafter
nonzero norm normal not_equal ones outer pinv polygamma pow psi qr quantile rad2deg rand randint randn randperm range reciprocal remainder renorm
round row_stack rsqrt searchsorted sgn sigmoid sign signbit sin sinc sinh slogdet solve solve_ex solve_triangular sort sqrt square stack std sub
subtract sum svd svdvals take take_along_dim tan tanh tensordot tensorinv tensorsolve topk tril triu true_divide trunc var vdot vecdot vector_norm
vstack where xlog1py xlogy zeros zeta
"""
#: functions of `flow`, `flow.linalg` and `flow.special` with `out=`
NAMES: Set[str] = frozenset(_NAMES.split())


def write_result(what: str, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any], creates: bool = False) -> Any:
    """Call `function` without `out`, copy its result into the tensors of `out`, and return them.

    A function that `creates` tensors has the element type and the GPU of `out` by default.
    Raises: JobError if gradients are recorded; ArgumentError, PlacementError, ShapeError and DtypeError for tensors that cannot hold the result.
    """
    rest = {name: value for name, value in named.items() if name != "out"}
    out = named["out"]
    if out is None:
        return function(*arguments, **rest)
    targets = list(out) if isinstance(out, tuple | list) else [out]
    for x in targets or [out]:
        _check_target(what, x)
    _check_gradients(what, [*arguments, *rest.values(), *targets])
    if creates and rest.get("dtype") is None:
        rest["dtype"] = targets[0].dtype
    if creates and rest.get("device") is None and targets[0].layout is None and targets[0].is_cuda:
        rest["device"] = targets[0].device
    result = function(*arguments, **rest)
    results = list(result) if isinstance(result, tuple | list) else [result]
    if len(results) != len(targets) or isinstance(out, tuple | list) != isinstance(result, tuple | list):
        raise ArgumentError(f"{what} at {user_line()}: out must be {_number(result)}; got {_number(out)}")
    for x, value in zip(targets, results, strict=True):
        _copy(what, x, value)
    if not isinstance(result, tuple):
        return out
    return type(result)(*targets) if hasattr(result, "_fields") else tuple(targets)


def _number(result: Any) -> str:
    return f"a {type(result).__mro__[-2].__name__} of {counted(len(result), 'tensor')}" if isinstance(result, tuple | list) else "a tensor"


def _check_target(what: str, x: Any) -> None:
    if isinstance(x, Typed):
        raise JobError(f"{what} at {user_line()}: out is a tensor of a job, which cannot be overwritten; use the result of the function")
    if not isinstance(x, TensorBase):
        raise ArgumentError(f"{what} at {user_line()}: out must be a tensor, or a tuple of tensors; got {described(x)}")


def _check_gradients(what: str, tensors: list[Any]) -> None:
    """Raise JobError if gradients are recorded for a tensor."""
    listed = [x for each in tensors for x in (each if isinstance(each, tuple | list) else [each])]
    if state().grad_enabled and any(isinstance(x, TensorBase) and x._needs_gradient for x in listed):
        raise JobError(f"{what} at {user_line()}: out= has no gradient, but a tensor requires gradients; omit out, or use no_grad()")


def _copy(what: str, x: Any, value: Any) -> None:
    """Overwrite x with `value`; an empty x receives the shape of `value`."""
    from jobflow.functional import in_place, promotion  # import this module through `dispatch`

    if state().gpus and building_now() is None and x.layout is None and value.layout is None and x.device != value.device:
        raise PlacementError(f"{what} at {user_line()}: the result is on {value.device}, but out is on {x.device}; pass an out on {value.device}")
    if not in_place.holds(x, value):
        raise DtypeError(
            f"{what} at {user_line()}: the result is {value.tensor_type}, which out {x.tensor_type} cannot hold; pass an out of this type"
        )
    if x.tensor_type.shape == value.tensor_type.shape:
        in_place.written(x, f"{what}(out=)", value)
    elif x.tensor_type.size or building_now() is not None:
        running_now = f" while {running()} runs" if building_now() is not None else ""
        raise ShapeError(
            f"{what} at {user_line()}: out is {x.tensor_type}, but the result is {value.tensor_type}{running_now}; pass a tensor of this shape"
            f"{'' if running_now else ', or an empty tensor'}"
        )
    else:
        x.data = promotion.cast(value, x.dtype).clone()
