"""Values of the wrong kind raise an error with the program's line, in every function of the job API that declares kinds."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.tensors.argument_kinds import kind_of
from jobflow.tensors.parameters import Roles

#: one value of each kind, for parameters that must be given
SAMPLES = (1, 0.5, "text", [1], flow.float32, [[1]], ["text"])
SPACES = ("math", "layers", "nn", "image", "random", "data", "quantization", "")


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield all functions of the job API with their names behind `flow.`"""
    for space in SPACES:
        holder = getattr(flow, space) if space else flow
        for word in holder.__all__ if hasattr(holder, "__all__") else dir(holder):
            function = getattr(holder, word, None)
            module = inspect.unwrap(function).__module__ if inspect.isroutine(function) else ""
            if word.startswith("_") or "legacy" not in module or module.endswith("job_dispatch"):
                continue
            if next(iter(inspect.signature(function).parameters), "") != "what":  # helpers
                yield f"{space}.{word}".strip("."), function


def calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any], str]]:
    """Return functions, their required arguments (... for a tensor), and the name of a parameter of known kind."""
    cases = {}
    for word, function in functions():
        roles, arguments = Roles(word, function), {}
        for each in roles.signature.parameters.values():
            if each.default is each.empty:
                kind = roles.kinds.get(each.name)
                samples = [value for value in SAMPLES if kind is not None and kind.fits(value)]
                role = roles.by_name[each.name]
                arguments[each.name] = samples[0] if samples else [...] if role == "tensors" else ...
        cases.update({f"{word}({name})": (function, arguments, name) for name in roles.kinds if name != "name"})
    return cases


#: what has words of its own for it, or takes a text that means nothing
OWN_WORDS = (
    *("global_function", "watch", "find_or_create", "_placement", "fixed_", "user_op", "ones(", "zeros(", "one_hot(", "decode_ofrecord"),
    *("convert_oneflow", "eager_nccl", "enable_eager", "inter_job_reuse"),
)


def test_every_function_rejects_values_of_the_wrong_kind() -> None:
    flow.clear_default_session()
    wrong, silent = object(), {}
    cases = {word: case for word, case in calls().items() if not any(own in word for own in OWN_WORDS)}
    assert len(cases) > 600

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
        for word, (function, arguments, name) in cases.items():
            tensors = {key: x if value is ... else [x] if value == [...] else value for key, value in arguments.items()}
            try:
                function(**{**tensors, name: wrong})
                silent[word] = "accepted"
            except flow.ArgumentError as error:
                message = str(error)
                if f"test_argument_kinds.py:{CALL}: {name} is <object" not in message:
                    silent[word] = message
            except Exception as error:  # noqa: BLE001 - any other error is what this test is about
                silent[word] = repr(error)
        return x

    lines, first = inspect.getsourcelines(job.__wrapped__)
    CALL = first + next(i for i, line in enumerate(lines) if "function(**{" in line)
    job(np.zeros((2, 3), np.float32))
    assert silent == {}


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        ("int", (3, np.int64(3), np.array(3), -1), (1.5, "3", None, True, [1], np.array([1, 2]))),
        ("float", (3, 0.5, np.float32(2), np.array(0.5)), ("0.5", None, [0.5], np.array([0.5, 1]))),
        ("bool", (True, 0, np.True_, None), ("no", 0.5, [True])),
        ("Sequence[int] | None", ([1], (1, 2), None, range(3), np.array([1, 2]), []), ("12", [1.5], 1, {1: 2})),
        ("Sizes", (1, [1, 2]), ([1.0], "SAME")),
        ("Padding", ("SAME", [1, 2], [(0, 0), (1, 2)]), ([("a", 1)], 3)),
        ("DType", (flow.float32, np.int32, "int8"), (None, 3, "flot")),
    ],
)
def test_kinds(annotation: str, right: tuple[Any, ...], wrong: tuple[Any, ...]) -> None:
    kind = kind_of(annotation)
    assert kind is not None and [value for value in right if not kind.fits(value)] == [] and [value for value in wrong if kind.fits(value)] == []


def test_kinds_without_annotation_are_not_checked() -> None:
    assert kind_of("Initializer | None") is None and kind_of("Sequence[Tensor]") is None
    assert kind_of("int | Sequence[int] | None").words == "a whole number, a sequence of whole numbers or None"  # type: ignore[union-attr]


def variable(**options: Any) -> Any:
    return flow.get_variable("w", (3,), initializer=flow.ones_initializer(), **options)


