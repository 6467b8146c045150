"""Arrays that NumPy samples while a compiled function is traced; every run of the plan samples them again."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jobflow.core.errors import JobError, user_line
from jobflow.core.types import Array
from jobflow.tensors.run_values import HostValue
from jobflow.tensors.state import building_now, note_error

#: functions of `numpy.random` that sample nothing, or overwrite their argument
_OTHERS = frozenset({"seed", "get_state", "set_state", "shuffle", "bytes"})
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_lock = threading.Lock()
#: original functions by name, while functions are traced, and the number of these traces
_originals: dict[str, Any] = {}
_traces = 0


class HostArray:
    """An array that NumPy sampled during tracing; only its shape and type are known, and `flow.tensor` makes it an input of the plan."""

    #: makes NumPy arrays on the left of an operator defer to this class
    __array_ufunc__ = None

    def __init__(self, array: Array, compute: Callable[[], Array]) -> None:
        self._array, self._compute = array, compute
        self.shape, self.dtype, self.ndim, self.size = array.shape, array.dtype, array.ndim, array.size

    def _derived(self, function: Callable[[Array], Array]) -> HostArray:
        return HostArray(function(self._array), lambda: function(self._compute()))

    def astype(self, dtype: Any) -> HostArray:
        """Return the array with another element type."""
        return self._derived(lambda array: array.astype(dtype))

    def reshape(self, *shape: Any) -> HostArray:
        """Return the array with another shape."""
        return self._derived(lambda array: array.reshape(*shape))

    def tensor(self) -> Any:
        """Return the array as a tensor of the program being traced."""
        return building_now().host_array(self._array, self._compute)

    def __len__(self) -> int:
        return len(self._array)

    def __neg__(self) -> HostArray:
        return self._derived(operator.neg)

    def _refuse(self, *_: Any) -> Any:
        raise _unknown()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _unknown()

    __array__ = __bool__ = __float__ = __int__ = __index__ = __iter__ = __getitem__ = __setitem__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = object.__hash__


def _unknown() -> JobError:
    note_error(building_now())
    return JobError(
        f"numpy.random at {user_line()}: the elements of a sampled array are not known while flow.compile runs; pass the array to flow.tensor, or "
        "use the random functions of jobflow"
    )


def _binary(name: str, reflected: bool) -> Callable[[HostArray, Any], Any]:
    apply = getattr(operator, name)

    def method(self: HostArray, other: Any) -> Any:
        if not isinstance(other, bool | int | float | np.number):
            return NotImplemented
        return self._derived(lambda array: apply(other, array) if reflected else apply(array, other))

    return method


for _name in _BINARY:
    setattr(HostArray, f"__{_name}__", _binary(_name, False))
    setattr(HostArray, f"__r{_name}__", _binary(_name, True))


def numpy_state() -> tuple[Any, ...]:
    """Return the state of NumPy's global random generator as a tuple that can be compared with ==."""
    state: Any = np.random.get_state()
    name, keys, *rest = state
    return name, keys.tobytes(), *rest


@contextmanager
def numpy_sampling() -> Iterator[None]:
    """Record calls of `numpy.random.normal` and similar functions inside the `with` block, in threads that trace a compiled function."""
    global _traces
    with _lock:
        _traces += 1
        if _traces == 1:
            of_module = {name: getattr(np.random, name) for name in np.random.__all__ if name not in _OTHERS}
            _originals.update({name: f for name, f in of_module.items() if getattr(f, "__self__", None) is np.random.mtrand._rand})
            for name, function in _originals.items():
                setattr(np.random, name, _recorded(function))
    try:
        yield
    finally:
        with _lock:
            _traces -= 1
            if not _traces:
                for name, function in _originals.items():
                    setattr(np.random, name, function)
                _originals.clear()


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def sample(*arguments: Any, **options: Any) -> Any:
        recorder = building_now()
        if recorder is None or not recorder.differentiates:
            return function(*arguments, **options)
        before = numpy_state()
        array = function(*arguments, **options)
        latest = [array]

        def again() -> None:
            latest[0] = function(*arguments, **options)

        recorder.sampled(again, before)
        if isinstance(array, int | float):
            return HostValue(f"numpy.random.{function.__name__}", type(array), lambda run: latest[0], None, lambda: latest[0])
        return HostArray(array, lambda: latest[0])

    return sample
