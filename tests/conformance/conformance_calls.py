"""Replays recorded calls of functions, methods, in-place forms and operators with jobflow."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from conformance_cases import Cases, Decoder, Outcome, resolved
from conformance_compare import Tensor, differences, layout_differences, tie_differences
from conformance_format import tensors_in

import jobflow as flow

#: where the order of equal elements is nobody's promise: which argument is the axis
TIES = {"sort": 1, "argsort": 1, "topk": 2, "kthvalue": 2}


class Calls(Cases):
    """Checks of one operator."""

    def of(self, case: dict[str, Any]) -> Iterator[Outcome]:
        refuses = isinstance(case["out"], dict) and "raises" in case["out"]
        for path in case["functions"]:
            yield from self.called("errors" if refuses else "functions", path, case, lambda path=path: resolved(path))
        if refuses:
            return
        for name in case["methods"]:
            yield from self.called("methods", name, case, lambda name=name: getattr(Tensor, name))
        for name in case["operators"]:
            yield from self.called("operators", name, case, lambda name=name: getattr(operator, name))
        if "in_place" in case:
            for name in self.entry["in_place"]:
                yield self.in_place(name, case)

    def called(self, category: str, name: str, case: dict[str, Any], find: Callable[[], Any]) -> Iterator[Outcome]:
        """One way to call it: values, layout of views, gradients, second derivatives."""
        decode = Decoder(self.data)
        try:
            args, kwargs = decode(case["args"]), decode(case["kwargs"])
            flow.manual_seed(7)
            out = find()(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - every exception is a result here
            yield self.failed(category, name, case, error, refuses=category == "errors")
            return
        if category == "errors":
            yield self.compared(category, name, case, [f"not refused: {case['out']['message']}"])
            return
        listed = list(differences(case["out"], out, self.data, case.get("drawn", False), exact=case.get("exact")))
        if listed and self.entry["name"] in TIES:
            listed = list(tie_differences(case, TIES[self.entry["name"]], out, self.data))
        yield self.compared(category, name, case, listed)
        if not listed:
            outs = [out] if isinstance(out, Tensor) else [y for y in out if isinstance(y, Tensor)] if isinstance(out, tuple | list) else []
            yield from self.views(name, case, outs, decode)
            if not self.lent(name):
                yield from self.derivatives(name, case, outs, decode.leaves)

    def lent(self, name: str) -> bool:
        """True if the function is another of the same name, such as `norm` for `linalg.norm`: equal values, but its own gradients."""
        own = self.entry["name"]
        return "." in own and name != own and name.rpartition(".")[2] == own.rpartition(".")[2]

    def views(self, name: str, case: dict[str, Any], outs: list[Any], decode: Decoder) -> Iterator[Outcome]:
        if any(case["views"]):
            rows = zip(tensors_in(case["out"]), outs, case["views"], strict=True)
            listed = [text for row, own, view in rows if view for text in layout_differences(row["tensor"], own, decode.tensors)]
            yield self.compared("views", name, case, listed[:2])

    def in_place(self, name: str, case: dict[str, Any]) -> Outcome:
        decode = Decoder(self.data)
        refuses = "raises" in case["in_place"]
        try:
            with flow.no_grad():
                (x, *args), kwargs = decode(case["args"]), decode(case["kwargs"])
                flow.manual_seed(7)
                result = getattr(x, name)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - every exception is a result here
            return self.failed("in place", name, case, error, refuses)
        if refuses:
            return self.compared("in place", name, case, [f"not refused: {case['in_place']['message']}"])
        exact = case.get("exact") if case["in_place"].get("tensor", [0, 0])[1] == case["dtype"] else None
        listed = list(differences(case["in_place"], x, self.data, case.get("drawn", False), exact=exact))
        if result is not x:
            listed.append("structure: another tensor than its own is returned")
        return self.compared("in place", name, case, listed)
