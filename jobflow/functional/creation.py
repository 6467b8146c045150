"""Functions that create local tensors, or global tensors with `placement=` and `sbp=`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jobflow.core.errors import ArgumentError, ConfigError, DtypeError, SbpError, ShapeError, user_line
from jobflow.core.layout import B, Layout, Partial, Split
from jobflow.core.types import Array, DType, dtype_of, float64, hides_elements, int64, type_of
from jobflow.functional.array_data import HOST_DATA, array_of, check_span, of_gpu
from jobflow.functional.devices import broadcast_on, checked_device, device_of, gpu_of_device, marked
from jobflow.functional.devices import device as Device
from jobflow.functional.dispatch import method
from jobflow.functional.global_tensors import layout_of, on_placement
from jobflow.functional.memory_formats import check_format, strided
from jobflow.functional.promotion import Number, cast, check_numbers, contains_float64, convert_fill, number_dtype, number_kind
from jobflow.functional.switches import checked_bool
from jobflow.functional.typed import Tensor
from jobflow.ops.axes import ExpandDims
from jobflow.ops.compare import Equal
from jobflow.ops.scalar import FillLike
from jobflow.ops.source import Arange, Constant, Linspace, Literal
from jobflow.ops.transcendental import Power
from jobflow.tensors import redistribution
from jobflow.tensors.convert import ELEMENTS, addend, agree_on_values
from jobflow.tensors.convert import empty as no_piece
from jobflow.tensors.gpus import placed
from jobflow.tensors.host_arrays import HostArray
from jobflow.tensors.run import run, source
from jobflow.tensors.state import building_now, state

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu

__all__ = [
    "arange", "as_tensor", "empty", "empty_like", "eye", "from_numpy", "full", "full_like", "linspace", "logspace", "ones", "ones_like", "range",
    "tensor", "zeros", "zeros_like",
]  # fmt: skip


class FactoryOptions:
    """The keyword arguments of a factory function: element type, device, layout and `requires_grad`."""

    KEYWORDS = ("dtype", "device", "placement", "sbp", "requires_grad", "pin_memory", "layout", "memory_format")

    def __init__(self, what: str, options: dict[str, Any], dtype: DType | None = None, like: Tensor | None = None) -> None:
        if options:
            _check_keywords(what, options)
        self.what = what
        self.dtype: DType = _dtype(what, options.get("dtype") or dtype or state().default_dtype)
        self.device = checked_device(what, options.get("device"))
        self.placement, self.sbp = options.get("placement"), options.get("sbp")
        if self.device is None and like is None and self.placement is None and self.sbp is None:
            self.device = state().default_device
        self.requires_grad = bool(options.get("requires_grad"))
        self.like = like
        if self.device is None and like is not None and (like._device is not None or type(getattr(like, "_array", None)) is not np.ndarray):
            self._follow(like)
        if self.device is not None:
            self._replicate(self.device)
        if self.requires_grad and not self.dtype.is_float:
            raise DtypeError(f"{what} at {user_line()}: requires_grad=True needs a floating point type; got dtype={self.dtype.name}")

    def _replicate(self, device: Device) -> None:
        """Replace the device of a global tensor by a placement and sbp, or by the layout of `like` on the same placement."""
        if self.placement is not None or self.sbp is not None:
            raise ConfigError(
                f"{self.what} at {user_line()}: device={device} selects a device, but placement={self.placement!r} and sbp={self.sbp!r} "
                f"select a layout; pass either device, or placement and sbp"
            )
        layout = broadcast_on(device)
        if layout is not None:
            self.device = None
            if self.like is None or self.like.layout is None or self.like.layout.placement != layout.placement:
                self.placement, self.sbp = device.placement, layout.sbp

    def _follow(self, like: Tensor) -> None:
        """Create the tensor on the GPU of the local tensor `like`, unless `placement` or `sbp` is set."""
        if like.layout is None and self.placement is None and self.sbp is None and like.traced is None:
            self.device = device_of(like) if like.is_cuda else None

    @property
    def gpu(self) -> EagerGpu | None:
        """The GPU of a local tensor; None for the host, for a global tensor, and while a program is traced."""
        return None if self.device is None or self.placement is not None or building_now() is not None else gpu_of_device(self.device)

    def layout(self, ndim: int) -> Layout | None:
        """Return the layout of a tensor with `ndim` axes; None for a local tensor.

        Without `placement`, `sbp` and `device`, return the layout of `like`; a split along an axis beyond `ndim` becomes broadcast.
        """
        if self.placement is None and self.sbp is None and self.like is not None and self.device is None:
            layout = self.like.layout
            return layout and Layout(layout.placement, tuple(B if isinstance(sbp, Split) and sbp.axis >= ndim else sbp for sbp in layout.sbp))
        return layout_of(self.what, self.placement, self.sbp, ndim)

    def random_layout(self, ndim: int) -> Layout | None:
        """Return the layout of a tensor of random values, which is never partial.

        A partial layout of `like` becomes broadcast.  Raises: SbpError for a partial `sbp`.
        """
        layout = self.layout(ndim)
        if layout is not None and any(isinstance(sbp, Partial) for sbp in layout.sbp):
            if self.placement is None and self.like is not None:
                return Layout(layout.placement, tuple(B if isinstance(sbp, Partial) else sbp for sbp in layout.sbp))
            raise SbpError(f"{self.what} at {user_line()}: random values cannot be partial; use split or broadcast")
        return layout

    def finish(self, x: Tensor) -> Tensor:
        """Return the tensor on its device, after setting `requires_grad`."""
        x = marked(x, self.device)
        x._needs_gradient = self.requires_grad or x._needs_gradient
        return x


def _check_keywords(what: str, options: dict[str, Any]) -> None:
    """Check the names, and the options that have no effect: tensors are in pageable memory, dense, and in row-major order."""
    known = FactoryOptions.KEYWORDS
    if unknown := sorted(set(options).difference(known)):
        raise TypeError(f"{what} at {user_line()}: unknown keyword {unknown[0]!r}; the keywords are {', '.join(known[:5])}")
    if options.get("pin_memory") is not None:
        checked_bool(what, "pin_memory", options["pin_memory"])
    if options.get("layout") is not None and options["layout"] is not strided:
        raise ArgumentError(f"{what} at {user_line()}: layout must be jobflow.strided; got {options['layout']!r}; tensors are dense")
    check_format(what, options.get("memory_format"))


def _dtype(what: str, dtype: Any) -> DType:
    try:
        return dtype_of(dtype)
    except (KeyError, TypeError, ValueError):
        raise DtypeError(f"{what} at {user_line()}: dtype={dtype!r} is not an element type such as jobflow.float32") from None


def shape_of(what: str, sizes: Sequence[Any], options: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape requested by f(2, 3), f((2, 3)) or f(size=(2, 3)), and remove "size" from the options."""
    size = options.pop("size", options.pop("shape", None))
    if size is not None:
        if sizes:
            raise ShapeError(f"{what} at {user_line()}: the shape is passed twice, as {sizes} and as size={size}; pass it once")
        sizes = (size,)
    if len(sizes) == 1 and isinstance(sizes[0], Sequence | np.ndarray):
        sizes = tuple(sizes[0])
    sizes = [n.__index__() if isinstance(n, Tensor) and not n.dtype.is_float and n.numel() == 1 else n for n in sizes]
    if not all(isinstance(n, int | np.integer) and n >= 0 for n in sizes):
        raise ShapeError(f"{what} at {user_line()}: a shape must consist of integers >= 0; got {tuple(sizes)}")
    return tuple(int(n) for n in sizes)


