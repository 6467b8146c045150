"""Random programs of tensors in jobflow: eager, as a graph, as a job, in each tier of kernels, on ranks in random layouts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from growing_tensors import distance, flat, leaf, values_of
from ranks import on_ranks

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import DivergedError, JobflowError, RankError
from jobflow.kernels import compiled_loops
from jobflow.kernels.target import target_of
from jobflow.tensors import run as eager
from jobflow.tensors.state import state

Answer = tuple[str, list[int], list[Any], float]
Answers = dict[str, Answer]
#: ways to lay ranks out, by their number
MESHES: dict[int, list[Any]] = {1: [[0]], 2: [[0, 1], [1, 0], [[0, 1]], [[0], [1]]], 4: [[0, 1, 2, 3], [3, 1], [[0, 1], [2, 3]], [[2, 0], [3, 1]]]}


class Layouts:
    """Draws where tensors of a program lie, the same on all ranks."""

    def __init__(self, seed: int, ranks: int) -> None:
        self.random = random.Random(seed)
        self.placement = flow.placement("cpu", self.random.choice(MESHES[ranks]))

    def drawn(self, ndim: int, partial: bool) -> Any:
        kinds = [flow.sbp.broadcast, *map(flow.sbp.split, range(ndim)), *[flow.sbp.partial_sum] * partial]
        return [self.random.choice(kinds) for _ in self.placement.ranks.shape]

    def leaf(self, spec: Any) -> Any:
        return leaf(flow, spec, placement=self.placement, sbp=self.drawn(len(spec[1]), False))

    def moved(self, x: Any) -> Any:
        """Sometimes laid out anew."""
        return x.to_global(sbp=self.drawn(x.ndim, x.dtype != flow.bool)) if self.random.random() < 0.25 else x


def run(program: Any, world: dict[str, Any], moved: Callable[[Any], Any] = lambda x: x) -> dict[str, Any]:
    """The values of the lines by name."""
    world["F"] = flow
    for line in program["lines"]:
        exec(compile(line, line, "exec"), world)
        name = line.partition(" ")[0]
        world[name] = moved(world[name])
    return {name: world[name] for name in program["answers"]}


def at_once(program: Any, layouts: Layouts | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results and gradients of eager execution."""
    world = {name: layouts.leaf(spec) if layouts else leaf(flow, spec) for name, spec in program["inputs"].items()}
    leaves = dict(world)
    answers = run(program, world, layouts.moved if layouts else lambda x: x)
    xs = {name: leaves[name] for name in program["gradients"]}
    gradients = flow.autograd.grad(world["loss"], list(xs.values()), allow_unused=True) if xs else []
    return answers, {name: flow.zeros_like(x) if dx is None else dx for (name, x), dx in zip(xs.items(), gradients, strict=True)}


class Held(nn.Module):  # type: ignore[misc]
    """A program whose real inputs that have gradients are parameters."""

    def __init__(self, program: Any, layouts: Layouts | None = None) -> None:
        super().__init__()
        self.program = program
        self.at = layouts.leaf if layouts else lambda spec: leaf(flow, spec)
        for name in program["gradients"]:
            self.register_parameter(name, nn.Parameter(self.at(program["inputs"][name]).detach()))
        self.others = [name for name in program["inputs"] if name not in program["gradients"]]

    def forward(self, *others: Any) -> list[Any]:
        return list(run(self.program, dict(self._parameters) | dict(zip(self.others, others, strict=True))).values())

    def arguments(self) -> list[Any]:
        return [self.at(self.program["inputs"][name]).detach() for name in self.others]


