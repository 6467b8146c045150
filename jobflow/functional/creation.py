"""Tensors from shapes and data: local ones, or global ones with `placement=` and `sbp=`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, ConfigError, DtypeError, JobError, JobflowError, SbpError, ShapeError, user_line
from jobflow.core.layout import B, Layout, Partial, Split
from jobflow.core.types import Array, DType, dtype_of, float64, hides_elements, int64, type_of
from jobflow.eager import crossing
from jobflow.eager.convert import agree
from jobflow.eager.convert import empty as no_piece
from jobflow.eager.run import addend, run, source
from jobflow.eager.state import building_now, state
from jobflow.functional.devices import checked_device, marked
from jobflow.functional.dispatch import method
from jobflow.functional.global_tensors import layout_of
from jobflow.functional.promotion import Number, cast, check_numbers, fitting, number_dtype, number_kind
from jobflow.functional.typed import Tensor
from jobflow.ops.axes import ExpandDims
from jobflow.ops.compare import Equal
from jobflow.ops.scalar import FillLike
from jobflow.ops.source import Arange, Constant, Linspace, Literal
from jobflow.ops.transcendental import Power

__all__ = [
    "arange", "as_tensor", "empty", "empty_like", "eye", "from_numpy", "full", "full_like", "linspace", "logspace", "ones", "ones_like", "range",
    "tensor", "zeros", "zeros_like",
]  # fmt: skip


class Place:
    """What the keywords of a factory say: where the tensor lies, its element type, whether it requires gradients."""

    KEYWORDS = ("dtype", "device", "placement", "sbp", "requires_grad", "pin_memory")

    def __init__(self, what: str, options: dict[str, Any], dtype: DType | None = None, like: Tensor | None = None) -> None:
        unknown = sorted(set(options) - set(self.KEYWORDS))
        if unknown:
            raise TypeError(f"{what} at {user_line()}: unknown keyword {unknown[0]!r}; it takes {', '.join(self.KEYWORDS[:5])}")
        self.what = what
        self.dtype: DType = _dtype(what, options.get("dtype") or dtype or state().default_dtype)
        self.device = checked_device(what, options.get("device"))
        self.placement, self.sbp = options.get("placement"), options.get("sbp")
        self.requires_grad = bool(options.get("requires_grad"))
        self.like = like
        if self.device is not None and (self.placement is not None or self.sbp is not None):
            raise ConfigError(
                f"{what} at {user_line()}: device={self.device} is for a local tensor, placement={self.placement!r} with sbp={self.sbp!r} for a "
                f"global one; give one or the other"
            )
        if self.requires_grad and not self.dtype.is_float:
            raise DtypeError(f"{what} at {user_line()}: only floating point tensors have gradients; this one would be {self.dtype.name}")

    def layout(self, ndim: int) -> Layout | None:
        """Of a tensor of so many axes; None for a local one.  Split as another tensor is, where there is such an axis."""
        if self.placement is None and self.sbp is None and self.like is not None and self.device is None:
            given = self.like.layout
            return given and Layout(given.placement, tuple(B if isinstance(sbp, Split) and sbp.axis >= ndim else sbp for sbp in given.sbp))
        return layout_of(self.what, self.placement, self.sbp, ndim)

    def drawn(self, ndim: int) -> Layout | None:
        """The same of a tensor of random numbers, which cannot be partial."""
        layout = self.layout(ndim)
        if layout is not None and any(isinstance(sbp, Partial) for sbp in layout.sbp):
            if self.placement is None and self.like is not None:
                return Layout(layout.placement, tuple(B if isinstance(sbp, Partial) else sbp for sbp in layout.sbp))
            raise SbpError(f"{self.what} at {user_line()}: random numbers cannot be partial: they are not the sum of others; use split or broadcast")
        return layout

    def finished(self, x: Tensor) -> Tensor:
        """The tensor with what is left of the options."""
        marked(x, self.device)
        x._needs_gradient = self.requires_grad or x._needs_gradient
        return x


def _dtype(what: str, given: Any) -> DType:
    try:
        return dtype_of(given)
    except (KeyError, TypeError, ValueError):
        raise DtypeError(f"{what} at {user_line()}: dtype={given!r} is not one of jobflow's element types") from None


def shape_of(what: str, sizes: Sequence[Any], options: dict[str, Any]) -> tuple[int, ...]:
    """The shape that f(2, 3), f((2, 3)) and f(size=(2, 3)) mean; "size" is taken out of the options."""
    given = options.pop("size", options.pop("shape", None))
    if given is not None:
        if sizes:
            raise ShapeError(f"{what} at {user_line()}: the shape is given twice, as {sizes} and as size={given}")
        sizes = (given,)
    if len(sizes) == 1 and isinstance(sizes[0], Sequence | np.ndarray):
        sizes = tuple(sizes[0])
    if not all(isinstance(n, int | np.integer) and n >= 0 for n in sizes):
        raise ShapeError(f"{what} at {user_line()}: a shape is made of integers, 0 or more; got {tuple(sizes)}")
    return tuple(int(n) for n in sizes)


# -------------------------------------------------------------------- one value


def _filled(what: str, shape: tuple[int, ...], value: Number, place: Place) -> Tensor:
    return place.finished(source(Constant(shape, place.dtype, fitting(value, place.dtype)), place.layout(len(shape))))


def zeros(*sizes: Any, **options: Any) -> Tensor:
    """A tensor of zeros; its shape as numbers, a tuple or `size=`.

    Keywords here and of all factories: dtype, device, requires_grad; placement and sbp for a global tensor.
    """
    return _filled("zeros", shape_of("zeros", sizes, options), 0, Place("zeros", options))


def ones(*sizes: Any, **options: Any) -> Tensor:
    """A tensor of ones; where it is partial, the first rank has them and the others zeros."""
    return _filled("ones", shape_of("ones", sizes, options), 1, Place("ones", options))


def empty(*sizes: Any, **options: Any) -> Tensor:
    """A tensor to be written into; its values are zeros."""
    return _filled("empty", shape_of("empty", sizes, options), 0, Place("empty", options))


def full(size: Any, fill_value: Any, **options: Any) -> Tensor:
    """A tensor all of whose elements are `fill_value`."""
    value = number(fill_value, "full")
    shape = shape_of("full", (size,), {})
    return _filled("full", shape, value, Place("full", options, None if number_kind(value) == 2 else number_dtype(value)))


def number(value: Any, what: str) -> Number:
    """A number of Python from whatever is one."""
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.shape in ((), (1,)):
        value = value.item()
    if not isinstance(value, int | float):
        raise DtypeError(f"{what} at {user_line()}: a number is needed; got {value!r}")
    return value


def _like(what: str, x: Tensor, value: Number, options: dict[str, Any]) -> Tensor:
    place = Place(what, options, x.dtype, x)
    if x.traced is not None and place.placement is None and place.sbp is None and place.device is None:
        return place.finished(run(FillLike(fitting(value, place.dtype), place.dtype), x.detach()))
    return _filled(what, x.tensor_type.shape, value, place)


def zeros_like(x: Tensor, **options: Any) -> Tensor:
    """Zeros in the shape, element type and layout of x, unless the keywords say otherwise."""
    return _like("zeros_like", x, 0, options)


def ones_like(x: Tensor, **options: Any) -> Tensor:
    """Ones likewise."""
    return _like("ones_like", x, 1, options)


def empty_like(x: Tensor, **options: Any) -> Tensor:
    """A tensor to be written into, likewise."""
    return _like("empty_like", x, 0, options)


def full_like(x: Tensor, fill_value: Any, **options: Any) -> Tensor:
    """A tensor all of whose elements are `fill_value`, likewise."""
    return _like("full_like", x, number(fill_value, "full_like"), options)


def new_zeros(x: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """Zeros of another shape in the element type and layout of x, unless the keywords say otherwise."""
    return _filled("new_zeros", shape_of("new_zeros", sizes, options), 0, Place("new_zeros", options, x.dtype, x))


def new_ones(x: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """Ones likewise."""
    return _filled("new_ones", shape_of("new_ones", sizes, options), 1, Place("new_ones", options, x.dtype, x))


def new_empty(x: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """A tensor to be written into, likewise."""
    return _filled("new_empty", shape_of("new_empty", sizes, options), 0, Place("new_empty", options, x.dtype, x))


def new_full(x: Tensor, size: Any, fill_value: Any, **options: Any) -> Tensor:
    """A tensor all of whose elements are `fill_value`, likewise."""
    return _filled("new_full", shape_of("new_full", (size,), {}), number(fill_value, "new_full"), Place("new_full", options, x.dtype, x))


def new_tensor(x: Tensor, data: Any, **options: Any) -> Tensor:
    """A tensor of these data in the element type and layout of x, unless the keywords say otherwise."""
    return _from_data("new_tensor", data, options, x.dtype, x)


# -------------------------------------------------------------------- data


def tensor(data: Any, **options: Any) -> Tensor:
    """A tensor of these data: a number, nested lists, a NumPy array, another tensor; they are copied.

    Floats of Python become float32, their integers int64; arrays keep their element type.  With placement= and sbp= the data are the
    logical value, which every rank passes and of which it keeps its piece.  In the body of a job they are a constant of the job: they
    are what they are when the body runs, once.
    Raises: DivergedError on every rank if they pass different data.
    """
    return _from_data("tensor", data, options)


def _from_data(what: str, data: Any, options: dict[str, Any], dtype: DType | None = None, like: Tensor | None = None) -> Tensor:
    if isinstance(data, Tensor) and "placement" not in options and "sbp" not in options and like is None:
        place = Place(what, options, data.dtype)
        return place.finished(cast(data.detach(), place.dtype) if place.dtype is not data.dtype else data.detach().clone())
    array = array_of(what, data)
    numbers = not isinstance(data, np.ndarray | np.generic | Tensor)
    place = Place(what, options, dtype or (state().default_dtype if numbers and array.dtype == np.float64 else dtype_of(array.dtype)))
    place.like = like
    layout = place.layout(array.ndim)
    if array.dtype != place.dtype.numpy:
        if numbers and place.dtype.is_integer:
            _check_span(what, array, place.dtype)
        with np.errstate(all="ignore"):
            array = array.astype(place.dtype.numpy)
    if layout is None or in_a_job():
        return place.finished(_holding(array))
    tracer, tensor = building_now(), cut(what, array, layout)
    if tracer is not None and tracer.differentiates:
        tracer.constant(tensor)
    return place.finished(tensor)


def _check_span(what: str, array: Array, dtype: DType) -> None:
    """DtypeError for numbers of Python that a type of integers does not have; negative ones are counted from above where there are none."""
    low, high = dtype.span
    low = low or -high
    outside = array[~((np.trunc(array) >= low) & (array < high + 1))]
    if outside.size:
        raise DtypeError(
            f"{what} at {user_line()}: {outside.item(0)} is beyond {dtype.name}, {int(dtype.span[0])} to {int(high)}; give a larger dtype"
        )


def in_a_job() -> bool:
    """Whether the body of a job is recorded, where tensors have no numbers and no layouts yet."""
    recording = building_now()
    return recording is not None and not recording.lays


def _holding(array: Array) -> Tensor:
    """A local tensor in the memory of an array; in the body of a job or a compiled function, a constant of the program."""
    tracer = building_now()
    traced = tracer is not None and (tracer.differentiates or not tracer.lays)
    return source(Literal.of(array), None) if traced else Tensor.new(type_of(array), None, array)


def array_of(what: str, data: Any) -> Array:
    """The data as an array of one of jobflow's element types, of its own; floats of Python are float64."""
    check_numbers(what, data)
    try:
        array = np.array(_numbers(what, data))
    except ValueError as error:
        if isinstance(error, JobflowError):
            raise
        raise ShapeError(f"{what} at {user_line()}: lists beside each other have different lengths ({error}); make them equally long") from None
    try:
        dtype_of(array.dtype)
    except (KeyError, TypeError):
        raise DtypeError(
            f"{what} at {user_line()}: NumPy makes {array.dtype} of the data, which is not one of jobflow's element types; convert it first"
        ) from None
    return array


