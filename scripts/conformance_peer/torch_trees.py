"""Arguments and results of PyTorch as the cases that are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from conformance_format import DTYPES, STORED_AS, Bytes, plain
from torch.nn import functional

#: elements of the largest tensor that is recorded
LARGEST = 20_000
HALVES = (torch.float16, torch.bfloat16)


class Unrecordable(Exception):
    """The case has something that the other side does not know at all; says what."""


class Encoder:
    """Writes trees of arguments; keeps the bytes."""

    def __init__(self) -> None:
        self.data = Bytes()
        #: of the arguments that are being written, by identity: which tensor it is; None while results are written
        self.indices: dict[int, int] | None = None

    def arguments(self, named: dict[str, Any]) -> dict[str, Any]:
        """Trees of arguments by name; a tensor that comes again is {"again": number}."""
        self.indices = {}
        try:
            return {name: self(tree) for name, tree in named.items()}
        finally:
            self.indices = None

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if self.indices is not None and id(value) in self.indices:
                return {"again": self.indices[id(value)]}
            written = self.tensor(value)
            if self.indices is not None:
                self.indices[id(value)] = len(self.indices)
            return written
        if value is None or isinstance(value, bool | int | float | str):
            return plain(value)
        if value is Ellipsis:
            return {"ellipsis": True}
        if isinstance(value, slice):
            return {"slice": [self(value.start), self(value.stop), self(value.step)]}
        if isinstance(value, tuple):  # torch.Size and named tuples of results among them
            return {"tuple": [self(part) for part in value]}
        if isinstance(value, list):
            return {"list": [self(part) for part in value]}
        if isinstance(value, dict):
            return {"dict": [[self(key), self(part)] for key, part in value.items()]}
        return self.word(value)

    def word(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return {"dtype": self.dtype(value)}
        if isinstance(value, torch.device):
            if value.type != "cpu":
                raise Unrecordable(f"device {value.type}")
            return {"device": "cpu"}
        if isinstance(value, torch.memory_format | torch.layout):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        if isinstance(value, np.generic):
            return self(value.item())
        if isinstance(value, np.ndarray) and value.dtype.name in DTYPES:
            return {"array": self.tensor(torch.from_numpy(value.copy()))["tensor"]}
        if getattr(functional, getattr(value, "__name__", ""), None) is value:
            return {"function": f"nn.functional.{value.__name__}"}
        raise Unrecordable(f"argument of type {type(value).__name__}")

    def dtype(self, dtype: torch.dtype) -> str:
        name = str(dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise Unrecordable(f"dtype {name}")
        return name

    def tensor(self, x: torch.Tensor) -> dict[str, Any]:
        name = self.dtype(x.dtype)
        if x.layout != torch.strided:
            raise Unrecordable(f"layout {x.layout}")
        if x.device.type != "cpu":
            raise Unrecordable(f"device {x.device.type}")
        if x.numel() > LARGEST:
            raise Unrecordable(f"a tensor of more than {LARGEST} elements")
        if x.ndim > 64:
            raise Unrecordable("more than 64 dimensions")
        plain_x = x.detach().resolve_neg()
        strides = None if x.is_contiguous() or not x.numel() else list(x.stride())
        if strides is not None:
            span = 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
            plain_x = plain_x.as_strided((span,), (1,))
        plain = plain_x.float() if name in STORED_AS else plain_x
        written = {"tensor": [self.data.add(plain.numpy(force=True)), name, list(x.shape), strides]}
        return written | {"grad": True} if x.requires_grad else written


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a tree, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from tensors(part)
    elif isinstance(tree, dict):
        for part in tree.values():
            yield from tensors(part)


def copied(tree: Any, copies: dict[int, torch.Tensor] | None = None) -> Any:
    """Tensors as leaves of their own with the same strides, one that comes again as one; the rest as it is."""
    copies = {} if copies is None else copies
    if isinstance(tree, torch.Tensor):
        if id(tree) not in copies:
            copies[id(tree)] = _leaf(tree)
        return copies[id(tree)]
    if type(tree) in (tuple, list):
        return type(tree)(copied(part, copies) for part in tree)
    if isinstance(tree, dict):
        return {key: copied(part, copies) for key, part in tree.items()}
    return tree


def _leaf(x: torch.Tensor) -> torch.Tensor:
    if x.layout != torch.strided or x.numel() == 0:
        return x.detach().clone().requires_grad_(x.requires_grad)
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    memory = x.detach().as_strided((span,), (1,)).clone()
    return memory.as_strided(x.shape, x.stride()).requires_grad_(x.requires_grad)


def widened(tree: Any) -> Any:
    """Halves as float64."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().to(torch.float64) if tree.dtype in HALVES else tree
    if isinstance(tree, torch.dtype):
        return torch.float64 if tree in HALVES else tree
    if type(tree) in (tuple, list):
        return type(tree)(widened(part) for part in tree)
    if isinstance(tree, dict):
        return {key: widened(part) for key, part in tree.items()}
    return tree


def leaves_of(tree: Any) -> list[torch.Tensor]:
    """The tensors that gradients are asked of, each once."""
    return list({id(x): x for x in tensors(tree) if x.requires_grad}.values())


def error_record(error: Exception) -> dict[str, str]:
    first = str(error).strip().splitlines()
    return {"raises": type(error).__name__, "message": first[0][:200] if first else ""}


class Recording:
    """Lines of cases, and what is left out."""

    def __init__(self) -> None:
        self.encode = Encoder()
        self.lines: list[dict[str, Any]] = []
        #: reason -> how many cases are not recorded
        self.left_out: dict[str, int] = {}

    def keep(self, head: dict[str, Any], answer: Callable[[], dict[str, Any] | None]) -> None:
        """One more case, unless there is no answer or it cannot be written."""
        try:
            answer_line = answer()
        except Unrecordable as reason:
            self.left_out[str(reason)] = self.left_out.get(str(reason), 0) + 1
            return
        if answer_line is not None:
            self.lines.append(head | answer_line)