def _filled(what: str, shape: tuple[int, ...], value: Number, spec: FactoryOptions) -> Tensor:
    gpu = spec.gpu if spec.device else None
    return spec.finish(source(Constant(shape, spec.dtype, convert_fill(value, spec.dtype)), spec.layout(len(shape)), None, gpu))


def zeros(*sizes: Any, **options: Any) -> Tensor:
    """Return a tensor of zeros; pass the shape as integers, a tuple or `size=`.

    All functions that create tensors accept dtype (by default `get_default_dtype()`), device and requires_grad.  The keywords placement and sbp
    create a global tensor.  The device of a global tensor creates a global tensor, broadcast on the same placement.
    Raises: ShapeError for an invalid shape, DtypeError for an unknown type, ConfigError for device together with placement or sbp.

    Examples:
        >>> flow.zeros(2, 3)
        tensor([[0., 0., 0.],
                [0., 0., 0.]], dtype=jobflow.float32)
    """
    return _filled("zeros", shape_of("zeros", sizes, options), 0, FactoryOptions("zeros", options))


def ones(*sizes: Any, **options: Any) -> Tensor:
    """Return a tensor of ones; the arguments are the same as in `zeros`.

    Along a mesh dimension of partial sums, the first rank stores ones and the other ranks store zeros.

    Examples:
        >>> flow.ones(2, dtype=flow.int64)
        tensor([1, 1], dtype=jobflow.int64)
    """
    return _filled("ones", shape_of("ones", sizes, options), 1, FactoryOptions("ones", options))