def _numbers(what: str, data: Any) -> Any:
    """Tensors within nested lists as arrays."""
    if isinstance(data, Tensor):
        if data.traced is not None:
            raise JobError(
                f"{what} at {user_line()}: the data contain a tensor {data.tensor_type}, which has no numbers yet; join tensors with "
                f"flow.stack or flow.cat"
            )
        return data.numpy()
    if isinstance(data, list | tuple) and any(isinstance(each, Tensor | list | tuple) for each in data):
        return [_numbers(what, each) for each in data]
    return data


def whole(layout: Layout) -> Layout:
    """The same ranks, each with the full value."""
    return Layout(layout.placement, (B,) * len(layout.sbp))


def cut(what: str, array: Array, layout: Layout) -> Tensor:
    """The global tensor whose logical value every rank has as `array`."""
    here = state()
    type = type_of(array)
    digest = zlib.crc32(np.ascontiguousarray(array).tobytes(), zlib.crc32(f"{type} {layout}".encode())) if here.rank.size > 1 else 0
    if here.rank.size > 1:
        with scope.lock():
            agree(
                here,
                here.rank.comm,
                digest,
                lambda: f"{what} of {_shortened(array)}, {type} {layout}, at {user_line()}; every rank passes the same logical value",
            )
    made = Tensor.new(type, layout, _piece_of(array, layout, here.rank.index))
    made.origin = digest
    return made


