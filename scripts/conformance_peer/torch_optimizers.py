"""Records PyTorch's sample and error inputs of its optimizers (`optim_db`), and its schedules of learning rates."""

from __future__ import annotations

from typing import Any

import torch
from conformance_format import FUNCTIONS, METRICS, OPTIMIZER_STEPS, SCHEDULE_STEPS, weights
from torch.testing._internal.common_optimizers import optim_db
from torch_operators import seed
from torch_trees import Recording, copied, error_record

DTYPES = ("float64", "float32")
SHAPES = ((4, 3), (5,))
#: optimizers whose parameters must be matrices
MATRICES = ("Muon",)


def listed() -> list[dict[str, Any]]:
    return [{"name": f"optim.{info.name}"} for info in optim_db]


def parameters(dtype: str, name: str) -> list[torch.Tensor]:
    shapes = [shape for shape in SHAPES if len(shape) == 2 or name not in MATRICES]
    return [torch.from_numpy(weights(shape, i)).to(getattr(torch, dtype)).requires_grad_() for i, shape in enumerate(shapes)]


class Recorder(Recording):
    """The cases of one optimizer."""

    def __init__(self, info: Any) -> None:
        super().__init__()
        self.info = info

    def record(self) -> None:
        for dtype in DTYPES:
            of = getattr(torch, dtype)
            for number, sample in enumerate(self.info.optim_inputs_func("cpu", of)):
                self.keep({"dtype": dtype, "number": number}, lambda sample=sample, dtype=dtype: self.answered(sample, dtype))
        seed()
        for number, error in enumerate(self.info.optim_error_inputs_func("cpu", torch.float64)):
            self.keep({"dtype": "error", "number": number}, lambda error=error: self.refused(error.optimizer_error_input))

    def refused(self, sample: Any) -> dict[str, Any] | None:
        params = parameters("float64", self.info.name) if sample.params is None else sample.params
        line = self.encode.arguments({"params": params, "kwargs": sample.kwargs})
        try:
            optimizer = self.info.optim_cls(params, **sample.kwargs)
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                p.grad = torch.ones_like(p).to_sparse() if self.info.only_supports_sparse_grads else torch.ones_like(p)
            optimizer.step()
        except Exception as error:  # noqa: BLE001 - whatever PyTorch raises is the record
            return line | {"out": error_record(error)}
        return None

    def answered(self, sample: Any, dtype: str) -> dict[str, Any]:
        params = parameters(dtype, self.info.name)
        line = self.encode.arguments({"params": params, "kwargs": sample.kwargs})
        optimizer = self.info.optim_cls(params, **copied(sample.kwargs))
        steps = []
        for step in range(OPTIMIZER_STEPS):
            for i, p in enumerate(params):
                gradient = torch.from_numpy(weights(tuple(p.shape), 10 + i + 2 * step)).to(p.dtype)
                p.grad = gradient.to_sparse() if self.info.only_supports_sparse_grads else gradient
            optimizer.step(lambda: 0.0) if self.info.step_requires_closure else optimizer.step()
            steps.append([self.encode(p.detach().clone()) for p in params])
        return line | {"out": {"list": [{"list": step} for step in steps]}}


def recorded(entry: dict[str, Any]) -> Recorder:
    (info,) = [info for info in optim_db if f"optim.{info.name}" == entry["name"]]
    recorder = Recorder(info)
    recorder.record()
    return recorder