IMAGES, PIXELS = np.zeros((2, 4, 5, 5), np.float32), np.zeros((2, 5, 5, 3), np.uint8)
#: values of the right kind that cannot be, and how the error ends
REFUSED: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "no stride": (lambda x: flow.nn.max_pool2d(x, 2, 0, "VALID"), IMAGES, "max_pool2d at {here}: strides 0 must be one positive int"),
    "no group": (lambda x: flow.nn.conv2d(x, x, 1, "SAME", groups=0), IMAGES, "conv2d at {here}: groups 0 must be at least 1"),
    "a size below 0": (lambda x: flow.constant(1.0, flow.float, [-1]), IMAGES, "constant at {here}: shape [-1] must have no negative size"),
    "a broken diagonal": (lambda x: flow.diag(x, 1.5), IMAGES[0, 0], "diag at {here}: 1.5 of type float is not an integer"),
    "no list": (lambda x: flow.math.add_n(None), IMAGES, "add_n at {here}: inputs is None of type NoneType, not a sequence of tensors"),
    "no initializer": (
        lambda x: flow.data.decode_random((2,), flow.float, initializer=3),
        IMAGES,
        "decode_random at {here}: initializer must be an initializer",
    ),
    "a place beyond the image": (
        lambda x: flow.image.CropMirrorNormalize(x, crop_h=2, crop_w=2, crop_pos_y=1.5),
        PIXELS,
        "image.CropMirrorNormalize at {here}: crop_pos_y must be in [0, 1], not 1.5",
    ),
    "no images": (lambda x: flow.image.CropMirrorNormalize(3), PIXELS, "must be [batch, height, width, channels], not 3 of type int"),
    "no value": (lambda x: flow.assign(variable(), 3), IMAGES, "assign at {here}: value must be a tensor of the job, not 3 of type int"),
    "a type of one number": (lambda x: variable(dtype=np.int64(2)), IMAGES, "get_variable at {here}: dtype is np.int64(2) of type int64, not"),
    "no operation": (
        lambda x: flow.user_op_builder("op").Op(3),
        IMAGES,
        "user_op_builder at {here}: the type of an operation must be a string, not 3",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_kinds_raise_with_the_line_inside_a_job(what: str) -> None:
    body, array, message = REFUSED[what]
    flow.clear_default_session()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(array.shape, dtype=flow.uint8 if array is PIXELS else flow.float)) -> tp.Numpy:  # type: ignore[valid-type]
        return body(x)  # type: ignore[no-any-return]

    before, _, after = message.partition("{here}")
    with pytest.raises(flow.JobflowError, match=rf"{re.escape(before)}{r'test_argument_kinds.py:[0-9]+' if after else ''}{re.escape(after)}"):
        job(array)


#: outside of jobs: what is called, and how the error ends
ELSEWHERE: dict[str, tuple[Callable[[], Any], str]] = {
    "a path that is none": (lambda: flow.train.CheckPoint().load(None), "a path at {here} is None; pass a string"),
    "a folder that is none": (lambda: flow.checkpoint.save(3), "a path at {here} is 3; pass a string"),
    "a checkpoint that is none": (lambda: flow.checkpoint.get(None), "a path at {here} is None; pass a string"),
    "values that are none": (lambda: flow.load_variables([1]), "load_variables at {here}: value_dict is a list; pass a dict of values by name"),
    "a variable that is none": (
        lambda: flow.experimental.get_interface_blob_value("W"),
        "get_interface_blob_value at {here}: the session has no variable 'W'",
    ),
    "a configuration that is none": (lambda: flow.global_function("train", {"a": 1}), "global_function at {here}: function_config is {'a': 1}; pass"),
    "a mode that is none": (lambda: flow.function_config().optimizer_placement_optimization_mode(None), "must be one of non_distributed,"),
    "a batch of texts": (lambda: flow.data.load_mnist("100"), "load_mnist at {here}: train_batch_size '100' does not divide"),
    "a decay of texts": (lambda: flow.regularizers.l2("0.1"), "regularizers at {here}: l2 must be a number, not '0.1'"),
    "an endless range": (
        lambda: flow.random_uniform_initializer(0, math.inf),
        "_initializer at {here}: maxval must be finite, not inf",
    ),
    "a range from above": (lambda: flow.random_uniform_initializer(1, 0), "random_uniform_initializer at {here}: minval 1 is above maxval 0"),
    "no deviation": (
        lambda: flow.truncated_normal_initializer(0, math.nan),
        "truncated_normal_initializer at {here}: stddev must be finite, not nan",
    ),
    "a variance below 0": (lambda: flow.variance_scaling_initializer(-1), "scale must be at least 0, not -1"),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_wrong_kinds_raise_with_the_line_outside_jobs(what: str) -> None:
    call, message = ELSEWHERE[what]
    flow.clear_default_session()

    @flow.global_function()
    def job() -> tp.Numpy:
        return variable() * 1

    before, here, after = message.partition("{here}")
    with pytest.raises(flow.JobflowError, match=rf"{re.escape(before)}{r'test_argument_kinds.py:[0-9]+' if here else ''}{re.escape(after)}"):
        call()
    flow.clear_default_session()
