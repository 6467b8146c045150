"""Record what PyTorch's distributions return, in float64: run with a Python that has torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import distribution_cases as cases  # noqa: E402 - beside this folder


def tensor(array: Any) -> Any:
    x = torch.tensor(array)
    return x.requires_grad_() if x.is_floating_point() else x


def main() -> None:
    arrays = {}
    for case in cases.CASES:
        for name, x in cases.results(torch.distributions, case, tensor).items():
            arrays[f"{case}/{name}"] = x.detach().numpy()
    np.savez_compressed(HERE / "values.npz", **arrays)


if __name__ == "__main__":
    main()
