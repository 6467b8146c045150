"""Tensors of random numbers, in any layout.

Values are a function of the seed, the number of the draw and the index of the element in the logical tensor: a tensor has the same
values in every layout, and as a local one in a program of one rank.  Global tensors and local ones have a generator each: ranks may
draw local tensors as they like.
"""

from __future__ import annotations

import secrets
import zlib
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, user_line
from jobflow.core.layout import Layout
from jobflow.core.types import DType, TensorType, float64, int64
from jobflow.eager import crossing
from jobflow.eager.convert import meeting
from jobflow.eager.run import run, run_several, source
from jobflow.eager.state import Generator as Counter
from jobflow.eager.state import state
from jobflow.functional.binary_functions import add, mul
from jobflow.functional.creation import Place, full_like, number, shape_of, whole
from jobflow.functional.dispatch import method
from jobflow.functional.promotion import as_float, cast
from jobflow.functional.shapes import integer
from jobflow.functional.typed import Tensor
from jobflow.ops.compare import Less
from jobflow.ops.random_tensors import RandomInt, RandomNormal, RandomUniform
from jobflow.ops.runtime_assertions import RuntimeAssertion, weight_assertion
from jobflow.ops.slices import Concat, Slice
from jobflow.ops.sort import Sort

__all__ = [
    "Generator", "bernoulli", "default_generator", "get_rng_state", "initial_seed", "manual_seed", "multinomial", "normal", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "randperm", "seed", "set_rng_state",
]  # fmt: skip

#: the name that all draws have in the place of an op's
DRAW = "draw"


# -------------------------------------------------------------------- generators


class Generator:
    """Random numbers of their own: a seed, and how many tensors have been drawn."""

    def __init__(self, device: Any = None) -> None:
        self.device = device or "cpu"
        self.core = Counter()

    def manual_seed(self, seed: int) -> Generator:
        """Begin anew with this seed."""
        self.core.seed, self.core.draws = _checked(seed), 0
        return self

    def seed(self) -> int:
        """Begin anew with a seed that nobody knows before; it."""
        return self.manual_seed(new_seed()).core.seed

    def initial_seed(self) -> int:
        """The seed."""
        return self.core.seed

    def get_state(self) -> Tensor:
        """Seed and number of draws, as int64[2]."""
        return Tensor.new(TensorType((2,), int64), None, np.array([self.core.seed, self.core.draws]))

    def set_state(self, state: Tensor) -> None:
        """Go on from where `get_state` was called."""
        self.core.seed, self.core.draws = _numbers(state, 2)


class _Default(Generator):
    """That of global tensors."""

    def __init__(self) -> None:
        self.device = "cpu"

    @property
    def core(self) -> Counter:  # type: ignore[override]
        return state().global_generator


default_generator = _Default()


def new_seed() -> int:
    """A seed from the operating system, the same on every rank."""
    here = state()
    with meeting(here, here.rank.comm, zlib.crc32(b"seed"), lambda: f"seed at {user_line()}"):
        drawn: list[int] = here.rank.comm.exchange(secrets.randbits(62))
    return drawn[0]


def manual_seed(seed: int) -> None:
    """Random tensors are drawn with this seed from now on; local and global ones begin anew.  It is called on every rank."""
    state().manual_seed(_checked(seed))


def _checked(seed: int) -> int:
    try:
        return int(seed)
    except (TypeError, ValueError):
        raise ArgumentError(f"manual_seed at {user_line()}: a seed is an integer; got {seed!r}") from None


def seed() -> int:
    """Begin anew with a seed that nobody knows before; it.  Every rank calls it."""
    chosen = new_seed()
    manual_seed(chosen)
    return chosen


def initial_seed() -> int:
    """The seed of global tensors."""
    return state().global_generator.seed


def get_rng_state() -> Tensor:
    """Seeds and numbers of draws of global and local tensors, as int64[4]."""
    here = state()
    generators = (here.global_generator, here.local_generator)
    return Tensor.new(TensorType((4,), int64), None, np.array([n for each in generators for n in (each.seed, each.draws)]))


def set_rng_state(saved: Tensor) -> None:
    """Go on from where `get_rng_state` was called."""
    here = state()
    numbers = _numbers(saved, 4)
    (here.global_generator.seed, here.global_generator.draws), (here.local_generator.seed, here.local_generator.draws) = numbers[:2], numbers[2:]


def _numbers(saved: Tensor, count: int) -> list[int]:
    if saved.tensor_type != TensorType((count,), int64):
        raise ArgumentError(f"the state of a generator at {user_line()}: it is an int64[{count}] tensor; got {saved.tensor_type}")
    return saved.tolist()


