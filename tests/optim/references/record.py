"""Record what PyTorch's optimizers and schedules do, in float64: `python tests/optim/references/record.py` in an environment that has torch.

Steps on f(w) = sum of a (w - b)^2, whose gradient is 2 a (w - b).
"""

from __future__ import annotations

import sys
from pathlib import Path

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
    for name, (kind, options) in cases.OPTIMIZERS.items():
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
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.2)
        schedule = getattr(torch.optim.lr_scheduler, kind)(optimizer, **options)
        rates = []
        for _ in range(cases.EPOCHS):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        curves[f"schedule {name}"] = np.array(rates)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.2)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, cooldown=1, factor=0.5)
    rates = []
    for metric in cases.METRICS:
        plateau.step(metric)
        rates.append(optimizer.param_groups[0]["lr"])
    curves["plateau"] = np.array(rates)
    np.savez_compressed(HERE / "steps.npz", **curves)


def record_states() -> None:
    """Save the states of the optimizers and of the parameter after half of the steps."""
    curves = np.load(HERE / "steps.npz")
    a, b, states = torch.tensor(curves["a"]), torch.tensor(curves["b"]), {}
    for name, (kind, options) in cases.OPTIMIZERS.items():
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
