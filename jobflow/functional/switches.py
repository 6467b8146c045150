"""PyTorch's global switches: threads, precision of products, determinism and the default device.

On CPUs, results of jobflow are deterministic, products of float32 have full float32 precision, and elements are in row-major order.  A switch
that requests this behaviour, or permits less, is checked and stored.  On GPUs, the precision of products and determinism choose the algorithms
of products; compiled programs are compiled again at their next call.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from jobflow.core.errors import ArgumentError, user_line
from jobflow.engine.options import forget_prepared
from jobflow.engine.session import config, current_session
from jobflow.functional.casting import CLASSES, set_default_dtype
from jobflow.functional.devices import checked_device, device
from jobflow.functional.typed import Tensor
from jobflow.runtime.world.environment import usable_cores
from jobflow.tensors.state import state

__all__ = [
    "are_deterministic_algorithms_enabled", "get_default_device",
    "get_deterministic_debug_mode", "get_float32_matmul_precision", "get_num_interop_threads", "get_num_threads", "is_complex", "is_conj",
    "is_deterministic_algorithms_warn_only_enabled", "is_inference", "is_inference_mode_enabled", "is_signed", "is_storage",
    "set_default_device", "set_default_tensor_type", "set_deterministic_debug_mode", "set_float32_matmul_precision",
    "set_flush_denormal", "set_num_interop_threads", "set_num_threads", "typename", "use_deterministic_algorithms",
]  # fmt: skip


def checked_bool(what: str, name: str, value: Any) -> bool:
    """Return the argument `name` if it is True or False.  Raises: ArgumentError for another value."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{what} at {user_line()}: {name} must be True or False; got {value!r}")
    return value