def generator_of(given: Any, layout: Layout | None) -> Counter:
    """The generator asked for, or else that of local or of global tensors."""
    here = state()
    if given is not None:
        return given.core if hasattr(given, "core") else given
    return here.local_generator if layout is None else here.global_generator


def _drawn(place: Place, shape: tuple[int, ...], generator: Any, make: Any, dtype: DType | None = None) -> Tensor:
    """The tensor of a random op `make(shape, dtype, key, seed)` for the next draw."""
    layout = place.drawn(len(shape))
    drawing = generator_of(generator, layout)
    return place.finished(source(make(shape, dtype or place.dtype, DRAW, drawing.seed), layout, drawing.next()))


def _floats(place: Place) -> Place:
    if not place.dtype.is_float:
        raise DtypeError(f"{place.what} at {user_line()}: it makes floats; got dtype={place.dtype.name}")
    return place


def rand(*sizes: Any, generator: Any = None, **options: Any) -> Tensor:
    """Numbers evenly from [0, 1); keywords as of zeros, and generator=."""
    shape = shape_of("rand", sizes, options)
    return _drawn(_floats(Place("rand", options)), shape, generator, RandomUniform)


def randn(*sizes: Any, generator: Any = None, **options: Any) -> Tensor:
    """Numbers of the normal distribution of mean 0 and deviation 1."""
    shape = shape_of("randn", sizes, options)
    return _drawn(_floats(Place("randn", options)), shape, generator, RandomNormal)


def rand_like(x: Tensor, *, generator: Any = None, **options: Any) -> Tensor:
    """rand in the shape, element type and layout of x; of a partial x whole on every rank."""
    return _drawn(_floats(Place("rand_like", options, x.dtype, x)), x.tensor_type.shape, generator, RandomUniform)


def randn_like(x: Tensor, *, generator: Any = None, **options: Any) -> Tensor:
    """randn likewise."""
    return _drawn(_floats(Place("randn_like", options, x.dtype, x)), x.tensor_type.shape, generator, RandomNormal)


def randint(low: int, high: Any = None, size: Any = None, *, generator: Any = None, **options: Any) -> Tensor:
    """Integers evenly from [low, high); randint(high, size) begins at 0."""
    if size is None:
        low, high, size = (0, low, high) if not isinstance(high, int) else (low, high, options.pop("shape", None))
    elif high is None:
        low, high = 0, low
    return _integers(Place("randint", options, int64), shape_of("randint", (size,), {}), low, high, generator)


def randint_like(x: Tensor, low: int, high: int | None = None, *, generator: Any = None, **options: Any) -> Tensor:
    """randint in the shape, element type and layout of x."""
    low, high = (0, low) if high is None else (low, high)
    return _integers(Place("randint_like", options, x.dtype, x), x.tensor_type.shape, low, high, generator)


def _integers(place: Place, shape: tuple[int, ...], low: int, high: int, generator: Any) -> Tensor:
    low, high = integer(place.what, low), integer(place.what, high)
    if low >= high:
        raise ArgumentError(f"{place.what} at {user_line()}: there is no integer in [{low}, {high})")
    smallest, largest = place.dtype.span
    if low < smallest or high - 1 > largest:
        raise ArgumentError(f"{place.what} at {user_line()}: [{low}, {high}) is beyond {place.dtype.name}, {smallest} to {largest}")

    def make(shape: tuple[int, ...], dtype: DType, key: str, seed: int) -> RandomInt:
        return RandomInt(shape, dtype, key, seed, low=low, high=high)

    return _drawn(place, shape, generator, make)


def randperm(n: int, *, generator: Any = None, **options: Any) -> Tensor:
    """The integers 0 to n - 1 in random order: that of random keys.  A global one is drawn by every rank of the placement."""
    n = integer("randperm", n)
    if n < 0:
        raise ArgumentError(f"randperm at {user_line()}: there are no {n} integers to order")
    place = Place("randperm", options, int64)
    target = place.drawn(1)
    drawing = generator_of(generator, target)
    keys = source(RandomUniform((int(n),), float64, DRAW, drawing.seed), target and whole(target), drawing.next())
    order = cast(run_several(Sort(0), keys)[1], place.dtype)
    return place.finished(order if target is None else crossing.change(state(), order, target))


