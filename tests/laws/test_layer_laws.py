"""Laws of layers and losses - functions of `flow.nn.functional` and modules - for any inputs.

Eager calls, graphs and ranks return the same bits, types and shapes, or raise the same errors with the user's line.  Inputs without rows give
results without rows.  A row alone gives its result among others.  The memory order of tensors has no effect.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layer_cases import CHANGES, REFUSED
from nn_cases import ACTIVATIONS, ATTENTION, CASES, LAYERS, NORMS, POOLS, Case
from ranks import on_ranks
from running import Array, Ended, at_once, in_graph, proper
from sequence_cases import NETWORKS

import jobflow as flow

CASES = [*CASES, *NETWORKS]
HERE = Path(__file__).name
#: files whose lines call the tested functions
CALLERS = (HERE, "nn_cases.py", "sequence_cases.py")
#: layers that graphs reject, with the reason
NOT_IN_GRAPHS = {"batch_norm2d_mean": "the mean of all batches counts them"}


def built(case: Case, **options: Any) -> Any:
    """Create the case's layer with its parameters, in float64."""
    flow.manual_seed(0)
    called = case.make(flow.nn, flow.nn.functional)
    module = getattr(called, "module", called)
    if isinstance(module, flow.nn.Module):
        module.to(flow.float64).train(case.train)
        module.load_state_dict({name: flow.tensor(case.parameter(name, tuple(p.shape))) for name, p in module.named_parameters()}, strict=False)
        if options:
            module.to_global(**options)
    return called


def run(case: Case, way: Any, inputs: list[Any], **options: Any) -> Ended:
    layer = built(case, **options)
    return way(lambda *tensors: layer(*tensors), inputs)


def is_located(end: Ended) -> bool:
    return end.error is None or any(proper(end.error, caller) for caller in CALLERS)


def changed(case: Case) -> dict[str, list[Array]]:
    """Return the changed inputs of the case by label, without duplicates."""
    by_label: dict[str, list[Array]] = {}
    keys = set()
    arrays = case.arrays()
    for label, change in CHANGES.items():
        inputs = change(arrays)
        key = tuple((a.dtype, a.shape, a.tobytes()) for a in inputs)
        if key not in keys:
            by_label[label] = inputs
        keys.add(key)
    return by_label


def layer(case: Case) -> str:
    """Return the name of the class of modules, or of the function, of the case."""
    called = case.make(flow.nn, flow.nn.functional)
    module = getattr(called, "module", called)
    return type(module).__name__ if isinstance(module, flow.nn.Module) else case.name


#: the first case of each layer; the others need --full
DAILY = {layer(case): case.name for case in reversed(CASES)}
#: the cases for slow laws
FEW = list(DAILY.values())[::4]
EVERY = [pytest.param(case, id=case.name, marks=[] if case.name in DAILY.values() else pytest.mark.full) for case in CASES]


@pytest.mark.parametrize("case", EVERY)
def test_layers_in_graphs_equal_eager_layers(case: Case, pytestconfig: pytest.Config) -> None:
    """Unchanged, and after every second change, alternating between layers; with --full after all changes."""
    wrong, turn = [], 0 if pytestconfig.getoption("--full") else 1 + CASES.index(case) % 2
    changes = [(label, arrays) for i, (label, arrays) in enumerate(changed(case).items()) if not turn or not i or i % 2 == turn - 1]
    for label, arrays in changes:
        first = run(case, at_once, [flow.tensor(a) for a in arrays])
        graph = run(case, in_graph, [flow.tensor(a) for a in arrays])
        wrong += [f"{label} {way}: {end}" for way, end in (("at once", first), ("graph", graph)) if not is_located(end)]
        single = any(value.dtype == np.float32 for value in first.values)
        if case.name not in NOT_IN_GRAPHS and not first.same(graph, 1e-5 if single else 1e-10):
            wrong.append(f"{label}: {first}\n      graph: {graph}")
    assert not wrong, "\n".join(wrong)


def reordered(array: Array, how: str) -> Any:
    """Return a tensor of the values with another memory order."""
    if how == "transposed":
        return flow.tensor(np.ascontiguousarray(array.T)).permute(*reversed(range(array.ndim)))
    if how == "stepped":
        return flow.tensor(np.repeat(array, 2, axis=-1))[..., ::2]
    return flow.tensor(np.broadcast_to(array, (2, *array.shape)).copy())[1]


@pytest.mark.parametrize("case", EVERY)
def test_memory_order_of_inputs_has_no_effect(case: Case) -> None:
    wrong = []
    arrays = case.arrays()
    first = run(case, at_once, [flow.tensor(a) for a in arrays])
    assert first.error is None
    for how in ("transposed", "stepped", "a part"):
        if all(a.ndim for a in arrays):
            end = run(case, at_once, [reordered(a, how) for a in arrays])
            wrong += [] if first.same(end, 1e-12) else [f"{how}: {end}\n      but first: {first}"]
    assert not wrong, "\n".join(wrong)


