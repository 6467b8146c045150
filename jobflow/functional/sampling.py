"""Random tensors in any layout.

An element is a function of the seed, a counter of random operations, and the element's index in the logical tensor.  A tensor has the same
elements in every layout, and as a local tensor on one rank.  Global and local tensors use separate generators, so that ranks may sample
different numbers of local tensors.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, user_line
from jobflow.core.layout import Layout
from jobflow.core.types import DType, TensorType, float64, int64
from jobflow.functional.binary_functions import add, mul
from jobflow.functional.creation import FactoryOptions, full_like, number, shape_of, whole
from jobflow.functional.devices import checked_device
from jobflow.functional.devices import device as Device
from jobflow.functional.dispatch import method
from jobflow.functional.promotion import as_float, cast
from jobflow.functional.shapes import integer
from jobflow.functional.typed import Tensor
from jobflow.ops.compare import Less
from jobflow.ops.random_tensors import RandomInt, RandomNormal, RandomUniform
from jobflow.ops.runtime_assertions import RuntimeAssertion, weight_assertion
from jobflow.ops.slices import Concat, Slice
from jobflow.ops.sort import Sort
from jobflow.tensors import redistribution
from jobflow.tensors.convert import meeting
from jobflow.tensors.run import run, run_several, source
from jobflow.tensors.state import Generator as Counter
from jobflow.tensors.state import refuse_tracing, state

__all__ = [
    "Generator", "bernoulli", "default_generator", "get_rng_state", "initial_seed", "manual_seed", "multinomial", "normal", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "randperm", "seed", "set_rng_state",
]  # fmt: skip

#: key of all random operations, in place of the name of an operation
DRAW = "draw"


# -------------------------------------------------------------------- generators


class Generator:
    """A random number generator with a seed and a counter of random operations."""

    def __init__(self, device: Any = None) -> None:
        self.device = checked_device("Generator", device) or Device("cpu")
        self.core = Counter()

    def manual_seed(self, seed: int) -> Generator:
        """Set the seed, reset the counter, and return the generator.  Raises: ArgumentError unless `seed` is an integer."""
        _refuse_tracing("manual_seed")
        self.core.seed, self.core.draws = _checked_seed(seed), 0
        return self

    def seed(self) -> int:
        """Set a random seed from the operating system, equal on all ranks, and return it; all ranks must call this method."""
        _refuse_tracing("seed")
        return self.manual_seed(new_seed()).core.seed

    def initial_seed(self) -> int:
        """Return the current seed."""
        return self.core.seed

    def get_state(self) -> Tensor:
        """Return seed and counter as an int64[2] tensor."""
        return Tensor.new(TensorType((2,), int64), None, np.array([self.core.seed, self.core.draws]))

    def set_state(self, state: Tensor) -> None:
        """Restore a state returned by `get_state`.  Raises: ArgumentError unless `state` is an int64[2] tensor."""
        _refuse_tracing("set_state")
        self.core.seed, self.core.draws = _state_values(state, 2)


class _Default(Generator):
    """The default generator of global tensors."""

    def __init__(self) -> None:
        self.device = Device("cpu")

    @property
    def core(self) -> Counter:  # type: ignore[override]
        return state().global_generator


default_generator = _Default()


def new_seed() -> int:
    """Return a random seed from the operating system, equal on all ranks."""
    here = state()
    with meeting(here, here.rank.host_comm, zlib.crc32(b"seed"), lambda: f"seed at {user_line()}"):
        seeds: list[int] = here.rank.host_comm.exchange(int.from_bytes(os.urandom(8), "little") >> 2)
    return seeds[0]


def manual_seed(seed: int) -> Generator:
    """Set the seed of local and global random tensors, reset their counters, and return `default_generator`; all ranks must call this function.

    Raises: ArgumentError unless `seed` is an integer.

    Examples:
        >>> generator = flow.manual_seed(0)
        >>> first = flow.rand(3)
        >>> generator = flow.manual_seed(0)
        >>> flow.equal(first, flow.rand(3))
        True
    """
    _refuse_tracing("manual_seed")
    state().manual_seed(_checked_seed(seed))
    return default_generator


def _refuse_tracing(what: str) -> None:
    refuse_tracing(what, "a random generator cannot be changed", "change the generator before")


def _checked_seed(seed: int) -> int:
    try:
        return int(seed)
    except (TypeError, ValueError):
        raise ArgumentError(f"manual_seed at {user_line()}: seed must be an integer; got {seed!r}") from None


def seed() -> int:
    """Set a random seed from the operating system for local and global random tensors, and return it; all ranks must call this function."""
    _refuse_tracing("seed")
    value = new_seed()
    manual_seed(value)
    return value


def initial_seed() -> int:
    """Return the seed of global random tensors."""
    return state().global_generator.seed


def get_rng_state() -> Tensor:
    """Return seed and counter of the global generator, then of the local generator, as an int64[4] tensor."""
    here = state()
    generators = (here.global_generator, here.local_generator)
    return Tensor.new(TensorType((4,), int64), None, np.array([n for each in generators for n in (each.seed, each.draws)]))


def set_rng_state(saved: Tensor) -> None:
    """Restore a state returned by `get_rng_state`.  Raises: ArgumentError unless `saved` is an int64[4] tensor."""
    _refuse_tracing("set_rng_state")
    here = state()
    values = _state_values(saved, 4)
    (here.global_generator.seed, here.global_generator.draws), (here.local_generator.seed, here.local_generator.draws) = values[:2], values[2:]


def _state_values(saved: Tensor, count: int) -> list[int]:
    if not isinstance(saved, Tensor) or saved.tensor_type != TensorType((count,), int64):
        shown = saved.tensor_type if isinstance(saved, Tensor) else repr(saved)
        raise ArgumentError(f"set_state at {user_line()}: the state must be an int64[{count}] tensor; got {shown}")
    return saved.tolist()


@contextmanager
def fork_rng(
    devices: Any = None, enabled: bool = True, _caller: str = "fork_rng", _devices_kw: str = "devices", device_type: Any = None
) -> Iterator[None]:
    """Restore the random generators at the end of a `with` block, if `enabled`.  All devices share the generators, so `devices` has no effect."""
    _refuse_tracing("fork_rng")
    here, saved = state(), get_rng_state()
    try:
        yield
    finally:
        if enabled and here is state():
            set_rng_state(saved)


def generator_of(generator: Any, layout: Layout | None) -> Counter:
    """Return the counter of `generator`; for None, the counter of local tensors if `layout` is None, else of global tensors."""
    here = state()
    if generator is not None:
        counter = getattr(generator, "core", generator)
        if not isinstance(counter, Counter):
            raise ArgumentError(f"generator at {user_line()}: generator={generator!r} must be None or a flow.Generator")
        return counter
    return here.local_generator if layout is None else here.global_generator


def _sample(spec: FactoryOptions, shape: tuple[int, ...], generator: Any, make: Any, dtype: DType | None = None) -> Tensor:
    """Run the random operation `make(shape, dtype, key, seed)` with the next count of the generator, and return its output.

    `spec` provides the layout, and the element type unless `dtype` is passed.
    """
    layout = spec.random_layout(len(shape))
    counter = generator_of(generator, layout)
    return spec.finish(source(make(shape, dtype or spec.dtype, DRAW, counter.seed), layout, counter, spec.gpu))


def _floats(spec: FactoryOptions) -> FactoryOptions:
    if not spec.dtype.is_float:
        raise DtypeError(f"{spec.what} at {user_line()}: the element type must be a floating point type; got dtype={spec.dtype.name}")
    return spec


def rand(*sizes: Any, generator: Any = None, **options: Any) -> Tensor:
    """Return samples of the uniform distribution on [0, 1) in the shape `sizes`; `options` are the keywords of `zeros`.

    `generator` defaults to the generator of local or of global tensors.
    Raises: DtypeError unless the element type is a floating point type; SbpError for a partial layout.
    """
    shape = shape_of("rand", sizes, options)
    return _sample(_floats(FactoryOptions("rand", options)), shape, generator, RandomUniform)


def randn(*sizes: Any, generator: Any = None, **options: Any) -> Tensor:
    """Return samples of the normal distribution with mean 0 and standard deviation 1; arguments and errors are the same as in `rand`.

    Examples:
        >>> flow.randn(2, 3).shape
        jobflow.Size([2, 3])
    """
    shape = shape_of("randn", sizes, options)
    return _sample(_floats(FactoryOptions("randn", options)), shape, generator, RandomNormal)


def rand_like(x: Tensor, *, generator: Any = None, **options: Any) -> Tensor:
    """Return samples of the uniform distribution on [0, 1) with the shape, element type and layout of x; a partial layout becomes broadcast.

    `options` are the keywords of `zeros`.  Raises: DtypeError unless the element type is a floating point type.
    """
    return _sample(_floats(FactoryOptions("rand_like", options, x.dtype, x)), x.tensor_type.shape, generator, RandomUniform)


def randn_like(x: Tensor, *, generator: Any = None, **options: Any) -> Tensor:
    """Return samples of the normal distribution with mean 0, standard deviation 1, and the shape, element type and layout of x.

    A partial layout becomes broadcast.  `options` are the keywords of `zeros`.
    Raises: DtypeError unless the element type is a floating point type.
    """
    return _sample(_floats(FactoryOptions("randn_like", options, x.dtype, x)), x.tensor_type.shape, generator, RandomNormal)


def randint(low: int, high: Any = None, size: Any = None, *, generator: Any = None, **options: Any) -> Tensor:
    """Return uniform random integers in [low, high), int64 by default; randint(high, size) starts at 0.

    Raises: ArgumentError if the interval is empty or exceeds the element type.
    """
    if size is None:
        low, high, size = (0, low, high) if not isinstance(high, int) else (low, high, options.pop("shape", None))
    elif high is None:
        low, high = 0, low
    return _integers(FactoryOptions("randint", options, int64), shape_of("randint", (size,), {}), low, high, generator)


def randint_like(x: Tensor, low: int, high: int | None = None, *, generator: Any = None, **options: Any) -> Tensor:
    """Return uniform random integers in [low, high) with the shape, element type and layout of x; randint_like(x, high) starts at 0.

    Raises: ArgumentError if the interval is empty or exceeds the element type.
    """
    low, high = (0, low) if high is None else (low, high)
    return _integers(FactoryOptions("randint_like", options, x.dtype, x), x.tensor_type.shape, low, high, generator)


def _integers(spec: FactoryOptions, shape: tuple[int, ...], low: int, high: int, generator: Any) -> Tensor:
    low, high = integer(spec.what, low), integer(spec.what, high)
    if low >= high:
        raise ArgumentError(f"{spec.what} at {user_line()}: low={low} must be less than high={high}")
    smallest, largest = spec.dtype.span
    if low < smallest or high - 1 > largest:
        raise ArgumentError(
            f"{spec.what} at {user_line()}: [{low}, {high}) is out of range for {spec.dtype.name}, {smallest} to {largest}; pass a larger dtype"
        )

    def make(shape: tuple[int, ...], dtype: DType, key: str, seed: int) -> RandomInt:
        return RandomInt(shape, dtype, key, seed, low=low, high=high)

    return _sample(spec, shape, generator, make)


def randperm(n: int, *, generator: Any = None, **options: Any) -> Tensor:
    """Return a random permutation of the integers 0 to n - 1, int64 by default.

    Every rank of a global tensor's placement computes the whole permutation by sorting random keys.  Raises: ArgumentError for negative n.
    """
    n = integer("randperm", n)
    if n < 0:
        raise ArgumentError(f"randperm at {user_line()}: n must be >= 0; got {n}")
    spec = FactoryOptions("randperm", options, int64)
    target = spec.random_layout(1)
    counter = generator_of(generator, target)
    keys = source(RandomUniform((int(n),), float64, DRAW, counter.seed), target and whole(target), counter, spec.gpu)
    order = cast(run_several(Sort(0), keys)[1], spec.dtype)
    return spec.finish(order if target is None else redistribution.redistribute(state(), order, target))


def uniform_like(x: Tensor, low: float, high: float, generator: Any = None) -> Tensor:
    """Return samples of the uniform distribution on [low, high) with the shape, element type and layout of x.

    Raises: ArgumentError if low > high, DtypeError unless x has a floating point type.
    """

    if not low <= high:
        raise ArgumentError(f"uniform at {user_line()}: the lower bound {low} must not exceed the upper bound {high}")

    def make(shape: tuple[int, ...], dtype: DType, key: str, seed: int) -> RandomUniform:
        return RandomUniform(shape, dtype, key, seed, low=float(low), high=float(high))

    return _sample(_floats(FactoryOptions("uniform", {}, x.dtype, x)), x.tensor_type.shape, generator, make)


def normal_like(x: Tensor, mean: float, std: float, generator: Any = None) -> Tensor:
    """Return samples of the normal distribution of mean `mean` and standard deviation `std`, with the shape, element type and layout of x.

    Raises: ArgumentError for a negative `std`, DtypeError unless x has a floating point type.
    """
    return _sample(_floats(FactoryOptions("normal", {}, x.dtype, x)), x.tensor_type.shape, generator, _normal(mean, std))


def _normal(mean: float, std: float) -> Any:
    if not std >= 0:
        raise ArgumentError(f"normal at {user_line()}: the deviation std={std} must not be negative")

    def make(shape: tuple[int, ...], dtype: DType, key: str, seed: int) -> RandomNormal:
        return RandomNormal(shape, dtype, key, seed, mean=float(mean), std=float(std))

    return make


def normal(mean: Any, std: Any = 1.0, *sizes: Any, generator: Any = None, **options: Any) -> Tensor:
    """Return samples of the normal distribution with mean `mean` and standard deviation `std`.

    With numbers, `sizes` is the shape.  A tensor as `mean` or `std` has one value per element, and defines the shape.
    Raises: ArgumentError for a negative deviation, or for a size together with tensors.
    """
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        if sizes or "size" in options:
            raise ArgumentError(f"normal at {user_line()}: the shapes of the tensors mean and std define the size; omit size")
        return _of_each(mean, std, generator, options)
    shape = shape_of("normal", sizes, options)
    return _sample(_floats(FactoryOptions("normal", options)), shape, generator, _normal(number(mean, "normal"), number(std, "normal")))


def _of_each(mean: Any, std: Any, generator: Any, options: dict[str, Any]) -> Tensor:
    """Return samples of the normal distribution, where `mean` or `std`, or both, are tensors with one value per element of the result."""
    if isinstance(std, Tensor):
        std = run(RuntimeAssertion("normal", "deviation", 0.0), std)
    elif not std >= 0:
        raise ArgumentError(f"normal at {user_line()}: the deviation std={std} must not be negative")
    like = as_float(mean if not isinstance(std, Tensor) else std if not isinstance(mean, Tensor) else add(mean, std)).detach()
    return add(mul(randn_like(like, generator=generator, **options), std), mean)


def bernoulli(x: Tensor, p: float | None = None, *, generator: Any = None) -> Tensor:
    """Return a tensor of the element type of x that is 1 with probability `p`, else 0; `p` defaults to the elements of x.

    Raises: ArgumentError for a probability outside [0, 1].
    """
    chances = as_float(x.detach()) if p is None else full_like(as_float(x.detach()), p)
    samples = rand_like(chances, generator=generator)
    return cast(run(Less(), samples, run(RuntimeAssertion("bernoulli", "probability", 0.0, 1.0), chances)), x.dtype)


def multinomial(x: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """Return `num_samples` indices per row of weights, sampled in proportion to the weights.

    Without replacement, the indices of a row differ: they are the first in descending order of log(u) / weight, with uniform u.  Samples with
    replacement are independent.  Every rank of the placement samples the whole tensor.
    Raises: ArgumentError for invalid weights or numbers of samples.
    """
    weights, num_samples = as_float(x.detach()), integer("multinomial", num_samples)
    if weights.ndim not in (1, 2) or not num_samples > 0 or (not replacement and num_samples > weights.shape[-1]):
        raise ArgumentError(
            f"multinomial at {user_line()}: cannot sample {num_samples} indices from weights {x.tensor_type} with replacement={replacement}; pass a "
            f"vector or matrix of weights, and num_samples of at least 1, without replacement at most the number of weights"
        )
    if x.layout is not None:
        weights = redistribution.redistribute(state(), weights, whole(x.layout))
    weights = run(weight_assertion("multinomial", 1 if replacement else num_samples), weights)
    if not replacement:
        return _in_order(weights, generator, num_samples)
    columns = [_in_order(weights, generator, 1) for _ in range(num_samples)]
    if len(columns) == 1:
        return columns[0]
    return run(Concat(columns[0].ndim - 1), *columns)


def _in_order(weights: Tensor, generator: Any, count: int) -> Tensor:
    """Return the indices of the `count` earliest arrivals of Poisson processes with the weights as rates."""
    u = cast(rand_like(weights, dtype=float64, generator=generator), float64)
    arrivals = -((1.0 - u).log()) / cast(weights, float64)
    order = run_several(Sort(weights.ndim - 1), arrivals)[1]
    window = Slice((0,) * weights.ndim, (*weights.tensor_type.shape[:-1], count), (1,) * weights.ndim)
    return run(window, order)


class RandomMethods:
    """Methods of tensors that return random tensors."""

    __slots__ = ()

    bernoulli = method(bernoulli)
    multinomial = method(multinomial)
    rand_like = method(rand_like)
    randint_like = method(randint_like)
    randn_like = method(randn_like)
