"""Records PyTorch's sample and error inputs of its modules (`module_db`): state, outputs, gradients of inputs and parameters, buffers after."""

from __future__ import annotations

from typing import Any

import torch
from conformance_format import EXACT
from torch.testing._internal.common_modules import module_db
from torch_derivatives import derivatives
from torch_operators import seed, torch_object
from torch_trees import Recording, copied, error_record, leaves_of

DTYPES = ("float64", "float32")


def listed() -> list[dict[str, Any]]:
    return [{"name": info.name} for info in module_db if callable(torch_object(info.name))]


class Recorder(Recording):
    """The cases of one module."""

    def __init__(self, info: Any) -> None:
        super().__init__()
        self.info = info

    def record(self) -> None:
        for dtype in DTYPES:
            for train in (True, False):
                seed()
                asks = {"requires_grad": dtype == EXACT, "training": train}
                samples = self.info.module_inputs_func(self.info, device="cpu", dtype=getattr(torch, dtype), **asks)
                for number, sample in enumerate(samples):
                    head = {"dtype": dtype, "number": number, "train": train, "description": sample.desc}
                    self.keep(head, lambda sample=sample, dtype=dtype, train=train: self.answered(sample, dtype, train))
        if self.info.module_error_inputs_func is not None:
            seed()
            errors = self.info.module_error_inputs_func(self.info, "cpu", torch.float64, requires_grad=False, training=True)
            for number, error in enumerate(errors):
                self.keep({"dtype": "error", "number": number}, lambda error=error: self.refused(error.module_error_input))

    def module_of(self, sample: Any) -> torch.nn.Module:
        seed()
        built = sample.constructor_input
        return self.info.module_cls(*copied(built.args), **copied(built.kwargs))

    def arguments(self, sample: Any) -> dict[str, Any]:
        built, called = sample.constructor_input, sample.forward_input
        arguments_by_name = {"args": built.args, "kwargs": dict(built.kwargs)}
        if called is not None:
            arguments_by_name |= {"forward_args": called.args, "forward_kwargs": dict(called.kwargs)}
        return self.encode.arguments(arguments_by_name)

    def refused(self, sample: Any) -> dict[str, Any] | None:
        line = self.arguments(sample)
        try:
            self.module_of(sample).to(torch.float64)(*copied(sample.forward_input.args), **copied(sample.forward_input.kwargs))
        except Exception as error:  # noqa: BLE001 - whatever PyTorch raises is the record
            return line | {"out": error_record(error)}
        return None

    def answered(self, sample: Any, dtype: str, train: bool) -> dict[str, Any] | None:
        if sample.forward_input is None:
            return None
        line = self.arguments(sample)
        module = self.module_of(sample).to(getattr(torch, dtype)).train(train)
        if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in module.parameters()):
            return None
        line["state"] = [[name, self.encode(x.detach())] for name, x in module.state_dict().items()]
        args, kwargs = copied((sample.forward_input.args, dict(sample.forward_input.kwargs)))
        before = torch.get_rng_state()
        out = module(*args, **kwargs)
        drawn = not torch.equal(before, torch.get_rng_state())
        line |= {"out": self.encode(out), "drawn": drawn}
        parameters = dict(module.named_parameters())
        leaves = [*leaves_of([args, kwargs]), *parameters.values()]
        if dtype == EXACT and leaves and not drawn:
            line |= {"parameters": list(parameters)} | derivatives(out, leaves, self.info.supports_gradgrad, self.encode)
        return line | {"buffers": [[name, self.encode(x)] for name, x in module.named_buffers()]}


def recorded(entry: dict[str, Any]) -> Recorder:
    (info,) = [info for info in module_db if info.name == entry["name"]]
    recorder = Recorder(info)
    recorder.record()
    return recorder
