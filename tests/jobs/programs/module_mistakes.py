"""Unsupported uses of modules in the bodies of jobs, and their errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from module_cases import Inputs, X, Y, case, error_of, net, predict_job, train_job

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn

OTHER = nn.Linear(6, 6)


class Wrong(nn.Module):
    """A module whose forward does something unsupported."""

    def __init__(self, what: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.what, self.fc = what, nn.Linear(6, 6)
        self.plain = flow.ones(6)

    def forward(self, x: Any) -> Any:
        return self.what(self, x)


WRONG: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a plain tensor": (lambda self, x: x * self.plain, "is not its parameter or buffer, so the job would miss changes of its values; register it"),
    "memory of an array": (lambda self, x: x * flow.from_numpy(np.ones(6, np.float32)), "create it in forward with flow.tensor"),
    "a parameter of another module": (lambda self, x: OTHER(x), "reads a parameter float32[6,6] that is not its parameter"),
    "a new module": (lambda self, x: nn.Linear(6, 6)(x), "while the body of a job runs"),
    "a number": (lambda self, x: x if x.sum().item() > 0 else -x, "has no values while the body of a job runs"),
    "truth": (lambda self, x: x if x.sum() > 0 else -x, "is not known while the body of a job runs"),
    "a piece": (lambda self, x: x.to_local(), "to_local"),
    "its argument": (lambda self, x: x.add_(1), "overwrites its argument"),
    "backward": (lambda self, x: self.fc(x).sum().backward(), "call minimize(loss) of an optimizer instead"),
}


@case
def what_cannot_be_is_an_error() -> dict[str, Any]:
    messages = {}
    for word, (what, fact) in WRONG.items():
        messages[word] = error_of(predict_job(Wrong(what)), X)
        assert fact in messages[word], messages[word]
        flow.clear_default_session()
        flow.config.cpu_device_num(int(os.environ.get("MODULE_DEVICES", "1")))

    @flow.global_function()
    def inside(x: Inputs) -> tp.Numpy:  # type: ignore[valid-type]
        return nn.Linear(6, 6)(x)

    messages["made inside"] = error_of(inside, X)
    assert "create modules outside of the body of a job" in messages["made inside"], messages["made inside"]
    model = net()
    job = train_job(model)
    handle = model.fc1.register_full_backward_hook(lambda *_: None)
    messages["backward hook"] = error_of(job, X, Y)
    handle.remove()
    hook = model.fc1.weight.register_hook(lambda gradient: gradient)
    messages["hook of a parameter"] = error_of(job, X, Y)
    hook.remove()
    job(X, Y)
    model.double()
    messages["another type"] = error_of(job, X, Y)
    assert "local when a job was compiled for it and is float64" in messages["another type"], messages["another type"]
    return messages