def empty(*sizes: Any, **options: Any) -> Tensor:
    """Return a tensor of zeros, which are meant to be overwritten; the arguments are the same as in `zeros`."""
    return _filled("empty", shape_of("empty", sizes, options), 0, FactoryOptions("empty", options))


def full(size: Any, fill_value: Any, **options: Any) -> Tensor:
    """Return a tensor of shape `size` filled with `fill_value`; `options` are the keywords of `zeros`.

    The element type defaults to int64 or bool for an integer or bool value, otherwise to `get_default_dtype()`.
    Raises: DtypeError for a value that is not a number.
    """
    value = number(fill_value, "full")
    shape = shape_of("full", (size,), {})
    return _filled("full", shape, value, FactoryOptions("full", options, None if number_kind(value) == 2 else number_dtype(value)))


def number(value: Any, what: str) -> Number:
    """Return a Python number from a number, or from an array or tensor of one element; raise DtypeError for other values."""
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.shape in ((), (1,)):
        value = value.item()
    if not isinstance(value, int | float):
        raise DtypeError(f"{what} at {user_line()}: the value must be a number; got {value!r}")
    return value


def _like(what: str, x: Tensor, value: Number, options: dict[str, Any]) -> Tensor:
    spec = FactoryOptions(what, options, x.dtype, x)
    if x.traced is not None and spec.placement is None and spec.sbp is None and spec.device is None:
        return spec.finish(run(FillLike(convert_fill(value, spec.dtype), spec.dtype), x.detach()))
    return _filled(what, x.tensor_type.shape, value, spec)


def zeros_like(x: Tensor, **options: Any) -> Tensor:
    """Return a tensor of zeros with the shape of x.  `options` are the keywords of `zeros`; x provides the default element type and layout."""
    return _like("zeros_like", x, 0, options)


def ones_like(x: Tensor, **options: Any) -> Tensor:
    """Return a tensor of ones with the shape of x.  `options` are the keywords of `zeros`; x provides the default element type and layout."""
    return _like("ones_like", x, 1, options)


def empty_like(x: Tensor, **options: Any) -> Tensor:
    """Return a tensor of zeros with the shape of x, which are meant to be overwritten.

    `options` are the keywords of `zeros`; x provides the default element type and layout.
    """
    return _like("empty_like", x, 0, options)


def full_like(x: Tensor, fill_value: Any, **options: Any) -> Tensor:
    """Return a tensor with the shape of x, filled with the number `fill_value`.

    `options` are the keywords of `zeros`; x provides the default element type and layout.
    """
    return _like("full_like", x, number(fill_value, "full_like"), options)


