"""Records PyTorch's sample and error inputs of its operators (`op_db`), with what PyTorch answers."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from conformance_format import DTYPES, EXACT
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import SampleInput
from torch_derivatives import derivatives
from torch_trees import HALVES, Recording, copied, error_record, leaves_of, tensors, widened

#: their elements are whatever lies in memory
UNWRITTEN = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
#: of the dtypes but these at most so many samples are recorded, evenly chosen
WHOLE, MOST = {"float64", "float32", "int64"}, 40
#: operators whose samples have the arguments of the function in another order
ORDER = {"where": (1, 0, 2), "einsum": (1, 0), "nn.functional.embedding": (1, 0), "nn.functional.embedding_bag": (1, 0), "polygamma": (1, 0)}
#: where else a function may have the same name
API_PATHS = ("{}", "nn.functional.{}", "special.{}", "linalg.{}")


def drawn_at_once(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of the lists' own call with a seed, which hides from `torch.get_rng_state` that numbers were drawn."""
    return op(*args, **kwargs)


common_methods_invocations.wrapper_set_seed = drawn_at_once


def torch_object(path: str) -> Any:
    """Return PyTorch's object at a path such as nn.functional.relu, or None."""
    at: Any = torch
    for part in path.split("."):
        at = getattr(at, part, None)
    return at


def named(op: Any) -> dict[str, Any]:
    """Under which names users call it: as functions, as methods, in place, and as operators of Python."""
    words = [op.name, *(alias.name for alias in op.aliases)]
    api_paths = [api.format(word.rpartition(".")[2]) for word in words for api in API_PATHS]
    functions = [path for path in dict.fromkeys([*words, *api_paths]) if callable(torch_object(path))]
    methods = [word for word in words if "." not in word and callable(getattr(torch.Tensor, word, None))]
    in_place = [f"{word}_" for word in words if "." not in word and callable(getattr(torch.Tensor, f"{word}_", None))]
    operators = [op.operator_variant.__name__] if op.operator_variant is not None else []
    return {
        "name": op.name,
        "variant": op.variant_test_name,
        "functions": functions,
        "methods": methods,
        "in_place": in_place,
        "operators": operators,
    }


def listed() -> list[dict[str, Any]]:
    return [named(op) for op in op_db]


def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def seed() -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def reordered(name: str, sample: Any) -> Any:
    """With the arguments in the order of the function."""
    args = (sample.input, *sample.args)
    first, *rest = [args[index] for index in ORDER[name]] + list(args[len(ORDER[name]) :])
    return SampleInput(first, args=tuple(rest), kwargs=dict(sample.kwargs))