#: cases without independent rows along the first axis, or with a value per row in another input
MEET = {
    *(
        "Softmax24",
        "Flatten37",
        "layer_norm_whole",
        "normalize_p3",
        "pad_axis0",
        "instance_norm2d_tracked",
        "batch_norm2d_untracked",
        "linear1",
        "conv2d_valid",
    ),
    *(
        "attention_first",
        "attention_unbatched",
        "attention_hidden_heads",
        "attention_added_heads",
        "attention_blind_heads",
        "encoder_first",
        "encoder_padded_first",
    ),
}
OF_ROWS = [
    pytest.param(case, id=case.name, marks=[] if case.name in DAILY.values() else pytest.mark.full)
    for case in (*ACTIVATIONS, *LAYERS, *NORMS, *POOLS, *ATTENTION)
    if case.name not in MEET and (not case.train or "batch_norm" not in case.name)
]


@pytest.mark.parametrize("case", OF_ROWS)
def test_rows_are_independent(case: Case) -> None:
    """No rows give no rows, and a row alone gives its result among others."""
    arrays = case.arrays()
    whole = run(case, at_once, [flow.tensor(a) for a in arrays])
    assert whole.error is None and all(len(a) == len(arrays[0]) for a in whole.values)
    none = run(case, at_once, [flow.tensor(a) for a in CHANGES["no rows"](arrays)])
    one = run(case, at_once, [flow.tensor(a) for a in CHANGES["one row"](arrays)])
    assert [(a.shape, a.dtype) for a in none.values] == [((0, *a.shape[1:]), a.dtype) for a in whole.values], none
    assert one.same(Ended(tuple(a[:1] for a in whole.values)), 1e-12), one


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=[] if case.name in FEW else pytest.mark.full) for case in CASES])
def test_gradients_have_the_shapes_of_their_tensors(case: Case) -> None:
    wrong = []
    for label, arrays in changed(case).items():
        tensors = [flow.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
        layer = built(case)
        end = at_once(lambda *x, layer=layer: layer(*x), tensors)
        if end.error is not None or all(a.dtype.kind != "f" for a in arrays):
            continue

        def backward(*x: Any, layer: Any = layer) -> Any:
            results = layer(*x)
            total = sum(y.sum() for y in (results if isinstance(results, tuple) else (results,)) if y is not None and y.requires_grad)
            if isinstance(total, flow.Tensor):
                total.backward()
            return [each.grad for each in x if each.grad is not None]

        end = at_once(backward, tensors)
        shapes = [t.grad.shape for t in tensors if t.grad is not None]
        if not is_located(end) or shapes != [t.shape for t in tensors if t.grad is not None]:
            wrong.append(f"{label}: {end}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("name", "shapes", "options"), REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_invalid_arguments_raise(name: str, shapes: Any, options: Any) -> None:
    random = np.random.default_rng(0)
    arrays = [random.uniform(0.1, 0.9, shape) for shape in shapes]
    wrong = []
    for arguments in options:
        for way in (at_once, in_graph):
            end = way(lambda *x, o=arguments: getattr(flow.nn.functional, name)(*x, **o), [flow.tensor(a) for a in arrays])
            if end.error is None or not proper(end.error, HERE):
                wrong.append(f"{arguments} {way.__name__}: {end}")
    assert not wrong, "\n".join(wrong)


#: changes of the inputs of layers on ranks
SPREAD = ("as it is", "float32", "no rows", "one row", "not finite", "0-d", "labels beyond")
#: modules, except for those that graphs reject
MODULES = [case for case in CASES if layer(case) != case.name and case.name not in NOT_IN_GRAPHS]


ON_RANKS = [
    pytest.param(case, n, id=f"{case.name}-{n}", marks=[] if n == 1 and case.name in FEW else pytest.mark.full)
    for n in (1, 2)
    for case in MODULES
    if case.name in DAILY.values()
]


@pytest.mark.parametrize(("case", "n"), ON_RANKS)
def test_modules_on_ranks_equal_local_modules(case: Case, n: int) -> None:
    def program(rank: int) -> list[str]:
        where = flow.placement("cpu", list(range(n)))
        wrong = []
        for label, arrays in changed(case).items():
            if label not in SPREAD:
                continue
            local = run(case, at_once, [flow.tensor(a) for a in arrays])
            for how in (flow.sbp.broadcast, flow.sbp.split(0)):
                for way in (at_once, in_graph):
                    spread = [flow.tensor(a, placement=where, sbp=how if a.ndim else flow.sbp.broadcast) for a in arrays]
                    end = run(case, way, spread, placement=where, sbp=flow.sbp.broadcast)
                    if not is_located(end) or not local.same(end, 1e-5 if label == "float32" else 1e-10):
                        wrong.append(f"{label} {how} {way.__name__}: {end}\n      but local: {local}")
        return wrong

    wrong = on_ranks(n, program)[0]
    assert not wrong, "\n".join(wrong)