def uniform_like(x: Tensor, low: float, high: float, generator: Any = None) -> Tensor:
    """Numbers evenly from [low, high) in the shape, element type and layout of x."""

    if not low <= high:
        raise ArgumentError(f"uniform at {user_line()}: there is no number in [{low}, {high})")

    def make(shape: tuple[int, ...], dtype: DType, key: str, seed: int) -> RandomUniform:
        return RandomUniform(shape, dtype, key, seed, low=float(low), high=float(high))

    return _drawn(_floats(Place("uniform", {}, x.dtype, x)), x.tensor_type.shape, generator, make)


def normal_like(x: Tensor, mean: float, std: float, generator: Any = None) -> Tensor:
    """Numbers of the normal distribution likewise."""
    return _drawn(_floats(Place("normal", {}, x.dtype, x)), x.tensor_type.shape, generator, _normal(mean, std))


def _normal(mean: float, std: float) -> Any:
    if not std >= 0:
        raise ArgumentError(f"normal at {user_line()}: the deviation std={std} must not be negative")

    def make(shape: tuple[int, ...], dtype: DType, key: str, seed: int) -> RandomNormal:
        return RandomNormal(shape, dtype, key, seed, mean=float(mean), std=float(std))

    return make


def normal(mean: Any, std: Any = 1.0, *sizes: Any, generator: Any = None, **options: Any) -> Tensor:
    """Numbers of the normal distribution: of one mean and deviation for a shape, or of those that tensors have for each element."""
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        if sizes or "size" in options:
            raise ArgumentError(f"normal at {user_line()}: the size is that of the tensors; do not pass size")
        return _of_each(mean, std, generator, options)
    shape = shape_of("normal", sizes, options)
    return _drawn(_floats(Place("normal", options)), shape, generator, _normal(number(mean, "normal"), number(std, "normal")))


def _of_each(mean: Any, std: Any, generator: Any, options: dict[str, Any]) -> Tensor:
    """Numbers of the normal distribution with the mean and deviation that tensors have for each."""
    if isinstance(std, Tensor):
        std = run(RuntimeAssertion("normal", "deviation", 0.0), std)
    elif not std >= 0:
        raise ArgumentError(f"normal at {user_line()}: the deviation std={std} must not be negative")
    like = as_float(mean if not isinstance(std, Tensor) else std if not isinstance(mean, Tensor) else add(mean, std)).detach()
    return add(mul(randn_like(like, generator=generator, **options), std), mean)


def bernoulli(x: Tensor, p: float | None = None, *, generator: Any = None) -> Tensor:
    """1 with the probability that x has there (with probability p), else 0; of the type of x."""
    chances = as_float(x.detach()) if p is None else full_like(as_float(x.detach()), p)
    drawn = rand_like(chances, generator=generator)
    return cast(run(Less(), drawn, run(RuntimeAssertion("bernoulli", "probability", 0.0, 1.0), chances)), x.dtype)


def multinomial(x: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """Indices drawn from each row of weights; without replacement each at most once.  Every rank of the placement draws the whole.

    Keys log(u) / weight in descending order are a draw without replacement; with it, every sample is a draw of its own.
    """
    weights, num_samples = as_float(x.detach()), integer("multinomial", num_samples)
    if weights.ndim not in (1, 2) or not num_samples > 0 or (not replacement and num_samples > weights.shape[-1]):
        raise ArgumentError(f"multinomial at {user_line()}: {num_samples} samples, replacement={replacement}, of weights {x.tensor_type}")
    if x.layout is not None:
        weights = crossing.change(state(), weights, whole(x.layout))
    weights = run(weight_assertion("multinomial", 1 if replacement else num_samples), weights)
    if not replacement:
        return _in_order(weights, generator, num_samples)
    columns = [_in_order(weights, generator, 1) for _ in range(num_samples)]
    if len(columns) == 1:
        return columns[0]
    return run(Concat(columns[0].ndim - 1), *columns)


def _in_order(weights: Tensor, generator: Any, count: int) -> Tensor:
    """The positions of the `count` first arrivals, at rates that are the weights."""
    u = cast(rand_like(weights, dtype=float64, generator=generator), float64)
    arrivals = -((1.0 - u).log()) / cast(weights, float64)
    order = run_several(Sort(weights.ndim - 1), arrivals)[1]
    window = Slice((0,) * weights.ndim, (*weights.tensor_type.shape[:-1], count), (1,) * weights.ndim)
    return run(window, order)


class RandomMethods:
    """Methods of tensors: random numbers."""

    __slots__ = ()

    bernoulli = method(bernoulli)
    multinomial = method(multinomial)
    rand_like = method(rand_like)
    randint_like = method(randint_like)
    randn_like = method(randn_like)
