"""Replays recorded modules, optimizers and schedules of learning rates with jobflow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance_cases import Cases, Decoder, Outcome, resolved
from conformance_compare import Tensor, differences
from conformance_format import FUNCTIONS, METRICS, SCHEDULE_STEPS, weights

import jobflow as flow


def tensors_of(result: Any) -> Iterator[Any]:
    """Return the tensors of a result, in order; tuples may be nested."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for part in result:
            yield from tensors_of(part)


class Modules(Cases):
    """Checks of one module: names of its state, outputs, gradients of inputs and parameters, buffers after."""

    def of(self, case: dict[str, Any]) -> Iterator[Outcome]:
        decode, name, refuses = Decoder(self.data), self.entry["name"], "state" not in case
        category = "module errors" if refuses else "modules"
        try:
            module = resolved(name)(*decode(case["args"]), **decode(case["kwargs"]))
            module = module.to(getattr(flow, "float64" if refuses else case["dtype"]))
            args, kwargs = decode(case["forward_args"]), decode(case["forward_kwargs"])
            if not refuses:
                self.prepare(module, case)
            flow.manual_seed(7)
            out = module(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - every exception is a result here
            yield self.failed(category, name, case, error, refuses)
            return
        if refuses:
            yield self.compared(category, name, case, [f"not refused: {case['out']['message']}"])
            return
        listed = [*differences(case["out"], out, self.data, case["drawn"]), *self.buffer_differences(module, case)]
        yield self.compared(category, name, case, listed)
        if not listed and "parameters" in case:
            outs = list(tensors_of(out))
            parameters = dict(module.named_parameters())
            yield from self.derivatives(name, case, outs, [*decode.leaves, *(parameters[word] for word in case["parameters"])])

    def prepare(self, module: Any, case: dict[str, Any]) -> None:
        """With the state that was recorded."""
        decode = Decoder(self.data)
        module.load_state_dict({word: decode(x) for word, x in case["state"]})
        module.train(case["train"])

    def buffer_differences(self, module: Any, case: dict[str, Any]) -> Iterator[str]:
        own = dict(module.named_buffers())
        for word, want in case["buffers"]:
            yield from differences(want, own.get(word), self.data, where=f"{word}: ")


class Optimizers(Cases):
    """Checks of one optimizer: the parameters after each step."""

    def of(self, case: dict[str, Any]) -> Iterator[Outcome]:
        name, refuses = self.entry["name"], "raises" in case["out"]
        category = "optimizer errors" if refuses else "optimizers"
        try:
            steps = self.stepped(case, 1 if refuses else len(case["out"]["list"]))
        except Exception as error:  # noqa: BLE001 - every exception is a result here
            yield self.failed(category, name, case, error, refuses)
            return
        if refuses:
            yield self.compared(category, name, case, [f"not refused: {case['out']['message']}"])
        else:
            yield self.compared(category, name, case, list(differences(case["out"], steps, self.data))[:3])

    def stepped(self, case: dict[str, Any], count: int) -> list[Any]:
        decode = Decoder(self.data)
        params, kwargs = decode(case["params"]), decode(case["kwargs"])
        optimizer = resolved(self.entry["name"])(params, **kwargs)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        steps = []
        for step in range(count):
            for i, p in enumerate(parameters):
                p.grad = flow.from_numpy(weights(tuple(p.shape), 10 + i + 2 * step)).to(p.dtype)
            optimizer.step(lambda: 0.0) if self.entry["name"] == "optim.LBFGS" else optimizer.step()
            steps.append([p.detach().clone() for p in parameters])
        return steps


class Schedules(Cases):
    """Checks of one schedule: the rates of two groups, step by step."""

    def of(self, case: dict[str, Any]) -> Iterator[Outcome]:
        name, refuses = self.entry["name"], "raises" in case["out"]
        category = "schedule errors" if refuses else "schedules"
        try:
            rates = self.rates(Decoder(self.data)(case["kwargs"]))
        except Exception as error:  # noqa: BLE001 - every exception is a result here
            yield self.failed(category, name, case, error, refuses)
            return
        if refuses:
            yield self.compared(category, name, case, [f"not refused: {case['out']['message']}"])
        else:
            yield self.compared(category, name, case, list(differences(case["out"], rates, self.data))[:3])

    def rates(self, options: dict[str, Any]) -> list[list[float]]:
        groups = [{"params": [flow.zeros(2).requires_grad_()]}, {"params": [flow.zeros(3).requires_grad_()], "lr": 0.3}]
        optimizer = flow.optim.SGD(groups, lr=0.1, momentum=0.9)
        if "lr_lambda" in options:
            words = options["lr_lambda"]
            options["lr_lambda"] = FUNCTIONS[words] if isinstance(words, str) else [FUNCTIONS[word] for word in words]
        schedule = resolved(self.entry["name"])(optimizer, **options)
        rates = [[float(group["lr"]) for group in optimizer.param_groups]]
        for step in range(SCHEDULE_STEPS):
            optimizer.step()
            schedule.step(METRICS[step]) if self.entry["name"].endswith("Plateau") else schedule.step()
            rates.append([float(group["lr"]) for group in optimizer.param_groups])
        return rates