#: PyTorch has no list for schedules; a text under "lr_lambda" names one of FUNCTIONS
SCHEDULES: dict[str, list[dict[str, Any]]] = {
    "LambdaLR": [{"lr_lambda": "halves"}, {"lr_lambda": ["halves", "falls"]}],
    "MultiplicativeLR": [{"lr_lambda": "halves"}],
    "StepLR": [{"step_size": 3}, {"step_size": 4, "gamma": 0.5}, {"step_size": 1, "gamma": 0.9}],
    "MultiStepLR": [{"milestones": [3, 7]}, {"milestones": [2, 2, 9], "gamma": 0.3}],
    "ConstantLR": [{}, {"factor": 0.5, "total_iters": 4}, {"factor": 1.0, "total_iters": 0}],
    "LinearLR": [{}, {"start_factor": 0.25, "end_factor": 0.8, "total_iters": 7}],
    "ExponentialLR": [{"gamma": 0.9}, {"gamma": 1.0}],
    "PolynomialLR": [{}, {"total_iters": 6, "power": 2.0}],
    "CosineAnnealingLR": [{"T_max": 8}, {"T_max": 5, "eta_min": 0.01}, {"T_max": 25, "eta_min": 0.001}],
    "CosineAnnealingWarmRestarts": [{"T_0": 4}, {"T_0": 3, "T_mult": 2, "eta_min": 0.01}],
    "CyclicLR": [{"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3, "cycle_momentum": False}],
    "OneCycleLR": [{"max_lr": 0.5, "total_steps": 30}],
    "ReduceLROnPlateau": [
        {},
        {"patience": 1},
        {"mode": "max", "patience": 2, "factor": 0.5},
        {"patience": 0, "cooldown": 2, "min_lr": 0.01},
        {"patience": 1, "threshold": 0.2, "threshold_mode": "abs"},
        {"patience": 1, "threshold": 0.5, "threshold_mode": "rel"},
    ],
}
#: what PyTorch refuses
WRONG_SCHEDULES: dict[str, list[dict[str, Any]]] = {
    "LambdaLR": [{"lr_lambda": ["halves"]}],
    "ConstantLR": [{"factor": 1.5}, {"factor": -0.5}],
    "LinearLR": [{"start_factor": 1.5}, {"end_factor": -1.0}, {"start_factor": 0.0}],
    "ReduceLROnPlateau": [{"factor": 1.5}, {"mode": "least"}, {"threshold_mode": "near"}],
    "CosineAnnealingWarmRestarts": [{"T_0": 0}],
    "OneCycleLR": [{"max_lr": 0.1}],
}


def schedules_listed() -> list[dict[str, Any]]:
    return [{"name": f"optim.lr_scheduler.{name}"} for name in SCHEDULES]


def rates(name: str, options: dict[str, Any]) -> list[list[float]]:
    groups = [{"params": [torch.zeros(2, requires_grad=True)]}, {"params": [torch.zeros(3, requires_grad=True)], "lr": 0.3}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    chosen = dict(options)
    if "lr_lambda" in chosen:
        words = chosen["lr_lambda"]
        chosen["lr_lambda"] = FUNCTIONS[words] if isinstance(words, str) else [FUNCTIONS[word] for word in words]
    schedule = getattr(torch.optim.lr_scheduler, name)(optimizer, **chosen)
    history = [[float(group["lr"]) for group in optimizer.param_groups]]
    for step in range(SCHEDULE_STEPS):
        optimizer.step()
        schedule.step(METRICS[step]) if name == "ReduceLROnPlateau" else schedule.step()
        history.append([float(group["lr"]) for group in optimizer.param_groups])
    return history


class ScheduleRecorder(Recording):
    """The cases of one schedule."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def record(self) -> None:
        for number, options in enumerate(SCHEDULES[self.name]):
            self.keep({"dtype": "float64", "number": number}, lambda options=options: self.answered(options))
        for number, options in enumerate(WRONG_SCHEDULES.get(self.name, ())):
            self.keep({"dtype": "error", "number": number}, lambda options=options: self.refused(options))

    def answered(self, options: dict[str, Any]) -> dict[str, Any]:
        return self.encode.arguments({"kwargs": options}) | {"out": self.encode(rates(self.name, options))}

    def refused(self, options: dict[str, Any]) -> dict[str, Any] | None:
        try:
            rates(self.name, options)
        except Exception as error:  # noqa: BLE001 - whatever PyTorch raises is the record
            return self.encode.arguments({"kwargs": options}) | {"out": error_record(error)}
        return None


def schedule_recorded(entry: dict[str, Any]) -> ScheduleRecorder:
    recorder = ScheduleRecorder(entry["name"].rpartition(".")[2])
    recorder.record()
    return recorder
