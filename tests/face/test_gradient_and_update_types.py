"""Gradients and updates by the names of their types, against differences, programs and optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradient_cases import DIFFS, IN_PROGRAMS, Case
from op_type_cases import CASES, IDS, IMAGE, ONES, SLICE, V, W, X, Y, Z

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.types import dtype_of
from jobflow.legacy.extras.op_types_of_gradients import OP_TYPES_OF_GRADIENTS, WALKED
from jobflow.legacy.extras.op_types_of_updates import OP_TYPES_OF_UPDATES
from jobflow.legacy.extras.user_ops import op_type


def of_float(*shape: int) -> Any:
    return tp.Numpy.Placeholder(shape)


def op(word: str) -> Any:
    return flow.user_op_builder("n").Op(word)


#: of gradients that are not made by walking the operation backwards: inputs, attributes, first outputs
SPREAD, CENTRED = IMAGE.std((0, 2, 3)), IMAGE - IMAGE.mean((0, 2, 3))[:, None, None]
DIRECT: dict[str, tuple[tuple[Any, ...], dict[str, Any], Any]] = {
    "dropout_grad": ((X, np.int8([0, 1] * 3)), {"scale": 2.0}, X * ([0, 2] * 3)),
    "broadcast_div_grad": ((V, X / V, Y), {}, -(Y * X / V**2).sum(0)),
    "l2_normalize_grad": ((Y, X / 2, Z((4, 1), np.float32) + 4), {"axis": 1}, (Y - X * (X * Y).sum(1, keepdims=True) / 4) / 2),
    "softmax_cross_entropy_grad": ((X[:, 0], Y, X), {}, X[:, :1] * (X - Y)),
    "sparse_softmax_cross_entropy_grad": ((X, IDS, Y[:, 0]), {"depth": 6}, Y[:, :1] * (X - np.eye(6)[IDS])),
    "sparse_softmax_cross_entropy_ms_grad": ((X, IDS, Y[:, 0]), {"depth": 6}, Y[:, :1] * (X - np.eye(6)[IDS])),
    "normalization_grad": (
        (IMAGE, ONES[0, 0] * IMAGE**2, IMAGE.mean((0, 2, 3)), 1 / SPREAD, W[:4]),
        {"axis": 1},
        ((IMAGE**2 * CENTRED).sum((0, 2, 3)) / SPREAD, (IMAGE**2).sum((0, 2, 3))),
    ),
}


def test_gradients() -> None:
    """Compare each gradient along a direction with the difference of its operation; normalizations have separate references."""
    flow.clear_default_session()
    rng, step, arrays = np.random.default_rng(7), 1e-6, []
    checks: dict[str, Any] = {}

    def number(x: Any) -> int:
        arrays.append(x)
        return len(arrays) - 1

    in_programs = {word for case in IN_PROGRAMS.values() for word in case.gradients}
    for key, message in WALKED.items():
        word, (base, _, rest) = key.split(" -> ")[0], message.partition(": ")
        if word in in_programs:
            continue
        others: Any = {"round": ((X,), {}), "clip_by_scalar_min": ((X,), {"floating_min": 0.5}), "slice": ((X,), {**SLICE, "start": [1, 0]})}
        samples, attributes = others.get(base, CASES[base][:2])
        exact = [np.float64(x) if x.dtype == np.float32 else x for x in samples]
        shown_inputs = [each.strip("()").removeprefix("<-").partition("=")[0] for each in rest.partition(" | ")[0].split()]
        shown = rest.partition(" | ")[2].split()
        names = list(op_type(base).inputs or ())
        at = [names.index(each) for each in shown]
        transfers = {i: rng.normal(size=exact[i].shape) * (exact[i] != 0) for i in at}
        moved = [[x + sign * step * transfers[i] if i in transfers else x for i, x in enumerate(exact)] for sign in (1, -1)]
        checks[word] = base, attributes, shown_inputs, names, [list(map(number, each)) for each in (exact, *moved)], [transfers[i] for i in at]

    def built_of(word: str, named: dict[str, Any], attributes: dict[str, Any], name: str) -> list[Any]:
        builder = flow.user_op_builder(name).Op(word)
        for key, x in named.items():
            builder.Input(key, [x])
        for key in op_type(word).outputs or ():
            builder.Output(key)
        for key, value in attributes.items():
            builder.Attr(key, value)
        return builder.Build().InferAndTryRun().RemoteBlobList()

    def job(samples: Any) -> tp.Bundle[tp.Numpy]:  # type: ignore[type-var]
        built_values: dict[str, Any] = {}
        for word, (base, attributes, shown_inputs, names, places, _) in checks.items():
            exact, *moved = [[samples[i] for i in each] for each in places]
            y, *others = [built_of(base, dict(zip(names, x, strict=False)), attributes, f"{word}_{i}")[-1] for i, x in enumerate((exact, *moved))]
            own = dict(zip(names, exact, strict=False)) | {"x": exact[0], "like": exact[0]} | ({} if "y" in names else {"y": y})
            built_values[word] = others, built_of(word, {key: own.get(key, flow.ones_like(y)) for key in shown_inputs}, attributes, f"{word}_slopes")
        for word, (inputs, attributes, _) in DIRECT.items():
            tensors = [samples[places_of[id(x)]] for x in inputs]
            built_values[word] = built_of(word, dict(zip(op_type(word).inputs or (), tensors, strict=True)), attributes, f"{word}_op")
        return built_values

    places_of: dict[int, int] = {}
    for inputs, _, _ in DIRECT.values():
        for x in inputs:
            places_of[id(x)] = number(np.asarray(x))
    argument_type: Any = tuple[tuple(tp.Numpy.Placeholder(x.shape, dtype_of(x.dtype)) for x in arrays)]  # type: ignore[misc]
    job.__annotations__["samples"] = argument_type
    results = flow.global_function()(job)(tuple(arrays))
    flow.clear_default_session()
    for word, (_, _, _, _, _, transfers) in checks.items():
        (up, down), slopes = results[word]
        expected = (up.astype(np.float64) - down).sum() / (2 * step)
        np.testing.assert_allclose(sum((a * b).sum() for a, b in zip(slopes, transfers, strict=True)), expected, rtol=1e-4, atol=1e-5, err_msg=word)
    for word, (_, _, shown) in DIRECT.items():
        for one, other in zip(results[word], shown if isinstance(shown, tuple) else (shown,), strict=False):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4, err_msg=word)
    listed = {key.partition(" ")[0] for key in OP_TYPES_OF_GRADIENTS}
    assert listed <= set(checks) | set(DIRECT) | in_programs


def outputs_of(word: str, named: dict[str, Any], attributes: dict[str, Any], name: str) -> dict[str, Any]:
    builder = flow.user_op_builder(name).Op(word)
    for key, x in named.items():
        builder.Input(key, [x])
    for key in op_type(word).outputs or ():
        builder.Output(key)
    for key, value in attributes.items():
        builder.Attr(key, value)
    return {key: y for key, (y,) in builder.Build().InferAndTryRun().RemoteBlobDict().items()}


def float_inputs(case: Case) -> dict[str, Any]:
    return {key: x for key, x in case.inputs.items() if x.dtype == np.float32}


@pytest.fixture(scope="module", params=[1, 2])
def gradients(request: Any) -> dict[str, Any]:
    """Return by case the gradients of its inputs by the program, and the outputs of the gradient types."""
    flow.clear_default_session()
    flow.config.cpu_device_num(request.param)
    arrays = {f"{name}.{key}": x for name, case in IN_PROGRAMS.items() for key, x in case.inputs.items() if x.dtype != np.float32}
    slopes: dict[str, Any] = {}

    def one(name: str, samples: dict[str, Any], diffs: Any) -> tuple[Any, dict[str, Any]]:
        case, at = IN_PROGRAMS[name], name.replace(" ", "_").replace(",", "")
        inputs = {key: samples[f"{name}.{key}"] for key in case.inputs if f"{name}.{key}" in samples}
        for key, x in float_inputs(case).items():
            read = flow.get_variable(f"{at}-{key}", x.shape, initializer=flow.zeros_initializer(), trainable=key not in case.moved)
            if key not in case.moved:
                flow.watch_diff(read, lambda dx, key=key: slopes.update({f"{name}.{key}": dx.numpy()}))
            inputs[key] = read
        outputs = outputs_of(case.word, inputs, case.attributes, f"{at}_op")
        known, total = {**inputs, **outputs}, None
        for key in case.losses or (next(iter(outputs)),):
            y = outputs[key]
            shape = y.shape
            known[f"d{key}"] = flow.reshape(flow.slice(diffs, [0], [int(np.prod(shape))]), shape)
            loss = flow.math.reduce_sum(y * known[f"d{key}"])
            total = loss if total is None else total + loss
        values: dict[str, Any] = {}
        for word, (sources, attributes, belongs) in case.gradients.items():
            named = {key: known[what] for key, what in (each.split("=") for each in sources.split())}
            results = outputs_of(word, named, attributes, f"{at}_{word}")
            values.update({f"{word} {key}": results[key] for key in belongs})
        return total, values

    def job(samples: Any, diffs: Any) -> tp.Bundle[tp.Numpy]:  # type: ignore[type-var]
        tensors, total, values = dict(zip(arrays, samples, strict=True)), None, {}
        for name in IN_PROGRAMS:
            loss, values[name] = one(name, tensors, diffs)
            total = loss if total is None else total + loss
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(total)
        return values

    job.__annotations__["samples"] = tuple[tuple(tp.Numpy.Placeholder(x.shape, dtype_of(x.dtype)) for x in arrays.values())]  # type: ignore[misc]
    job.__annotations__["diffs"] = tp.Numpy.Placeholder(DIFFS.shape)
    function = flow.global_function("train")(job)
    names = {name: name.replace(" ", "_").replace(",", "") for name in IN_PROGRAMS}
    flow.load_variables({f"{names[name]}-{key}": x for name, case in IN_PROGRAMS.items() for key, x in float_inputs(case).items()})
    values: dict[str, Any] = function(tuple(arrays.values()), DIFFS)
    flow.clear_default_session()
    return {"slopes": slopes, "outputs": values}


@pytest.mark.parametrize("name", IN_PROGRAMS)
def test_gradient_types_equal_gradients_of_the_program(name: str, gradients: dict[str, Any]) -> None:
    for word, (_, _, belongs) in IN_PROGRAMS[name].gradients.items():
        for output, key in belongs.items():
            result, expected = gradients["outputs"][name][f"{word} {output}"], gradients["slopes"][f"{name}.{key}"]
            assert np.isfinite(expected).all() and np.abs(expected).max() > 0
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5, err_msg=f"{word} {output}")


def test_a_gradient_of_another_shape_raises() -> None:
    flow.clear_default_session()

    def job(x: of_float(4, 6)) -> None:  # type: ignore[valid-type]
        builder = op("slice_grad").Input("dy", [x]).Input("like", [x]).Output("dx")
        builder.Attr("start", [0, 1]).Attr("stop", [2, 2]).Attr("step", [1, 1]).Build().InferAndTryRun()

    message = r"slice_grad at test_gradient_and_update_types.py:\d+: the gradient float32.4,6. must have the type of the output float32.2,1."
    with pytest.raises(flow.ShapeError, match=message):
        flow.global_function()(job)(X)


def test_updates() -> None:
    """Compare two runs of every update with its optimizer; updates of rows change only these rows."""
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    rate, first = flow.optimizer.PiecewiseConstantScheduler([], [0.1]), flow.ones_initializer()
    optimizers: dict[str, Any] = {
        "sgd": flow.optimizer.SGD(rate, momentum=0),
        "momentum": flow.optimizer.SGD(rate, momentum=0.8),
        "adam": flow.optimizer.Adam(rate),
        "lamb": flow.optimizer.LAMB(rate),
        "rmsprop": flow.optimizer.RMSProp(rate, centered=True),
        "lars": flow.optimizer.LARS(rate),
    }
    own: dict[str, dict[str, Any]] = {"momentum": {"beta": 0.8}, "rmsprop": {"centered": True}}
    words: set[str] = set()

    def variable(name: str, shape: Any = (4, 6), value: float = 0.0, axis: int | None = None) -> Any:
        split = flow.distribute.broadcast() if axis is None else flow.distribute.split(axis)
        return flow.get_variable(name, shape, initializer=flow.constant_initializer(value), trainable=False, distribute=split)

    def update(word: str, prefix: str, tensors: dict[str, Any], slots: Any, **attributes: Any) -> None:
        words.add(f"{word}_update")
        builder = flow.user_op_builder(f"{prefix}{word}").Op(f"{word}_update").Input("model", [variable(f"{prefix}{word}", value=1.0, axis=0)])
        for slot in slots:
            power = {"beta1_t": 0.9, "beta2_t": 0.999}.get(slot)
            slot_variable = variable(f"{prefix}{word}-{slot}", (1,) if power else (4, 6), power or 0.0, None if power else 0)
            builder.Input(slot, [slot_variable])
        for key, x in tensors.items():
            builder.Input(key, [x])
        for key, value in attributes.items():
            builder.Attr(key, value)
        assert builder.Build().InferAndTryRun().RemoteBlobList() == []

    @flow.global_function()
    def by_type(g: of_float(4, 6), rows: of_float(2, 6)) -> None:  # type: ignore[valid-type]
        for word, optimizer in optimizers.items():
            slots = [slot.name for slot in optimizer.step_op("x").slots]
            skip, lr = flow.constant(1, flow.int64, (1,)), flow.constant(0.1, flow.float, (1,))
            whole = {"model_diff": g, "learning_rate": lr}
            update(word, "by_", whole, slots, **own.get(word, {}))
            update(word, "not_", {**whole, "skip_if": skip}, slots, **own.get(word, {}))
            if word in ("sgd", "momentum", "adam"):
                sparse = {"model_diff_values": rows, "model_diff_indices": flow.range(1, 3, 1, flow.int32, name=f"ids_{word}")}
                update(f"indexed_slices_{word}", "by_", sparse, slots, learning_rate_val=0.1, **own.get(word, {}))
        corrected = op("adam_bias_correction_learning_rate").Input("learning_rate", [flow.constant(0.1, flow.float, (1,))])
        corrected = corrected.Input("train_step", [flow.constant(2, flow.int64, (1,))]).Output("out").Build().InferAndTryRun().SoleOutputBlob()
        flow.user_op_builder("keep").Op("assign").Input("ref", [variable("rate", (1,))]).Input("value", [corrected]).Build().InferAndTryRun()

    def of_optimizer(word: str) -> Any:
        def job(g: of_float(4, 6)) -> None:  # type: ignore[valid-type]
            w = flow.get_variable(f"of_{word}", (4, 6), initializer=first)
            optimizers[word].minimize(flow.math.reduce_sum(w * g))

        job.__name__ = f"of_{word}"
        return flow.global_function("train")(job)

    jobs = [of_optimizer(word) for word in optimizers]
    for _ in range(2):
        by_type(Y, Y[1:3])
        for job in jobs:
            job(Y)
    variables = {name: x.numpy() for name, x in flow.get_all_variables().items()}
    flow.clear_default_session()
    for word in optimizers:
        np.testing.assert_allclose(variables[f"by_{word}"], variables[f"of_{word}"], rtol=1e-6, err_msg=word)
        assert (variables[f"not_{word}"] == 1).all()
        if f"indexed_slices_{word}_update" in words:
            rows = variables[f"by_indexed_slices_{word}"]
            assert (rows[[0, 3]] == 1).all()
            np.testing.assert_allclose(rows[1:3], variables[f"by_{word}"][1:3], rtol=1e-6)
    np.testing.assert_allclose(variables["rate"], 0.1 * (1 - 0.999**3) ** 0.5 / (1 - 0.9**3), rtol=1e-5)
    words |= {"adam_bias_correction_learning_rate", "assign"}
    schedule = {"dynamic_loss_scale_schedule"}  # test_published_habits.py has its values
    assert words | schedule == {key.partition(" ")[0] for key in OP_TYPES_OF_UPDATES}