def _piece_of(array: Array, layout: Layout, rank: int) -> Array:
    if rank not in layout.placement.ranks:
        return no_piece(type_of(array))
    return addend(np.array(array[layout.box(array.shape, rank).slices]), layout, rank)


def _shortened(array: Array) -> str:
    return np.array2string(array, threshold=8, edgeitems=2, separator=", ").replace("\n", "")


def as_tensor(data: Any, **options: Any) -> Tensor:
    """The data as a tensor, which shares the memory of an array of the right type; a tensor of the right type is itself."""
    if isinstance(data, Tensor) and not options.get("placement"):
        place = Place("as_tensor", options, data.dtype)
        return place.finished(cast(data, place.dtype))
    if isinstance(data, np.ndarray) and not options.get("placement"):
        place = Place("as_tensor", options, _dtype("as_tensor", data.dtype))
        if data.dtype == place.dtype.numpy and not hides_elements(data):
            return place.finished(_holding(data))
    return _from_data("as_tensor", data, options)


def from_numpy(array: Array) -> Tensor:
    """A local tensor in the memory of a NumPy array."""
    if not isinstance(array, np.ndarray):
        raise DtypeError(f"from_numpy at {user_line()}: it takes a NumPy array; got {array!r}")
    _dtype("from_numpy", array.dtype)
    check_numbers("from_numpy", array)
    return Tensor.new(type_of(array), None, array)