def before_and_after(held: Held, step: Callable[[], list[Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results of a step of descent at the rate 1, and the decrease of each parameter: its gradient."""
    before = {name: x.detach().clone() for name, x in held.named_parameters()}
    answers = dict(zip(held.program["answers"], step(), strict=True))
    return answers, {name: before[name] - x.detach() for name, x in held.named_parameters()}


def as_graph(program: Any, layouts: Layouts | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    held = Held(program, layouts)

    class TrainGraph(nn.Graph):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.held = held
            if program["gradients"]:
                self.add_optimizer(flow.optim.SGD(held.parameters(), lr=1.0))

        def build(self, *others: Any) -> list[Any]:
            answers: list[Any] = self.held(*others)
            if program["gradients"]:
                answers[-1].backward()
            return answers

    return before_and_after(held, lambda: TrainGraph()(*held.arguments()))


def as_job(program: Any, devices: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    held, train = Held(program), bool(program["gradients"])
    arrays = [x.numpy() for x in held.arguments()]

    def job(*others: Any) -> Any:
        answers = held(*others)
        if train:
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(answers[-1])
        return answers

    names = [f"x{i}" for i in range(len(arrays))]
    world: dict[str, Any] = {"job": job}
    exec(f"def step({', '.join(names)}): return job({', '.join(names)})", world)
    step = world["step"]
    kinds = [flow.typing.Numpy.Placeholder(a.shape, dtype=x.dtype) for a, x in zip(arrays, held.arguments(), strict=True)]
    step.__annotations__ = {**dict(zip(names, kinds, strict=True)), "return": list[flow.typing.Numpy]}
    compiled = flow.global_function(type="train" if train else "predict")(step)
    return before_and_after(held, lambda: compiled(*arrays))


def differences(expected: Answers, actual: dict[str, Any], kind: str = "") -> Iterator[str]:
    for name, (dtype, shape, values, tolerance) in expected.items():
        x = actual[name]
        if list(x.shape) != shape:
            yield f"{kind}{name}: shape {list(x.shape)}, not {shape}"
        elif isinstance(x, flow.Tensor) and (own := str(x.dtype).rpartition(".")[2]) != dtype:
            yield f"{kind}{name}: {own}, not {dtype}"
        else:
            own = values_of(x) if isinstance(x, flow.Tensor) else flat(x.tolist())
            off = distance(own, values)
            if off > tolerance:
                at = next((i for i, (a, b) in enumerate(zip(own, values, strict=True)) if distance([a], [b]) > tolerance), 0)
                yield f"{kind}{name}: off by {off:.3g}, not {tolerance:.3g}; {own[at]} at {at}, not {values[at]}"


def compared(program: Any, way: Callable[..., Any], *arguments: Any) -> list[str]:
    """Return the differences of a run in this way; "refused ..." if jobflow raises an error of its own."""
    slack = {n: (d, s, v, t + 4e-7 * max(map(abs, program["inputs"][n][2]), default=0)) for n, (d, s, v, t) in program["gradients"].items()}
    try:
        answers, gradients = way(program, *arguments)
        return list(differences(program["answers"], answers)) + list(differences(slack, gradients, "gradient of "))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is found
        refused = isinstance(error, JobflowError) and not isinstance(error, DivergedError | RankError)
        return [f"{'refused' if refused else 'raw'} {type(error).__name__}: {' '.join(str(error).split())[:300]}"]


def in_tier(tier: str) -> Callable[[Any], list[str]]:
    """Replays at once with what computes there in a tier of kernels, however small tensors are."""

    def replay(program: Any) -> list[str]:
        known = state().prepared
        before = eager.CPU, compiled_loops.FEWEST
        eager.CPU, compiled_loops.FEWEST = target_of("cpu", tier), 1
        known.clear()
        try:
            return compared(program, at_once)
        finally:
            eager.CPU, compiled_loops.FEWEST = before
            known.clear()

    return replay


def on_threads(ranks: int, way: Callable[..., Any]) -> Callable[[Any], list[str]]:
    """Replays on ranks, in layouts that the program's seed draws."""

    def replay(program: Any) -> list[str]:
        lines_by_rank: list[list[str]] = on_ranks(ranks, lambda rank: compared(program, way, Layouts(program["seed"], ranks)))
        return next(filter(None, sorted(lines_by_rank, key=lambda lines: any(line.startswith("raw RankError") for line in lines))), [])

    return replay


#: how programs are run, by name
WAYS: dict[str, Callable[[Any], list[str]]] = {
    **{tier: in_tier(tier) for tier in ("numpy", "llvm", "reference")},
    "graph": lambda program: compared(program, as_graph),
    "job": lambda program: compared(program, as_job),
    "job2": lambda program: compared(program, as_job, 2),
    **{f"ranks{n}": on_threads(n, at_once) for n in (2, 4)},
    **{f"graphs{n}": on_threads(n, as_graph) for n in (2, 4)},
}
