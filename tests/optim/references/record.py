"""Record what PyTorch's optimizers and schedules do, in float64: `python tests/optim/references/record.py` in an environment that has torch.

Steps on f(w) = sum of a (w - b)^2, whose gradient is 2 a (w - b).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import optim_cases as cases  # noqa: E402 - beside this folder


def main() -> None:
    torch.set_default_dtype(torch.float64)  # NAdam stores a product of numbers in the default type
    rng = np.random.default_rng(0)
    w, a, b = (rng.standard_normal(cases.SHAPE) for _ in range(3))
    curves = {"w": w, "a": abs(a), "b": b}
    for name, (kind, options) in {**cases.OPTIMIZERS, **cases.WHOLE_MATRICES}.items():
        p = torch.nn.Parameter(torch.tensor(w))
        optimizer = getattr(torch.optim, kind)([p], **options)
        trace = []
        for _ in range(cases.STEPS):
            optimizer.zero_grad()
            (torch.tensor(abs(a)) * (p - torch.tensor(b)) ** 2).sum().backward()
            optimizer.step()
            trace.append(p.detach().numpy().copy())
        curves[name] = np.array(trace)
    for name, (kind, options) in cases.SCHEDULES.items():
        curves[f"schedule {name}"] = rates_of(lambda of, optimizer, kind=kind, options=options: getattr(of, kind)(optimizer, **options))
    for name, create in cases.COMPOSED.items():
        curves[f"schedule {name}"] = rates_of(create)
    for name, options in cases.LBFGS.items():
        curves[name] = minimised(options, w, b)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.2)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, cooldown=1, factor=0.5)
    rates = []
    for metric in cases.METRICS:
        plateau.step(metric)
        rates.append(optimizer.param_groups[0]["lr"])
    curves["plateau"] = np.array(rates)
    np.savez_compressed(HERE / "steps.npz", **curves)


def rates_of(create: Any) -> np.ndarray[Any, Any]:
    """Return the rate before each step of the schedule, and with a changing momentum also the momentum."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.2, momentum=0.9)
    schedule = create(torch.optim.lr_scheduler, optimizer)
    rates = []
    for _ in range(cases.EPOCHS):
        group = optimizer.param_groups[0]
        rates.append([group["lr"], group["momentum"]] if getattr(schedule, "cycle_momentum", False) else group["lr"])
        optimizer.step()
        schedule.step()
    return np.array(rates)


def minimised(options: dict[str, Any], w: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the loss of each step of LBFGS on the sum of (w - b)^4 + (w - b)^2 for two parameters w and 2 w."""
    params = [torch.nn.Parameter(torch.tensor(w)), torch.nn.Parameter(torch.tensor(2 * w[0]))]
    optimizer = torch.optim.LBFGS(params, **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum((((p - torch.tensor(b)) ** 4).sum() + ((p - torch.tensor(b)) ** 2).sum()) for p in params)
        loss.backward()
        return loss

    return np.array([optimizer.step(closure).item() for _ in range(4)])


def record_states() -> None:
    """Save the states of the optimizers and of the parameter after half of the steps."""
    curves = np.load(HERE / "steps.npz")
    a, b, states = torch.tensor(curves["a"]), torch.tensor(curves["b"]), {}
    for name, (kind, options) in {**cases.OPTIMIZERS, **cases.WHOLE_MATRICES}.items():
        p = torch.nn.Parameter(torch.tensor(curves["w"]))
        optimizer = getattr(torch.optim, kind)([p], **options)
        for _ in range(cases.STEPS // 2):
            optimizer.zero_grad()
            (a * (p - b) ** 2).sum().backward()
            optimizer.step()
        states[name] = {"optimizer": optimizer.state_dict(), "p": p.detach().clone()}
    torch.save(states, HERE / "states.pt")


if __name__ == "__main__":
    main()
    record_states()