# -------------------------------------------------------------------- ranges


def arange(start: Number, end: Number | None = None, step: Number = 1, **options: Any) -> Tensor:
    """The numbers start, start + step, ... before end; from 0 if only one is given."""
    if end is None:
        start, end = 0, start
    start, end, step = (number(each, "arange") for each in (start, end, step))
    if not all(map(math.isfinite, (start, end, step))) or not step or (end - start) / step < 0:
        raise ArgumentError(f"arange at {user_line()}: no steps of {step} lead from {start} to {end}")
    default = None if any(number_kind(each) == 2 for each in (start, end, step)) else int64
    place = Place("arange", options, default)
    count = -int(-((end - start) / step) // 1) if default is None else max(0, -(-(end - start) // step))
    return place.finished(source(Arange((int(count),), place.dtype, start, step), place.layout(1)))


def range(start: Number, end: Number, step: Number = 1, **options: Any) -> Tensor:
    """The numbers start, start + step, ... up to end, which is included, in the default element type; as in PyTorch."""
    place = Place("range", options)
    first, last, delta = (number(each, "range") for each in (start, end, step))
    finite = all(map(math.isfinite, (first, last, delta)))
    if finite and not place.dtype.is_float:  # PyTorch truncates the step too
        first, last, delta = (math.trunc(each) for each in (first, last, delta))
    if not finite or not delta or (last - first) / delta < 0:
        raise ArgumentError(
            f"range at {user_line()}: start {start}, end {end} and step {step} give no {place.dtype.name} range; pass finite numbers and a step "
            f"that leads from start to end"
        )
    count = int((last - first) / delta) + 1 if place.dtype.is_float else (last - first) // delta + 1
    return place.finished(source(Arange((int(count),), place.dtype, first, delta), place.layout(1)))


def linspace(start: Number, end: Number, steps: int, **options: Any) -> Tensor:
    """`steps` numbers from start to end, both included, at equal distances."""
    place, count = Place("linspace", options), _count("linspace", steps)
    first, last = (float(number(each, "linspace")) for each in (start, end))
    return place.finished(source(Linspace((count,), place.dtype, first, last, count), place.layout(1)))


def _count(what: str, steps: int) -> int:
    if not isinstance(steps, int | np.integer) or steps < 0:
        raise ArgumentError(f"{what} at {user_line()}: steps is an integer, 0 or more; got {steps!r}")
    return int(steps)


def logspace(start: Number, end: Number, steps: int, base: Number = 10.0, **options: Any) -> Tensor:
    """base to the powers linspace(start, end, steps)."""
    place, count = Place("logspace", options), _count("logspace", steps)
    target = place.layout(1)
    where = {"placement": place.placement, "sbp": _whole(place), "dtype": float64}
    powers: Tensor = run(Power(), full((1,), float(base), **where), linspace(start, end, count, **where))
    made = cast(powers, place.dtype)
    return place.finished(made if target is None else crossing.change(state(), made, target))


def _whole(place: Place) -> Any:
    """Broadcast, for each dimension of the mesh."""
    return None if place.placement is None else [B] * len(place.placement.core.mesh)


def eye(n: int, m: int | None = None, **options: Any) -> Tensor:
    """Ones on the diagonal of an n x m matrix of zeros; m is n if it is not given."""
    place = Place("eye", options)
    target = place.layout(2)
    where = {"placement": place.placement, "sbp": _whole(place)}
    rows = run(ExpandDims(1), arange(n, **where))
    equal = cast(run(Equal(), rows, arange(n if m is None else m, **where)), place.dtype)
    return place.finished(equal if target is None else crossing.change(state(), equal, target))


class CreationMethods:
    """Methods of tensors: creation."""

    __slots__ = ()

    empty_like = method(empty_like)
    full_like = method(full_like)
    new_empty = method(new_empty)
    new_full = method(new_full)
    new_ones = method(new_ones)
    new_tensor = method(new_tensor)
    new_zeros = method(new_zeros)
    ones_like = method(ones_like)
    zeros_like = method(zeros_like)
