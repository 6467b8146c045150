"""Count launches, waits and copies of operations of tensors on the stub GPU, and compare them with the recorded table.

    tensor_launches.py            # compare with tests/gpu/data/tensor_launches.txt; exit code 1 if a count differs
    tensor_launches.py --write    # write the table

Each operation of `tests/gpu/tensor_cases.py` runs on the real CuPy, whose kernels compute nothing here, after two runs that prepare it.
On a machine with a GPU there is nothing to count: `tests/gpu/test_on_gpu.py` compares values there.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2] / "tests" / "gpu"
TABLE = TESTS / "data" / "tensor_launches.txt"
#: columns of the table -> names of counts
COLUMNS = {"kernels": "launches", "products": "products", "waits": "synchronisations", "up": "to_device", "down": "to_host", "within": "within"}
#: runs before the counted one
WARM = 2
HEAD = """# Launches, waits and copies of one call on the stub GPU: scripts/gpu_check_steps/tensor_launches.py --write
# up, down, within: copies to the GPU, to the host, and on the GPU"""


def rows(counts: Any) -> Iterator[str]:
    """Yield one line per operation: its counts and its name."""
    import tensor_cases

    yield " ".join([*COLUMNS, "operation"])
    for name, (tensors, function) in tensor_cases.LAUNCHES.items():
        yield row(counts, name, tensors, function)
    yield row(counts, "training step of a linear layer by Adam", training, lambda step: step())
    yield row(counts, "training step of a graph of a linear layer", graph, lambda step: step())


def row(counts: Any, name: str, tensors: Callable[[str], tuple[Any, ...]], function: Callable[..., Any]) -> str:
    arguments = tensors("cuda")
    for _ in range(WARM):
        function(*arguments)
    before = counts.now()
    function(*arguments)
    after = counts.now()
    return " ".join([*(str(after[key] - before[key]) for key in COLUMNS.values()), name])


def training(device: str) -> tuple[Any, ...]:
    import jobflow as flow
    from jobflow import nn

    model = nn.Linear(32, 16).to(device)
    optimizer = flow.optim.Adam(model.parameters(), lr=0.1)
    x = flow.ones(64, 32, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return (step,)


def graph(device: str) -> tuple[Any, ...]:
    import jobflow as flow
    from jobflow import nn

    class TrainingGraph(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(32, 16).to(device)
            self.add_optimizer(flow.optim.Adam(self.model.parameters(), lr=0.1))

        def build(self, x: Any) -> Any:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    built, x = TrainingGraph(), flow.ones(64, 32, device=device)
    return (lambda: built(x),)


def main() -> None:
    sys.path[:0] = [str(TESTS), str(TESTS / "without_gpu")]
    import host_runtime

    if host_runtime.missing():
        print(f"NOT THERE {host_runtime.missing()}", flush=True)
        return
    os.environ.pop("JOBFLOW_GPU_STUB", None)  # its finder would install a second stub
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "StubFinder"]
    with tempfile.TemporaryDirectory() as folder:
        counts, _ = host_runtime.install(Path(folder))
        lines = list(rows(counts))
        code = finish(lines, "--write" in sys.argv)
        sys.stdout.flush()
    os._exit(code)  # CuPy frees memory when the interpreter has already removed the stub's functions


def finish(lines: list[str], write: bool) -> int:
    text = "\n".join([HEAD, *lines, ""])
    print("\n".join(lines))
    if write:
        TABLE.write_text(text)
    differing = [line for line in lines if line not in TABLE.read_text().splitlines()]
    print("RESULT " + json.dumps({"operations": len(lines) - 1, "differing": len(differing)}))
    for line in differing:
        print(f"not in {TABLE.name}: {line}")
    return int(bool(differing))


if __name__ == "__main__":
    main()
