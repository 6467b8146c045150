"""Recorded arguments as jobflow's, names as users type them, and what became of a call."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from conformance_compare import differences
from conformance_format import array_of, weights

import jobflow as flow

PACKAGE = str(Path(flow.__file__).parent)
#: exceptions that a public function raises on purpose for its arguments
LOCATED = re.compile(r" at \S+:\d+: ")
SIGNATURE = re.compile(
    r"\w\(\) (got an unexpected keyword|got multiple values|too many positional|takes \d|takes from \d|missing \d|got some positional-only)"
)
DELIBERATE = re.compile(r"^\s*(raise|assert)\b")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check of a case."""

    category: str
    name: str
    dtype: str
    number: int
    kind: str
    reason: str = ""

    @property
    def key(self) -> str:
        return f"{self.category}/{self.name}/{self.dtype}/{self.number}"


class Unknown(Exception):
    """An argument that has no counterpart."""


class Decoder:
    """Builds arguments; remembers the tensors that gradients are asked of."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.leaves: list[Any] = []
        self.tensors: list[Any] = []

    def __call__(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self(part) for part in value]
        if not isinstance(value, dict):
            return value
        ((word, inside), *_) = value.items()
        return self.tensor(value) if word == "tensor" else self.other(word, inside)

    def other(self, word: str, inside: Any) -> Any:
        if word in ("tuple", "list"):
            return (tuple if word == "tuple" else list)(self(part) for part in inside)
        if word == "dict":
            return {self(key): self(part) for key, part in inside}
        if word == "slice":
            return slice(*(self(part) for part in inside))
        makers: dict[str, Callable[[], Any]] = {
            "float": lambda: float(inside),
            "ellipsis": lambda: Ellipsis,
            "dtype": lambda: getattr(flow, inside),
            "function": lambda: resolved(inside),
            "again": lambda: self.tensors[inside],
            "device": lambda: flow.device(inside),
            "array": lambda: array_of(self.data, inside),
            "memory_format": lambda: self.word(inside),
            "layout": lambda: self.word(inside),
        }
        return makers[word]()

    def word(self, name: str) -> Any:
        if not hasattr(flow, name):
            raise Unknown(f"flow.{name}")
        return getattr(flow, name)

    def tensor(self, value: dict[str, Any]) -> Any:
        tensor = flow.from_numpy(array_of(self.data, value["tensor"]))
        if value["tensor"][1] == "bfloat16":
            tensor = tensor.to(flow.bfloat16)
        if value.get("grad"):
            tensor.requires_grad_()
            self.leaves.append(tensor)
        self.tensors.append(tensor)
        return tensor


def resolved(path: str) -> Any:
    """Return the object flow.PATH, or None."""
    at: Any = flow
    for part in path.split("."):
        try:
            at = getattr(at, part)
        except AttributeError:
            return None
    return at


def failure(error: BaseException) -> tuple[str, str]:
    """(kind, reason) of an exception: ours, one about unknown arguments, or one from inside."""
    text = str(error).strip().splitlines()[0][:160] if str(error).strip() else ""
    if isinstance(error, flow.JobflowError):
        return "refused", f"{type(error).__name__}: {text}"
    if isinstance(error, Unknown):
        return "unknown argument", text
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, TypeError) and SIGNATURE.search(text):
        return "unknown argument", text
    if isinstance(error, TypeError | ValueError | IndexError) and frames[-1].filename.startswith(PACKAGE):
        public = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
        if (len(public) <= 2 or LOCATED.search(text)) and DELIBERATE.match(public[-1].line or ""):
            return "refused", f"{type(error).__name__}: {text}"
    at = frames[-1]
    return "internal exception", f"{type(error).__name__}: {text} [{Path(at.filename).name}:{at.lineno}]"


def weighted(outputs: Sequence[Any], first: int) -> Any:
    """The sum of all elements, each with its own weight, of those that have a gradient."""
    differentiable = [(i, y) for i, y in enumerate(outputs) if y.requires_grad and y.is_floating_point()]
    parts = [(y * flow.from_numpy(np.asarray(weights(tuple(y.shape), first + i))).to(y.dtype)).sum() for i, y in differentiable]
    return sum(parts[1:], parts[0]) if parts else None


class Cases:
    """The cases of one recorded file."""

    def __init__(self, lines: Sequence[dict[str, Any]], data: bytes) -> None:
        (self.entry, *self.cases), self.data = lines, data
        variant = self.entry.get("variant")
        self.suffix = f":{variant}" if variant else ""

    def outcomes(self) -> Iterator[Outcome]:
        for case in self.cases:
            yield from self.of(case)

    def of(self, case: dict[str, Any]) -> Iterator[Outcome]:
        raise NotImplementedError

    def outcome(self, category: str, name: str, case: dict[str, Any], kind: str, reason: str = "") -> Outcome:
        return Outcome(category, name + self.suffix, case["dtype"], case["number"], kind, reason)

    def compared(self, category: str, name: str, case: dict[str, Any], listed: Sequence[str]) -> Outcome:
        return self.outcome(category, name, case, "different" if listed else "equal", "; ".join(listed))

    def failed(self, category: str, name: str, case: dict[str, Any], error: Exception, refuses: bool = False) -> Outcome:
        kind, reason = failure(error)
        return self.outcome(category, name, case, "equal" if refuses and kind in ("refused", "unknown argument") else kind, reason)

    def derivatives(self, name: str, case: dict[str, Any], outs: Sequence[Any], leaves: Sequence[Any]) -> Iterator[Outcome]:
        """Gradients of a weighted sum of the outputs, and those of a weighted sum of the gradients."""
        if not isinstance(case.get("grads"), list):
            return
        second = isinstance(case.get("grads2"), list)
        try:
            loss = weighted(outs, 0)
            grads = [None] * len(leaves) if loss is None else flow.autograd.grad(loss, leaves, create_graph=second, allow_unused=True)
        except Exception as error:  # noqa: BLE001 - every exception is a result here
            yield self.failed("gradients", name, case, error)
            return
        listed = list(self.gradient_differences(case["grads"], grads))
        yield self.compared("gradients", name, case, listed)
        if not second or listed:
            return
        try:
            # zeros that depend on nothing have no gradient
            loss = weighted([g for g, w in zip(grads, case["grads"], strict=True) if w is not None and g is not None], 100)
            again = [None] * len(grads) if loss is None else flow.autograd.grad(loss, leaves, allow_unused=True)
        except Exception as error:  # noqa: BLE001 - every exception is a result here
            yield self.failed("second derivatives", name, case, error)
            return
        yield self.compared("second derivatives", name, case, list(self.gradient_differences(case["grads2"], again)))

    def gradient_differences(self, expected: Sequence[Any], actual: Sequence[Any]) -> Iterator[str]:
        """None, where nothing depends on a tensor, is as good as zeros."""
        for i, (want, own) in enumerate(zip(expected, actual, strict=True)):
            if want is None:
                if own is not None and np.any(own.detach().numpy()):
                    yield f"{i}: value: a gradient where there is none"
            elif own is None:
                if np.any(array_of(self.data, want["tensor"])):
                    yield f"{i}: value: no gradient"
            else:
                yield from differences(want, own, self.data, where=f"{i}: ")