def new_zeros(x: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """Return a tensor of zeros in the shape `sizes`.  `options` are the keywords of `zeros`; x provides the default element type and layout."""
    return _filled("new_zeros", shape_of("new_zeros", sizes, options), 0, FactoryOptions("new_zeros", options, x.dtype, x))


def new_ones(x: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """Return a tensor of ones in the shape `sizes`.  `options` are the keywords of `zeros`; x provides the default element type and layout."""
    return _filled("new_ones", shape_of("new_ones", sizes, options), 1, FactoryOptions("new_ones", options, x.dtype, x))


def new_empty(x: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """Return a tensor of zeros in the shape `sizes`, which are meant to be overwritten.

    `options` are the keywords of `zeros`; x provides the default element type and layout.
    """
    return _filled("new_empty", shape_of("new_empty", sizes, options), 0, FactoryOptions("new_empty", options, x.dtype, x))


def new_full(x: Tensor, size: Any, fill_value: Any, **options: Any) -> Tensor:
    """Return a tensor of shape `size` filled with the number `fill_value`.

    `options` are the keywords of `zeros`; x provides the default element type and layout.
    """
    return _filled("new_full", shape_of("new_full", (size,), {}), number(fill_value, "new_full"), FactoryOptions("new_full", options, x.dtype, x))


def new_tensor(x: Tensor, data: Any, **options: Any) -> Tensor:
    """Return a tensor with a copy of `data`.  `options` are the keywords of `zeros`; x provides the default element type and layout."""
    return _from_data("new_tensor", data, options, x.dtype, x)


# -------------------------------------------------------------------- data


def tensor(data: Any, **options: Any) -> Tensor:
    """Return a tensor with a copy of the data: a number, nested lists, a NumPy array or another tensor.

    Python floats get the element type `get_default_dtype()`, and Python integers int64; arrays keep their element type, also in lists.
    With placement= and sbp=, every rank passes the whole logical value and stores its piece.  In the body of a job, the data become a constant
    with their values at tracing.
    Raises: DivergedError on every rank if ranks pass different data; ShapeError for nested lists of unequal lengths; DtypeError for data of
    an unsupported type.

    Examples:
        >>> flow.tensor([[1, 2], [3, 4]])
        tensor([[1, 2],
                [3, 4]], dtype=jobflow.int64)
        >>> flow.tensor([1.5, 2.5]).dtype
        jobflow.float32
    """
    return _from_data("tensor", data, options)


def _from_data(what: str, data: Any, options: dict[str, Any], dtype: DType | None = None, like: Tensor | None = None) -> Tensor:
    data = data.tensor() if isinstance(data, HostArray) else data if type(data) in HOST_DATA else of_gpu(what, data)
    if isinstance(data, Tensor) and "placement" not in options and "sbp" not in options and like is None:
        spec = FactoryOptions(what, options, data.dtype)
        copy = cast(data.detach(), spec.dtype) if spec.dtype is not data.dtype else data.detach().clone()
        return spec.finish(_placed(copy, spec))
    array = array_of(what, data)
    from_python = not isinstance(data, np.ndarray | np.generic | Tensor)
    by_default = from_python and array.dtype == np.float64 and not contains_float64(data)
    spec = FactoryOptions(what, options, dtype or (state().default_dtype if by_default else dtype_of(array.dtype)))
    spec.like = like
    if like is not None and spec.device is None:
        spec._follow(like)
    layout = spec.layout(array.ndim)
    if array.dtype != spec.dtype.numpy:
        if from_python and spec.dtype.is_integer:
            check_span(what, array, spec.dtype)
        with np.errstate(all="ignore"):
            array = array.astype(spec.dtype.numpy)
    stored = None if layout is None or traces_job() else cut(what, array, layout)
    if building_now() is not None:
        return spec.finish(building_now().constant_data(array, layout))
    return spec.finish(_holding(array) if stored is None else stored)


def _placed(x: Tensor, spec: FactoryOptions) -> Tensor:
    """Return x on the placement of `spec`, or x itself if `spec` has none."""
    return x if spec.placement is None else on_placement(x, spec.what, spec.placement)


def traces_job() -> bool:
    """Return True while the body of a job is traced; the tensors of the body have neither values nor layouts."""
    tracer = building_now()
    return tracer is not None and not tracer.lays


def _holding(array: Array) -> Tensor:
    """Return a local tensor that shares the memory of `array`, or a constant of the program while a job or a compiled function is traced."""
    tracer = building_now()
    traced = tracer is not None and (tracer.differentiates or not tracer.lays)
    return source(Literal.of(array), None) if traced else Tensor.new(type_of(array), None, array)


def whole(layout: Layout) -> Layout:
    """Return the layout that is broadcast on the placement of `layout`."""
    return Layout(layout.placement, (B,) * len(layout.sbp))


def cut(what: str, array: Array, layout: Layout) -> Tensor:
    """Return a global tensor with the logical value `array`; this rank stores its piece.

    Raises: DivergedError if ranks pass different arrays.
    """
    here = state()
    type = type_of(array)
    line = user_line()
    digest = agree_on_values(
        here, array, type, layout, lambda: f"{what} of {ELEMENTS}, {type} {layout}, at {line}; every rank passes the same logical value"
    )
    result = Tensor.new(type, layout, placed(here, _piece_of(array, layout, here.rank.index), layout))
    result._provenance = digest
    return result


def _piece_of(array: Array, layout: Layout, rank: int) -> Array:
    if rank not in layout.placement.ranks:
        return no_piece(type_of(array))
    return addend(np.array(array[layout.box(array.shape, rank).slices]), layout, rank)


def as_tensor(data: Any, **options: Any) -> Tensor:
    """Return the data as a tensor, without a copy where possible; `options` are the keywords of `zeros`.

    Without a placement, a tensor of the requested element type is returned unchanged, and a NumPy array of this type shares its memory.
    """
    data = of_gpu("as_tensor", data)
    if isinstance(data, Tensor) and not options.get("placement"):
        spec = FactoryOptions("as_tensor", options, data.dtype)
        result = _placed(cast(data, spec.dtype), spec)
        return spec.finish(result if spec.device is None or result.layout is not None else result.to(spec.device))
    if isinstance(data, np.ndarray) and not options.get("placement"):
        spec = FactoryOptions("as_tensor", options, _dtype("as_tensor", data.dtype))
        if data.dtype == spec.dtype.numpy and not hides_elements(data) and spec.placement is None:
            return spec.finish(_holding(data))
    return _from_data("as_tensor", data, options)


def from_numpy(array: Array) -> Tensor:
    """Return a local tensor that shares the memory of a NumPy array.

    Raises: DtypeError for another object or an unsupported element type, ArgumentError for masked elements.

    Examples:
        >>> array = np.zeros(2, np.float32)
        >>> x = flow.from_numpy(array)
        >>> array[0] = 7
        >>> x
        tensor([7., 0.], dtype=jobflow.float32)
    """
    if isinstance(array, HostArray):
        return array.tensor()
    if not isinstance(array, np.ndarray):
        raise DtypeError(f"from_numpy at {user_line()}: the argument must be a NumPy array; got {array!r}")
    _dtype("from_numpy", array.dtype)
    check_numbers("from_numpy", array)
    recorder = building_now()
    return Tensor.new(type_of(array), None, array) if recorder is None or not recorder.differentiates else recorder.borrow(array)


def arange(start: Number, end: Number | None = None, step: Number = 1, **options: Any) -> Tensor:
    """Return the vector start, start + step, ... up to but excluding end; a single argument is the end, and start is 0.

    The element type is int64, or the default type if an argument is a float.
    Raises: ArgumentError if `step` is 0 or points away from `end`, or if an argument is not finite.

    Examples:
        >>> flow.arange(5)
        tensor([0, 1, 2, 3, 4], dtype=jobflow.int64)
        >>> flow.arange(1, 2, 0.5)
        tensor([1.0000, 1.5000], dtype=jobflow.float32)
    """
    if end is None:
        start, end = 0, start
    start, end, step = (number(each, "arange") for each in (start, end, step))
    if not all(map(math.isfinite, (start, end, step))) or not step or (end - start) / step < 0:
        raise ArgumentError(
            f"arange at {user_line()}: step {step} does not lead from start {start} to end {end}; pass finite numbers and a step towards end"
        )
    default = None if any(number_kind(each) == 2 for each in (start, end, step)) else int64
    spec = FactoryOptions("arange", options, default)
    count = -int(-((end - start) / step) // 1) if default is None else max(0, -(-(end - start) // step))
    return spec.finish(source(Arange((int(count),), spec.dtype, start, step), spec.layout(1), None, spec.gpu))


def range(start: Number, end: Number, step: Number = 1, **options: Any) -> Tensor:
    """Return the vector start, start + step, ... up to and including end, in the default element type, as in PyTorch.

    Raises: ArgumentError if `step` is 0 or points away from `end`, or if an argument is not finite.
    """
    spec = FactoryOptions("range", options)
    first, last, delta = (number(each, "range") for each in (start, end, step))
    finite = all(map(math.isfinite, (first, last, delta)))
    if finite and not spec.dtype.is_float:  # PyTorch truncates the step too
        first, last, delta = (math.trunc(each) for each in (first, last, delta))
    if not finite or not delta or (last - first) / delta < 0:
        raise ArgumentError(
            f"range at {user_line()}: start {start}, end {end} and step {step} do not form a range of {spec.dtype.name}; pass finite "
            f"numbers and a step towards end"
        )
    count = int((last - first) / delta) + 1 if spec.dtype.is_float else (last - first) // delta + 1
    return spec.finish(source(Arange((int(count),), spec.dtype, first, delta), spec.layout(1), None, spec.gpu))


def linspace(start: Number, end: Number, steps: int, **options: Any) -> Tensor:
    """Return a vector of `steps` evenly spaced numbers from start to end, both included.  Raises: ArgumentError if steps < 0."""
    spec, count = FactoryOptions("linspace", options), _count("linspace", steps)
    first, last = (float(number(each, "linspace")) for each in (start, end))
    return spec.finish(source(Linspace((count,), spec.dtype, first, last, count), spec.layout(1), None, spec.gpu))


def _count(what: str, steps: int) -> int:
    if not isinstance(steps, int | np.integer) or steps < 0:
        raise ArgumentError(f"{what} at {user_line()}: steps must be an integer >= 0; got {steps!r}")
    return int(steps)


def logspace(start: Number, end: Number, steps: int, base: Number = 10.0, **options: Any) -> Tensor:
    """Return the vector base ** linspace(start, end, steps).  Raises: ArgumentError if steps < 0."""
    spec, count = FactoryOptions("logspace", options), _count("logspace", steps)
    target = spec.layout(1)
    where = {"placement": spec.placement, "sbp": _whole(spec), "device": spec.device, "dtype": float64}
    values = cast(run(Power(), full((1,), float(base), **where), linspace(start, end, count, **where)), spec.dtype)
    return spec.finish(values if target is None else redistribution.redistribute(state(), values, target))


def _whole(spec: FactoryOptions) -> Any:
    """Return an sbp that is broadcast along every mesh dimension, or None for a local tensor."""
    return None if spec.placement is None else [B] * len(spec.placement.core.mesh)


def eye(n: int, m: int | None = None, **options: Any) -> Tensor:
    """Return an n x m matrix with ones on the diagonal and zeros elsewhere; m defaults to n.  `options` are the keywords of `zeros`."""
    spec = FactoryOptions("eye", options)
    target = spec.layout(2)
    where = {"placement": spec.placement, "sbp": _whole(spec), "device": spec.device}
    rows = run(ExpandDims(1), arange(n, **where))
    equal = cast(run(Equal(), rows, arange(n if m is None else m, **where)), spec.dtype)
    return spec.finish(equal if target is None else redistribution.redistribute(state(), equal, target))


class CreationMethods:
    """Methods of tensors that create other tensors."""

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
