"""Random programs of tensors: lines that PyTorch and jobflow both accept, with their results.

A program grows line by line. Each line runs three times: in its element types, in float64, and in float64 with random
rounding errors. The distance of the three results bounds the exactness of an answer; lines without exact results are dropped.
It runs in PyTorch's own environment as well:

    python growing_tensors.py torch FIRST_SEED PROGRAMS FILE
"""

from __future__ import annotations

import importlib
import json
import math
import random
import re
import sys
from pathlib import Path
from typing import Any

#: elements of the largest value; lines of the longest program
LARGEST, LONGEST = 2000, 40
#: distance of 1 from the next number, in the last places that an answer may be off
PLACES = {"float64": 1e-12, "float32": 4e-6, "float16": 4e-3, "bfloat16": 3e-2}
#: numbers below this one may be 0
SMALLEST = 2e-38
WHOLE = ("int8", "uint8", "int32", "int64")

#: lines to draw from, and those that write over a tensor: the second part of the file
LINES, WRITES = (
    [line for line in part.splitlines() if line and not line.startswith("#")]
    for part in Path(__file__).with_name("lines.txt").read_text(encoding="utf-8").split("\n\n")
)


def spread(x: Any, shape: list[int] | tuple[int, ...]) -> Any:
    """A flat list of numbers as lists in lists."""
    if not shape:
        return x[0]
    step = math.prod(shape[1:])
    return [spread(x[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def flat(x: Any) -> list[Any]:
    return [y for part in x for y in flat(part)] if isinstance(x, list) else [x]


def name_of(x: Any) -> str:
    """Of its element type, as both frameworks call it."""
    return str(x.dtype).rpartition(".")[2]


def values_of(x: Any) -> list[Any]:
    return flat(x.detach().tolist())


def distance(values: list[Any], exact: list[Any]) -> float:
    """The largest distance of two lists of numbers; infinite if they are not finite in the same places."""
    pairs = [(float(a), float(b)) for a, b in zip(values, exact, strict=True)]
    if any(math.isfinite(a) != math.isfinite(b) or (not math.isfinite(b) and repr(a) != repr(b)) for a, b in pairs):
        return math.inf
    return max((abs(a - b) for a, b in pairs if math.isfinite(b)), default=0.0)


class Program:
    """Inputs by name, lines, and answers by name: element type, shape, numbers, and how far off they may be."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.inputs: dict[str, tuple[str, list[int], list[Any]]] = {}
        self.lines: list[str] = []
        self.answers: dict[str, tuple[str, list[int], list[Any], float]] = {}
        self.gradients: dict[str, tuple[str, list[int], list[Any], float]] = {}


class Growth:
    """A program of a framework F that grows."""

    def __init__(self, framework: Any, seed: int) -> None:
        self.random, self.program = random.Random(seed), Program(seed)
        self.F = framework
        self.writes = self.random.random() < 0.4
        self.sizes = [self.random.choice([1, 2, 3, 4, 5, 7]) for _ in range(3)]
        #: the names of the program as it is, in float64, and there with errors
        self.worlds: list[dict[str, Any]] = [{"F": framework} for _ in range(3)]
        self.pool: list[str] = []
        for _ in range(self.random.randint(2, 4)):
            self.input("float32", [self.random.choice(self.sizes) for _ in range(self.random.randint(0, 4))])
        self.input(self.random.choice(WHOLE), [self.random.choice(self.sizes) for _ in range(self.random.randint(1, 2))])
        self.input("int64", [self.random.choice(self.sizes)])
        self.input("bool", list(self.program.inputs["a0"][1]))

    def input(self, kind: str, shape: list[int]) -> str:
        name, draw = f"a{len(self.program.inputs)}", self.random
        real = kind.startswith(("float", "bfloat"))
        number = (lambda: round(draw.gauss(0, 1) * 2**20) / 2**20) if real else (lambda: draw.randint(0, 9))
        make = {"bool": lambda: draw.random() < 0.5}.get(kind, number)
        self.program.inputs[name] = kind, shape, [make() for _ in range(math.prod(shape))]
        for world, exact in zip(self.worlds, (False, True, True), strict=True):
            world[name] = leaf(self.F, self.program.inputs[name], exact)
        self.pool.append(name)
        return name

    # ---------------------------------------------------------------- the words of a line

    def tensor(self, fits: Any) -> str:
        """Later ones are likelier."""
        candidates = [name for name in self.pool if fits(self.worlds[0][name])]
        return candidates[-1 - int(len(candidates) * self.random.random() ** 2)] if candidates else self.random.choice(self.pool)

    def index(self, x: Any) -> str:
        parts = []
        for size in x.shape[: self.random.randint(1, max(1, x.ndim))]:
            k = self.random.randrange(max(1, size))
            parts.append(self.random.choice([str(k), str(k - size), f"{k}:", f":{k + 1}", "::2", ":", f"-{k + 1}:", "None, :", f"[{k}, 0]", "..."]))
        return ", ".join(parts)

    def words(self, line: str) -> dict[str, Any]:
        draw, world = self.random, self.worlds[0]
        real, whole = (lambda t: t.is_floating_point()), (lambda t: name_of(t) in WHOLE)
        x = world[name := self.tensor(real)]
        like = self.tensor(lambda t: real(t) and t.shape == x.shape) if draw.random() < 0.6 else self.tensor(real)
        u = self.tensor(lambda t: True)
        first = x if "{x}" in line else world[u]
        axes = [draw.randrange(-max(1, first.ndim), max(1, first.ndim)) for _ in range(2)]
        size = first.shape[axes[0]] if first.ndim else 1
        number = draw.choice([0.5, 1.25, 2.0, 3.0, 0.1])
        k = draw.choice([math.gcd(first.numel(), k) or 1 for k in (2, 3, 4, 7)])
        tensors = {
            "x": name,
            "y": like,
            "u": u,
            "v": self.tensor(lambda t: t.shape == world[u].shape),
            "n": self.tensor(whole),
            "m": self.tensor(whole),
            "b": self.tensor(lambda t: name_of(t) == "bool" and t.shape == x.shape),
        }
        return tensors | {
            "d": axes[0],
            "e": axes[1],
            "c": draw.choice([1, -1]) * number,
            "a": number,
            "q": draw.choice([2, -3, 1000]),
            "k": draw.randrange(max(1, size)),
            "t": draw.random() < 0.5,
            "z": draw.randint(-1, 1),
            "i": self.index(first),
            "h": draw.choice([*PLACES, *WHOLE, "bool"]),
            "p": draw.sample(range(first.ndim), first.ndim),
            "s": draw.choice([[-1], [k, first.numel() // k], [first.numel() // k, k], [-1, 1, k]]),
            "1": draw.randint(1, 2),
            "2": draw.randint(1, 2),
            "mode": draw.choice(["nearest", "bilinear"]),
        }

    def filled(self, line: str) -> str:
        words = self.words(line)
        text = ""
        for i, part in enumerate(line.replace("{", "}").split("}")):
            if i % 2 and part.startswith("r:"):
                shape = eval(part[2:], {"x": self.worlds[0][words["x"]]})
                part = self.input(name_of(self.worlds[0][words["x"]]), [int(n) for n in shape])
            elif i % 2:
                part = str(words[part])
            text += part
        return text

    # ---------------------------------------------------------------- lines

    def grow(self) -> None:
        known, inputs, pool = [set(world) for world in self.worlds], dict(self.program.inputs), list(self.pool)
        name = f"t{len(self.program.lines)}"
        write = self.writes and self.random.random() < 0.3
        try:
            line = self.filled(self.random.choice(WRITES if write else LINES)).replace("@", name)
            self.take(name, line)
        except Exception:  # noqa: BLE001 - a line that is none, for these shapes and element types
            self.program.inputs, self.pool = inputs, pool
            for world, names in zip(self.worlds, known, strict=True):
                for each in set(world) - names:
                    del world[each]

    def take(self, name: str, line: str) -> None:
        """Run a line; ValueError if its value is not one to go on with."""
        for world, text in zip(self.worlds, (line, exactly(line), exactly(line)), strict=True):
            exec(text, world)
        x, _, rounded = values = [world[name] for world in self.worlds]
        if x.numel() > LARGEST or (x.numel() == 0 and self.random.random() < 0.8):
            raise ValueError("too large, or empty")
        self.program.answers[name] = self.answer(*values)
        if x.is_floating_point() and any(v != round(v) for v in values_of(rounded) if math.isfinite(v)):
            errors = [1 + self.random.uniform(-0.25, 0.25) * PLACES[name_of(x)] for _ in range(x.numel())]
            self.worlds[2][name] = rounded * leaf(self.F, ("float64", list(x.shape), errors)).detach()
        self.program.lines.append(line)
        self.pool.append(name)

    def answer(self, x: Any, exact: Any, rounded: Any) -> tuple[str, list[int], list[Any], float]:
        values, reference = values_of(x), values_of(exact)
        if not x.shape == exact.shape == rounded.shape:
            raise ValueError("a shape that depends on rounding")
        off, kind = max(distance(values, reference), distance(values_of(rounded), reference)), name_of(x)
        largest = max((abs(float(b)) for b in reference if math.isfinite(float(b))), default=0.0)
        if kind not in PLACES:
            if off or largest > 2**53:
                raise ValueError("depends on rounding")
            return kind, list(x.shape), values, 0.0
        if off > 0.05 * largest + 1e-6 or largest > 1e4 or (any(not math.isfinite(b) for b in reference) and self.random.random() < 0.95):
            raise ValueError("not exact")
        return kind, list(x.shape), reference, 16 * off + PLACES[kind] * largest + SMALLEST

    def finish(self) -> Program:
        """Lengthen the program, and give it a loss of all that nobody reads, and its gradients."""
        length = self.random.randint(5, LONGEST)
        for _ in range(6 * LONGEST):
            if len(self.program.lines) < length:
                self.grow()
        text = set(re.findall(r"\w+", " ".join(line.partition("=")[2] for line in self.program.lines)))
        ends = [name for name in self.program.answers if name not in text and self.worlds[0][name].requires_grad and self.worlds[0][name].numel()]
        finite = [name for name in ends if all(math.isfinite(v) for v in values_of(self.worlds[1][name]))]
        if finite:
            self.end(" + ".join(f"({name}.to(F.float32).square().mean() + {name}.to(F.float32).mean())" for name in finite))
        return self.program

    def end(self, loss: str) -> None:
        try:
            self.take("loss", "loss = " + loss)
            leaves = [name for name, (kind, *_) in self.program.inputs.items() if kind in PLACES]
            gradients = [self.F.autograd.grad(world["loss"], [world[name] for name in leaves], allow_unused=True) for world in self.worlds]
            self.program.gradients = {name: self.answer(*three) for name, *three in zip(leaves, *gradients, strict=True) if three[0] is not None}
        except (ValueError, RuntimeError):  # a line whose gradient there is not, or that wrote over what a gradient needs
            self.program.gradients = {}


def exactly(line: str) -> str:
    """The same in float64."""
    for kind in ("bfloat16", "float16", "float32"):
        line = line.replace(f"F.{kind}", "F.float64").replace(f".{kind}()", ".double()")
    return line.replace(".half()", ".double()").replace(".float()", ".double()")


def leaf(framework: Any, spec: Any, exact: bool = False, **where: Any) -> Any:
    """The tensor of an input, which wants a gradient if it is real."""
    kind, shape, values = spec
    real = kind in PLACES
    array = spread(values, shape) if math.prod(shape) else framework.zeros(shape).tolist()
    return framework.tensor(array, dtype=getattr(framework, "float64" if exact and real else kind), **where).requires_grad_(real)


def main() -> None:
    framework, first, count, path = importlib.import_module(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    with path.open("w", encoding="utf-8") as file:
        for seed in range(first, first + count):
            json.dump(vars(Growth(framework, seed).finish()), file)
            file.write("\n")


if __name__ == "__main__":
    main()
