"""Record files of torch.save: `python tests/checkpoint/references/record.py` in an environment that has torch.

`test_torch_files.py` compares them with the same values, computed with NumPy.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

HERE = Path(__file__).parent
TYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 3)
        torch.nn.init.constant_(self.fc.weight, 0.5)
        torch.nn.init.constant_(self.fc.bias, 0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def content() -> dict[str, object]:
    base = torch.arange(12.0)
    return {
        "model": Net().state_dict(),
        "views": [base.view(3, 4), base.view(3, 4).t(), base[3:7], base.view(3, 4).expand(2, 3, 4)],
        "types": {name: torch.tensor([1, 0, 2, 3]).to(getattr(torch, name)) for name in TYPES},
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "leaf": torch.ones(2, requires_grad=True),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "plain": [None, True, 3, -5, 2**60, 1.5, "text", b"\x00\xff", (1, (2, "x")), {1, 2}, frozenset("a"), slice(1, None, 2)],
        "size": torch.Size([2, 3]),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "counter": Counter({3: 2}),
    }


def main() -> None:
    old = {"_use_new_zipfile_serialization": False}
    torch.save(content(), HERE / "zip.pt")
    torch.save(content(), HERE / "zip_protocol_4.pt", pickle_protocol=4)
    torch.save(content(), HERE / "old.pt", **old)
    torch.save(Net(), HERE / "module.pt")
    torch.save(Net(), HERE / "module_old.pt", **old)
    torch.save([torch.ones(2, dtype=torch.int16)], HERE / "int16.pt")
    torch.save([torch.ones(2, dtype=torch.uint16)], HERE / "uint16.pt")
    torch.save([torch.ones(2, dtype=torch.complex64)], HERE / "complex64.pt")
    torch.jit.save(torch.jit.script(Net()), HERE / "script.pt")


if __name__ == "__main__":
    main()