def _checked_word(what: str, name: str, value: Any, words: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in words:
        raise ArgumentError(f"{what} at {user_line()}: {name} must be {', '.join(map(repr, words))}; got {value!r}")
    return value


# -------------------------------------------------------------------- precision and determinism


class _Settings:
    """The values of switches that have no effect."""

    def __init__(self) -> None:
        self.warn_only = False
        self.interop_threads = 1


_settings = _Settings()


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of float32 products on GPUs: "highest" for float32, "high" or "medium" for factors in TF32, with 10 bits of mantissa.

    The function sets `flow.config.matmul_precision`.  Products on CPUs always have the highest precision.  Raises: ArgumentError for another word.
    """
    word = _checked_word("set_float32_matmul_precision", "precision", precision, ("highest", "high", "medium"))
    config.matmul_precision(word)


def get_float32_matmul_precision() -> str:
    """Return the value of `set_float32_matmul_precision`, "highest" by default."""
    return current_session().settings.matmul_precision


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Choose algorithms on GPUs whose sums have a fixed order; all functions on CPUs are deterministic with every value.

    Programs that are bound later use products without split sums, and one algorithm of NCCL.  An operation that CuPy computes by atomic additions
    of floats is an error with its name.  `warn_only` is stored.  Raises: ArgumentError unless the arguments are True or False.
    """
    what = "use_deterministic_algorithms"
    chosen = checked_bool(what, "mode", mode), checked_bool(what, "warn_only", warn_only)
    current_session().settings.deterministic, _settings.warn_only = chosen
    forget_prepared()


def are_deterministic_algorithms_enabled() -> bool:
    """Return the value of `use_deterministic_algorithms`, False by default."""
    return current_session().settings.deterministic


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Return the value of `warn_only` of `use_deterministic_algorithms`."""
    return are_deterministic_algorithms_enabled() and _settings.warn_only


_DEBUG_MODES = ("default", "warn", "error")


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Set `use_deterministic_algorithms` by "default", "warn" or "error", or by the number 0, 1 or 2.  Raises: ArgumentError for another value."""
    what = "set_deterministic_debug_mode"
    number = debug_mode if type(debug_mode) is int and 0 <= debug_mode < 3 else None
    word = _checked_word(what, "debug_mode", debug_mode, _DEBUG_MODES) if number is None else _DEBUG_MODES[number]
    use_deterministic_algorithms(word != "default", warn_only=word == "warn")


def get_deterministic_debug_mode() -> int:
    """Return the mode of `set_deterministic_debug_mode` as a number."""
    return 0 if not are_deterministic_algorithms_enabled() else 1 if _settings.warn_only else 2


def set_flush_denormal(mode: bool) -> bool:
    """Return False: denormal numbers are never flushed.  Raises: ArgumentError unless `mode` is True or False."""
    checked_bool("set_flush_denormal", "mode", mode)
    return False


# -------------------------------------------------------------------- threads

MOST_THREADS = 2**16


def _threads(what: str, number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_THREADS:
        raise ArgumentError(f"{what} at {user_line()}: the number of threads must be an integer from 1 to {MOST_THREADS}; got {number!r}")
    return number


def set_num_threads(number: int) -> None:
    """Set the number of threads of NumPy's matrix library.  Raises: ArgumentError unless `number` is an integer of at least 1."""
    from jobflow.kernels import blas_threads  # not needed by other functions

    blas_threads.limit(_threads("set_num_threads", number))


def get_num_threads() -> int:
    """Return the number of threads of NumPy's matrix library."""
    from jobflow.kernels import blas_threads

    return blas_threads.threads() or len(usable_cores())


def set_num_interop_threads(number: int) -> None:
    """Do nothing; operations run in the thread that calls them.  Raises: ArgumentError unless `number` is an integer of at least 1."""
    _settings.interop_threads = _threads("set_num_interop_threads", number)


def get_num_interop_threads() -> int:
    """Return the value of `set_num_interop_threads`, 1 by default."""
    return _settings.interop_threads


# -------------------------------------------------------------------- defaults


class set_default_device:
    """The device of tensors created without `device=` and `placement=`; None is the host.  Raises: PlacementError for another argument.

    With the device of a global tensor, new tensors are global, and broadcast on its placement.
    In a `with` block, as for `with flow.device("cuda")`, the former device returns at the end of the block.
    """

    def __init__(self, device: Any) -> None:
        here = state()
        self.before = here.default_device
        chosen = checked_device("set_default_device", device)
        here.default_device = None if chosen is None or (chosen.type == "cpu" and chosen.placement is None) else chosen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        state().default_device = self.before


def get_default_device() -> device:
    """Return the device of tensors created without `device=`."""
    return state().default_device or device("cpu")


def set_default_tensor_type(t: Any) -> None:
    """Set the element type, and for "cuda" the device, of new tensors by a tensor class or its name, such as "jobflow.cuda.FloatTensor".

    Raises: ArgumentError for another object.
    """
    text = t if isinstance(t, str) else f"jobflow.{getattr(t, '__name__', '')}"
    *package, name = text.split(".")
    chosen = CLASSES.get(name) if package in (["jobflow"], ["jobflow", "cuda"], ["torch"], ["torch", "cuda"]) else None
    if chosen is None or not chosen.is_float:
        raise ArgumentError(f"set_default_tensor_type at {user_line()}: {t!r} is not a class of floating point tensors such as jobflow.FloatTensor")
    set_default_dtype(chosen)
    set_default_device("cuda" if package[-1] == "cuda" else "cpu")


# -------------------------------------------------------------------- queries


def is_storage(obj: Any) -> bool:
    """Return False: tensors have no storage objects."""
    return False


def is_complex(x: Tensor) -> bool:
    """Return False: there are no complex element types."""
    return False


def is_conj(x: Tensor) -> bool:
    """Return False: there are no complex element types."""
    return False


def is_signed(x: Tensor) -> bool:
    """Return True if the element type has negative numbers."""
    return x.dtype.name not in ("uint8", "bool", "bool_")


def is_inference(x: Tensor) -> bool:
    """Return False: `inference_mode` creates ordinary tensors without gradients."""
    return False


def is_inference_mode_enabled() -> bool:
    """Return False: `inference_mode` acts as `no_grad`."""
    return False


def typename(obj: Any) -> str:
    """Return the name of the type of an object with its module; for a tensor, the name of its class, such as "jobflow.FloatTensor"."""
    if isinstance(obj, Tensor):
        return str(obj.type())
    kind = obj if hasattr(obj, "__qualname__") and hasattr(obj, "__module__") else type(obj)
    module = getattr(kind, "__module__", None)
    return kind.__qualname__ if module in (None, "builtins") else f"{module}.{kind.__qualname__}"