class Recorder(Recording):
    """The cases of one operator; `wanted` is its entry of the list with the names that both sides have."""

    def __init__(self, op: Any, entry: dict[str, Any]) -> None:
        super().__init__()
        self.op = op
        self.entry = entry

    def record(self, dtypes: Sequence[str]) -> None:
        for dtype in dtypes:
            of = getattr(torch, dtype)
            if of in self.op.supported_dtypes("cpu"):
                seed()
                samples = list(enumerate(self.samples(of)))
                step = 1 if dtype in WHOLE else -(-len(samples) // MOST)
                for number, sample in samples[::step]:
                    head = {"dtype": dtype, "number": number}
                    self.keep(head, lambda sample=sample, dtype=dtype: self.answered(sample, dtype, self.op))
                    if self.op.name in ORDER:
                        self.keep(
                            head, lambda sample=sample, dtype=dtype: self.answered(reordered(self.op.name, sample), dtype, torch_object(self.op.name))
                        )
        if self.op.error_inputs_func is not None:
            seed()
            for number, error in enumerate(self.op.error_inputs("cpu")):
                self.keep({"dtype": "error", "number": number}, lambda error=error: self.refused(error.sample_input))

    def samples(self, dtype: torch.dtype) -> Sequence[Any]:
        asks = dtype == getattr(torch, EXACT) and self.op.supports_autograd
        return list(self.op.sample_inputs("cpu", dtype, requires_grad=asks))

    def arguments(self, sample: Any) -> dict[str, Any]:
        return self.encode.arguments({"args": (sample.input, *sample.args), "kwargs": dict(sample.kwargs)})

    def refused(self, sample: Any) -> dict[str, Any] | None:
        """Return PyTorch's error for an error input, or None if it accepts the input."""
        line = self.arguments(sample)
        args = copied((sample.input, *sample.args))
        try:
            self.op(*args, **copied(dict(sample.kwargs)))
        except Exception as error:  # noqa: BLE001 - whatever PyTorch raises is the record
            return line | {"out": error_record(error), "functions": self.refusing(sample)}
        return None

    def answered(self, sample: Any, dtype: str, call: Callable[..., Any]) -> dict[str, Any]:
        line = self.arguments(sample)
        args, kwargs = copied(((sample.input, *sample.args), dict(sample.kwargs)))
        seed()
        before = torch.get_rng_state()
        try:
            out = call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever PyTorch raises is the record
            return line | {"out": error_record(error), "functions": self.refusing(sample)}
        drawn = self.op.name in UNWRITTEN or not torch.equal(before, torch.get_rng_state())
        memories = {x.untyped_storage().data_ptr() for x in tensors([args, kwargs])}
        line |= {"out": self.encode(out), "views": [y.untyped_storage().data_ptr() in memories for y in tensors(out)]}
        if drawn:
            line["drawn"] = True
        elif getattr(torch, dtype) in HALVES:
            line |= self.exact(sample, call)
        leaves = leaves_of([args, kwargs])
        if dtype == EXACT and leaves and not drawn:
            line |= derivatives(out, leaves, self.op.supports_gradgrad, self.encode)
        functions = [path for path in self.entry["functions"] if self.agrees(torch_object(path), sample, out, drawn)]
        methods = [name for name in self.entry["methods"] if self.agrees(getattr(torch.Tensor, name), sample, out, drawn)]
        operators = [name for name in self.entry["operators"] if not sample.kwargs and self.agrees(getattr(operator, name), sample, out, drawn)]
        return line | {"functions": functions, "methods": methods, "operators": operators} | self.in_place(sample)

    def exact(self, sample: Any, call: Callable[..., Any]) -> dict[str, Any]:
        """Return the result in float64, which bounds the error of results in half precision."""
        try:
            return {"exact": self.encode(call(*widened((sample.input, *sample.args)), **widened(dict(sample.kwargs))))}
        except Exception:  # noqa: BLE001 - whatever PyTorch raises: there is none
            return {}

    def refusing(self, sample: Any) -> list[str]:
        """The names under which PyTorch refuses it."""
        names = []
        for path in self.entry["functions"][:1]:
            try:
                torch_object(path)(*copied((sample.input, *sample.args)), **copied(dict(sample.kwargs)))
            except Exception:  # noqa: BLE001 - whatever PyTorch raises is a error_record
                names.append(path)
        return names

    def agrees(self, function: Any, sample: Any, out: Any, drawn: bool) -> bool:
        """True if PyTorch returns an equal result under another name, whose arguments may be in another order."""
        seed()
        try:
            other = function(*copied((sample.input, *sample.args)), **copied(dict(sample.kwargs)))
        except Exception:  # noqa: BLE001 - not its samples: another signature
            return False
        if type(other) is not type(out):
            return False
        if not isinstance(out, torch.Tensor | tuple | list):
            return other == out or other != other
        pairs = list(zip(tensors(other), tensors(out), strict=False))
        return drawn or all(alike(a, b) for a, b in pairs)

    def in_place(self, sample: Any) -> dict[str, Any]:
        """Return the first argument after the in-place form, or PyTorch's error."""
        if not self.entry["in_place"] or not isinstance(sample.input, torch.Tensor):
            return {}
        args, kwargs = copied(sample.args), copied(dict(sample.kwargs))
        with torch.no_grad():
            x = copied(sample.input)
            seed()
            try:
                getattr(x, self.entry["in_place"][0])(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever PyTorch raises is the record
                return {"in_place": error_record(error)}
        return {"in_place": self.encode(x.detach())}


def recorded(entry: dict[str, Any], dtypes: Sequence[str] = DTYPES) -> Recorder:
    (op,) = [op for op in op_db if (op.name, op.variant_test_name) == (entry["name"], entry["variant"])][:1]
    recorder = Recorder(op, entry)
    recorder.record(dtypes)
    return recorder
