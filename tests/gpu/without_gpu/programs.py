"""Programs of `scripts/cupy_without_gpu`, each in its own process: real CuPy on the host (`host_runtime.py`); results are JSON.

Usage:

    python programs.py FOLDER bindings            every op in every type and order of memory: errors of CuPy
    python programs.py FOLDER steps               training steps of the examples: launches, products, waits, copies
    python programs.py FOLDER threads             two ranks that share the GPU
    python programs.py FOLDER compile PART OF HOW the texts of all kernels that the others left in FOLDER, through NVRTC; HOW: all, or turns
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT / "tests" / "ops"), str(ROOT / "examples")]

import host_runtime  # noqa: E402
import numpy as np  # noqa: E402

#: what the oldest and the newest of the GPUs that matter are called
ARCHITECTURES = ("80", "90")
WARM, COUNTED = 2, 3


def bindings() -> dict[str, Any]:
    """Bind and call every sample of every op on arrays of the device, by CuPy alone and by the kernels written for GPUs.

    Ops that call cuSOLVER are omitted, because the stub does not contain it.
    """
    import cupy
    import laws
    import on_device
    import record_kernels

    from jobflow.core.types import type_of
    from jobflow.ops.op import types_tuple

    cupy.cuda.set_allocator(None)  # fresh memory is zeros: kernels that count leave no rubbish as sizes of arrays
    refused: dict[str, str] = {}
    tried = 0
    omitted = [name for name, cls in on_device.OPS.items() if record_kernels.REASONS.get(cls.__name__) == record_kernels.SOLVER]
    for name, cls in on_device.OPS.items():
        for sample, arrays in on_device.cases(cls) if name not in omitted else ():
            for (inner, outer), setting in product(laws.ORDERS[:5], ("numpy", "auto")):
                types = types_tuple(sample.op.infer(*map(type_of, arrays)))
                inputs = [on_device.put(cupy, a, inner) for a in arrays]
                outputs = [on_device.put(cupy, a, outer) for a in laws.empties(types, fill=0)]
                tried += 1
                try:
                    on_device.bound(sample.op, on_device.Bench(cupy), inputs, outputs, setting)
                except (TypeError, ValueError, AttributeError, IndexError, NotImplementedError, RuntimeError) as error:
                    kinds = sorted({str(a.dtype) for a in arrays})
                    refused.setdefault(f"{name} {' '.join(kinds)}", f"{type(error).__name__}: {error}"[:300])
    return {"tried": tried, "refused": refused, "omitted": omitted}


def _batches(*shapes: tuple[tuple[int, ...], int]) -> Iterator[list[Any]]:
    """Steps of arguments: random numbers, or whole numbers below a bound."""
    random = np.random.RandomState(0)
    while True:
        yield [random.randint(0, n, shape).astype(np.int32) if n else random.randn(*shape).astype(np.float32) for shape, n in shapes]


def _classifier(model: Callable[..., Any], batch: int, shape: tuple[int, ...], classes: int) -> tuple[Any, Any]:
    import jobflow as flow
    import jobflow.typing as tp

    @flow.global_function("train")
    def train_job(
        images: tp.Numpy.Placeholder((batch, *shape), dtype=flow.float), labels: tp.Numpy.Placeholder((batch,), dtype=flow.int32)
    ) -> tp.Numpy:
        loss = model(images, labels)["loss"]
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(loss)
        return loss

    return train_job, _batches(((batch, *shape), 0), ((batch,), classes))


def _gpt(blocks: int) -> tuple[Any, Any]:
    import gpt

    size = gpt.Size(blocks=blocks)
    return gpt.make_train_job(size), _batches(((size.batch, size.length), size.words), ((size.batch, size.length), size.words))


def _resnet(blocks: tuple[int, ...]) -> tuple[Any, Any]:
    from jobflow.models import resnet

    return _classifier(lambda x, y: resnet(x, y, classes=10, blocks=blocks, width=16), 8, (3, 32, 32), 10)


def _lenet() -> tuple[Any, Any]:
    from jobflow.models import lenet

    return _classifier(lambda x, y: lenet(x, y), 16, (1, 28, 28), 10)


def _mlp() -> tuple[Any, Any]:
    from jobflow.models import mlp

    return _classifier(lambda x, y: mlp(x, y), 100, (1, 28, 28), 10)


def _target_model(model: str, batch: int) -> tuple[Any, Any]:
    """Return a step of a model of the comparison with PyTorch, in bfloat16."""
    sys.path.append(str(ROOT / "benchmarks" / "gpu"))
    import jobflow_models
    import workloads

    size = workloads.FULL[model]
    return jobflow_models.job(size, batch, "bfloat16"), cycle(workloads.batches(size, batch))


#: shown in the table -> a job, and its arguments
STEPS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "MLP, one hidden layer": _mlp,
    "LeNet": _lenet,
    "residual net 1-1-1": lambda: _resnet((1, 1, 1)),
    "residual net 3-4-6-3": lambda: _resnet((3, 4, 6, 3)),
    "GPT, 4 blocks": lambda: _gpt(4),
    "GPT, 12 blocks": lambda: _gpt(12),
    "GPT-2 124M, bfloat16, 1 x 1,024 tokens": lambda: _target_model("gpt2", 1),
    "ResNet-50, bfloat16, 2 images": lambda: _target_model("resnet50", 2),
}


def _difference(counts: host_runtime.Counts, before: dict[str, int], runs: int = 1) -> dict[str, float]:
    return {name: (value - before[name]) / runs for name, value in counts.now().items()}


@contextmanager
def _counted_binding(counts: host_runtime.Counts) -> Iterator[dict[str, float]]:
    """Count the allocations of the programs that are bound in this context."""
    from jobflow.program.program import Program

    allocations: dict[str, float] = {"bound_allocations": 0}
    bind = Program.bind

    def counted(self: Any, rank: Any) -> Any:
        before = counts.now()
        bound = bind(self, rank)
        allocations["bound_allocations"] += _difference(counts, before)["allocations"]
        return bound

    Program.bind = counted  # type: ignore[method-assign]
    try:
        yield allocations
    finally:
        Program.bind = bind  # type: ignore[method-assign]


def _unfetched_waits(counts: host_runtime.Counts, step: Callable[[], Any]) -> float:
    """Count the waits of a step whose results are copied to the host, and which nothing reads."""
    from jobflow.program.commands import executors_of

    executor = max(executors_of(_world().ranks[0]).values(), key=lambda each: len(each.body))
    run, arguments_of_runs = executor.run, []
    executor.run = lambda arguments: (arguments_of_runs.append(arguments), run(arguments))[1]
    step()
    executor.run = run
    before = counts.now()
    executor.start(arguments_of_runs[0])
    return _difference(counts, before)["synchronisations"]


def _figures(counts: host_runtime.Counts, step: Callable[[], Any]) -> dict[str, float]:
    with _counted_binding(counts) as bound:
        for _ in range(WARM):
            step()
    before = counts.now()
    for _ in range(COUNTED):
        step()
    return bound | _difference(counts, before, COUNTED) | {"unfetched_waits": _unfetched_waits(counts, step)}


def steps(counts: host_runtime.Counts) -> dict[str, Any]:
    import jobflow as flow

    counts_by_name: dict[str, Any] = {}
    for name, make in STEPS.items():
        flow.clear_default_session()
        flow.config.gpu_device_num(1)
        job, batches = make()
        counts_by_name[name] = _figures(counts, lambda job=job, batches=batches: job(*next(batches)))
        tags = [rank.device.tag for rank in _world().ranks]
        assert tags == ["gpu"], f"{name} ran on {tags}"
    flow.clear_default_session()
    return counts_by_name


def _world() -> Any:
    from jobflow.engine.session import current_session

    return current_session().world


def threads() -> dict[str, Any]:
    """The first collective of two threads, which import what they need at once."""
    import jobflow as flow

    flow.config.gpu_device_num(2)
    job, batches = _mlp()
    for _ in range(3):
        job(*next(batches))
    facts = {"tags": [rank.device.tag for rank in _world().ranks], "comms": [type(rank.comm).__name__ for rank in _world().ranks]}
    flow.clear_default_session()
    return facts


def compile_texts(folder: Path, part: int, of: int, how: str) -> dict[str, Any]:
    """Every kernel as binary code: of each architecture, or of one of them by turns."""
    from importlib.util import find_spec

    import cupy
    from cupy.cuda import compiler

    spec = find_spec("nvidia")
    assert spec is not None and spec.submodule_search_locations is not None
    headers = [f"-I{path}/cu13/include" for path in spec.submodule_search_locations]
    turns = list(enumerate(sorted(folder.glob("*.json"))))[part::of]
    failed: dict[str, str] = {}
    for turn, file in turns:
        kernel = json.loads(file.read_text())
        for architecture in ARCHITECTURES if how == "all" else [ARCHITECTURES[turn % len(ARCHITECTURES)]]:
            options = (*(o for o in kernel["options"] if not o.startswith("-I/usr")), *headers)
            try:
                binary = host_runtime.compile_for(architecture, kernel["text"], options, f"{file.stem}.cu")
                assert binary, "nothing was made"
            except compiler.CompileException as error:
                failed[f"{file.stem} sm_{architecture}"] = f"{error}\n{kernel['text']}"[:3000]
    return {"texts": len(turns), "architectures": ARCHITECTURES, "failed": failed, "cupy": cupy.__version__}


def main(where: str, what: str, *rest: str) -> None:
    folder = Path(where)
    built = folder / "_".join([what, *rest])
    built.mkdir(exist_ok=True)
    counts, texts = host_runtime.install(built)
    results = {
        "bindings": bindings,
        "steps": lambda: steps(counts),
        "threads": threads,
        "compile": lambda: compile_texts(folder, *map(int, rest[:2]), rest[2]),
    }[what]()
    host_runtime.save(texts, folder)
    print(json.dumps(results), flush=True)
    os._exit(0)  # CuPy frees memory when the interpreter has already taken our functions down


if __name__ == "__main__":
    main(*sys.argv[1:])
