"""Job signatures: reading annotations, binding calls, shaping results."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import jobflow.typing as tp
from jobflow.core.errors import ArgumentError, JobError
from jobflow.core.types import TensorType, float32, int8, int32, int64
from jobflow.typing import FixedTensorDef, JobSignature, MirroredTensorDef

HERE = r"test_signature\.py:\d+"


@dataclass(eq=False)
class FakeTensor:
    tensor_type: TensorType


def tensor() -> FakeTensor:
    return FakeTensor(TensorType((4,), float32))


Images = tp.Numpy.Placeholder((4, 1, 2, 2))
Labels = tp.Numpy.Placeholder((4,), dtype=int32)
Shards = tp.ListNumpy.Placeholder((3, 2))


def train_job(images: Images, labels: Labels) -> tp.Numpy: ...


def shards_job(x: Shards) -> tp.ListNumpy: ...


train = JobSignature.of(train_job)
shards = JobSignature.of(shards_job)
images = np.zeros((4, 1, 2, 2), np.float32)
labels = np.zeros(4, np.int32)


# ---- reading -------------------------------------------------------------------------------------------------------------------------


def test_placeholders_and_their_print() -> None:
    assert [(name, str(declared.type), declared.per_device) for name, declared in train.placeholders()] == [
        ("images", "float32[4,1,2,2]", False),
        ("labels", "int32[4]", False),
    ]
    assert [(name, declared.per_device) for name, declared in shards.placeholders()] == [("x", True)]
    assert repr(Labels) == "jobflow.typing.Numpy.Placeholder((4,), dtype=jobflow.int32)"
    assert repr(Shards) == "jobflow.typing.ListNumpy.Placeholder((3, 2), dtype=jobflow.float32)"
    assert train.name == "train_job"
    assert train.where.file == __file__


def test_annotations_as_text_see_the_names_where_the_job_is_decorated() -> None:
    batch = 7

    def job(x: tp.Numpy.Placeholder((batch, 2))) -> None: ...

    (((name, declared)),) = JobSignature.of(job).placeholders()
    assert (name, declared.type.shape) == ("x", (7, 2))


def test_annotations_as_text_that_do_not_evaluate() -> None:
    def job(x: nowhere.Placeholder((2,))) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(JobError, match=rf'^job job \({HERE}\): parameter "x": the annotation .* cannot be evaluated: name .nowhere. is not'):
        JobSignature.of(job)


def test_nested_parameters_flatten_and_nest_again() -> None:
    def job(pair: typing.Tuple[Images, Labels], z: Labels) -> None: ...  # noqa: UP006

    signature = JobSignature.of(job)
    assert [name for name, _ in signature.placeholders()] == ["pair[0]", "pair[1]", "z"]
    assert signature.arguments(["a", "b", "c"]) == [("a", "b"), "c"]
    bound = signature.bind([[images, labels], labels])
    assert [name for name, _, _ in bound] == ["pair[0]", "pair[1]", "z"]
    with pytest.raises(ArgumentError, match=r'argument "pair" has 1 element; the job declares 2'):
        signature.bind([(images,), labels])
    with pytest.raises(
        ArgumentError, match=r'argument "pair" is float32\[4,1,2,2\]; the job declares a tuple of length 2\. Pass a tuple or a list\.'
    ):
        signature.bind([images, labels])
    with pytest.raises(ArgumentError, match=r'^job\(pair=\.\.\.\) at .* argument "pair\[1\]" is float32\[4,1,2,2\]; the job declares int32\[4\]'):
        signature.bind([(images, images), labels])


def test_the_old_spelling() -> None:
    def job(x=FixedTensorDef([2, 3], dtype=int64), more=(MirroredTensorDef((2,)), {"k": FixedTensorDef((1,))})): ...  # type: ignore[no-untyped-def]  # noqa: B008

    signature = JobSignature.of(job)
    assert [(name, str(d.type), d.per_device) for name, d in signature.placeholders()] == [
        ("x", "int64[2,3]", False),
        ("more[0]", "float32[2]", True),
        ("more[1]['k']", "float32[1]", False),
    ]
    assert signature.arguments([1, 2, 3]) == [1, (2, {"k": 3})]
    one = np.zeros(1, np.float32)
    assert len(signature.bind([np.zeros((2, 3), np.int64), ([one, one], {"k": one})], devices=2)) == 3
    with pytest.raises(ArgumentError, match=r'argument "more\[1\]" is a dict; the job declares a dict with the keys \[\'k\'\]'):
        signature.bind([np.zeros((2, 3), np.int64), ([one, one], {"j": one})], devices=2)


@pytest.mark.parametrize("shape", [[4, 2], (4, 0), (4, -1), (4, 2.0), (True,), 4, (None, 2)])
def test_shapes_that_are_none(shape: Any) -> None:
    with pytest.raises(JobError, match=rf"^Numpy\.Placeholder at {HERE}: shape must be a tuple of positive ints") as raised:
        tp.Numpy.Placeholder(shape)
    assert isinstance(raised.value, AssertionError)


@pytest.mark.parametrize("dtype", [None, "complex64", np.complex64, 3])
def test_dtypes_that_are_none(dtype: Any) -> None:
    with pytest.raises(JobError, match=rf"^ListNumpy\.Placeholder at {HERE}: dtype must be an element type such as jobflow\.float32; got"):
        tp.ListNumpy.Placeholder((4,), dtype)


def test_declarations_that_are_not_those_of_a_job() -> None:
    def star(*x: Images): ...  # type: ignore[no-untyped-def]
    def keyword(*, x: Images): ...  # type: ignore[no-untyped-def]
    def bare(x): ...  # type: ignore[no-untyped-def]
    def mixed(x: Images, y): ...  # type: ignore[no-untyped-def]
    def kind(x: tp.Numpy): ...  # type: ignore[no-untyped-def]
    def alien(x: int): ...  # type: ignore[no-untyped-def]
    def default(x: Images = None): ...  # type: ignore[no-untyped-def,assignment]
    def odd(x=3): ...  # type: ignore[no-untyped-def]
    def many(x: tuple[Images, ...]): ...  # type: ignore[no-untyped-def]

    for function, text in [
        (star, 'parameter "x" is variadic positional; jobs are called by position with a fixed number of arguments'),
        (keyword, 'parameter "x" is keyword-only; jobs are called by position'),
        (bare, 'parameter "x" has no annotation; write x: tp.Numpy.Placeholder(shape, dtype)'),
        (mixed, 'parameter "y" has no annotation'),
        (kind, 'parameter "x" is annotated Numpy; write tp.Numpy.Placeholder(shape, dtype)'),
        (alien, 'parameter "x" is annotated int; write'),
        (default, 'parameter "x" has an annotation and a default value'),
        (odd, 'parameter "x" has the default value 3; write'),
        (many, 'parameter "x": Tuple must list its elements'),
    ]:
        with pytest.raises(JobError) as raised:
            JobSignature.of(function)
        assert text in str(raised.value)
        assert str(raised.value).startswith(f"job {function.__name__} (test_signature.py:")
    with pytest.raises(JobError, match="a job must be a Python function"):
        JobSignature.of("train")  # type: ignore[arg-type]


# ---- binding -------------------------------------------------------------------------------------------------------------------------


def test_a_call_that_fits_is_passed_through_without_copying() -> None:
    (name, declared, value), (_, _, y) = train.bind([images, labels])
    assert (name, declared.type.shape) == ("images", (4, 1, 2, 2))
    assert value is images
    assert y is labels


def test_the_wrong_shape_names_job_argument_both_lines_and_what_to_do() -> None:
    with pytest.raises(ArgumentError) as raised:
        train.bind([np.zeros((3, 1, 2, 2), np.float32), labels])
    line = Images.declared.where.line
    assert str(raised.value).partition(" at test_signature.py:")[0] == "train_job(images=...)"
    assert str(raised.value).partition(": ")[2] == (
        'argument "images" is float32[3,1,2,2]; the job declares float32[4,1,2,2] '
        f"(test_signature.py:{line}). Pass 4 rows, or declare the placeholder with 3."
    )
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, AssertionError)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((4, 4), np.float32), "Pass images.reshape(4, 1, 2, 2)."),
        (np.zeros((4, 1, 3, 2), np.float32), "Pass an array of shape (4, 1, 2, 2)."),
        (np.zeros((0, 1, 2, 2), np.float32), "is float32[0,1,2,2], which is empty; "),
        ([images], "is a list; the job declares float32[4,1,2,2]"),
        ([images], "np.concatenate of the list; lists are for ListNumpy.Placeholder"),
        ([[1.0]], "Pass a numpy.ndarray, for example np.array(...)."),
        (None, "is a NoneType; "),
        (3.0, "is a float; "),
        (images.astype(np.complex64), "has elements of type complex64; "),
        (images.astype(object), "has elements of type object; "),
    ],
)
def test_images_that_do_not_fit(value: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        train.bind([value, labels])
    assert text in str(raised.value)


def test_the_wrong_number_of_arguments() -> None:
    with pytest.raises(ArgumentError, match=rf"^train_job\(\.\.\.\) at {HERE}: wrong number of arguments, 1; the job takes 2 \(images, labels\)"):
        train.bind([images])

    def alone() -> None: ...

    with pytest.raises(ArgumentError, match="wrong number of arguments, 1; the job takes none"):
        JobSignature.of(alone).bind([images])
    assert JobSignature.of(alone).bind([]) == []


@pytest.mark.parametrize("number", [np.float64, np.float16, np.int64, np.uint8, np.bool_, ">f4"])
def test_numbers_are_converted_silently_to_a_float_placeholder(number: Any) -> None:
    value = np.ones((4, 1, 2, 2)).astype(number)
    got = train.bind([value, labels])[0][2]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, 1.0)


@pytest.mark.parametrize("number", [np.int64, np.int8, np.uint64, np.bool_, np.float32, np.float64])
def test_whole_numbers_are_converted_silently_to_an_integer_placeholder(number: Any) -> None:
    value = np.array([1, 0, 1, 0]).astype(number)
    got = train.bind([images, value])[1][2]
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, [1, 0, 1, 0])


@pytest.mark.parametrize("value", [[0.5, 1, 2, 3], [np.nan, 1, 2, 3], [np.inf, 1, 2, 3], [2.0**31, 0, 0, 0], [-(2.0**31) - 1, 0, 0, 0]])
def test_floats_that_an_integer_placeholder_would_lose(value: list[float]) -> None:
    with pytest.raises(ArgumentError, match=r'argument "labels" is float64 with numbers that int32 cannot represent; .* Pass integers'):
        train.bind([images, np.array(value)])


def test_integers_out_of_range_are_not_wrapped_around() -> None:
    with pytest.raises(ArgumentError, match="int64 with numbers that int32 cannot represent"):
        train.bind([images, np.array([2**31, 0, 0, 0])])
    np.testing.assert_array_equal(train.bind([images, np.array([2**31 - 1, -(2**31), 0, 0])])[1][2], [2**31 - 1, -(2**31), 0, 0])

    def bytes_job(x: tp.Numpy.Placeholder((2,), dtype=int8)) -> None: ...

    with pytest.raises(ArgumentError, match="uint8 with numbers that int8 cannot represent"):
        JobSignature.of(bytes_job).bind([np.array([0, 255], np.uint8)])


def test_strided_arrays_nan_and_huge_doubles_are_accepted() -> None:
    strided = np.zeros((2, 2, 1, 4), np.float32).T
    assert not strided.flags.c_contiguous
    assert train.bind([strided, labels])[0][2] is strided
    assert np.isnan(train.bind([np.full((4, 1, 2, 2), np.nan), labels])[0][2]).all()
    assert np.isinf(train.bind([np.full((4, 1, 2, 2), 1e300), labels])[0][2]).all()


def test_one_array_per_device() -> None:
    x = np.zeros((3, 2), np.float32)
    ((name, _, pieces),) = shards.bind([(x, x[:1].astype(np.float64))], devices=2)
    assert name == "x"
    assert [(piece.shape, piece.dtype.name) for piece in pieces] == [((3, 2), "float32"), ((1, 2), "float32")]
    ((_, _, pieces),) = shards.bind([(x.reshape(6, 1), x[:0])], devices=2)
    assert [piece.shape for piece in pieces] == [(6, 1), (0, 2)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([np.zeros((3, 2))] * 3, 'argument "x" has 3 arrays; the job runs on 2 devices. Pass a list with one entry per device.'),
        (np.zeros((6, 2)), 'argument "x" is float64[6,2]; the job declares a list of one array per device'),
        (np.zeros((6, 2)), "Pass a list with one entry per device, for example np.array_split(x, 2)."),
        ("ab", "is a str; the job declares a list of one array per device"),
        ([np.zeros((3, 2)), np.zeros((4, 2))], 'argument "x[1]" is float64[4,2]; the job declares at most float32[3,2] per device'),
        ([np.zeros((3, 2)), np.zeros(3)], 'argument "x[1]" is float64[3]; the job declares at most'),
        ([np.zeros((3, 2)), [1.0]], 'argument "x[1]" is a list; '),
    ],
)
def test_lists_that_do_not_fit(value: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        shards.bind([value], devices=2)
    assert text in str(raised.value)
    assert str(raised.value).startswith("shards_job(x=...) at test_signature.py:")


# ---- results -------------------------------------------------------------------------------------------------------------------------


def returning(annotation: Any) -> JobSignature:
    def job(): ...  # type: ignore[no-untyped-def]

    job.__annotations__["return"] = annotation
    return JobSignature.of(job)


def test_one_array() -> None:
    t = tensor()
    results = train.results(t)
    assert (results.mode, results.leaves, results.kinds) == ("value", (t,), ("numpy",))
    assert results.build(["array"]) == "array"


@pytest.mark.parametrize(
    ("annotation", "make", "kinds", "built"),
    [
        (tuple[tp.Numpy, tp.ListNumpy], lambda a, b: (a, b), ("numpy", "list"), (0, 1)),
        (typing.List[tp.Numpy], lambda a, b: [a, b], ("numpy", "numpy"), [0, 1]),  # noqa: UP006
        (typing.Dict[str, tp.Numpy], lambda a, b: {"x": a, "y": b}, ("numpy", "numpy"), {"x": 0, "y": 1}),  # noqa: UP006
        (dict[int, tuple[tp.Numpy, list[tp.Numpy]]], lambda a, b: {3: (a, [b])}, ("numpy", "numpy"), {3: (0, [1])}),
        (tp.Bundle[tp.Numpy], lambda a, b: [a, {"k": (b,)}], ("numpy", "numpy"), [0, {"k": (1,)}]),
        (tp.Bundle[tp.ListNumpy], lambda a, b: (a, b), ("list", "list"), (0, 1)),
    ],
)
def test_containers_are_restored(annotation: Any, make: Any, kinds: Any, built: Any) -> None:
    a, b = tensor(), tensor()
    for mode, wrapped in (("value", annotation), ("callback", tp.Callback[annotation])):
        results = returning(wrapped).results(make(a, b))
        assert (results.mode, results.leaves, results.kinds) == (mode, (a, b), kinds)
        assert results.build([0, 1]) == built
        assert type(results.build([0, 1])) is type(built)


def test_no_annotation_gives_a_future_and_none_nothing() -> None:
    def job(): ...  # type: ignore[no-untyped-def]

    bare = JobSignature.of(job)
    results = bare.results([tensor(), {"k": tensor()}])
    assert (results.mode, results.kinds, results.build(["a", "b"])) == ("future", ("local", "local"), ["a", {"k": "b"}])
    assert bare.results(None).mode == "nothing"
    nothing = returning(None).results(None)
    assert (nothing.mode, nothing.leaves, nothing.build([])) == ("nothing", (), None)
    assert returning(tp.Callback[None]).results(None).mode == "callback"


@pytest.mark.parametrize(
    ("annotation", "returned", "text"),
    [
        (None, tensor(), "is annotated None but its body returned a tensor (float32[4])"),
        (tp.Numpy, None, "the result is None; it must be a tensor that the body computed"),
        (tp.Numpy, np.zeros(3), "the result is a ndarray; it must be a tensor that the body computed"),
        (tp.Numpy, (tensor(),), "the result is a tuple; it must be a tensor"),
        (tuple[tp.Numpy, tp.Numpy], [tensor(), tensor()], "the result is a list; the annotation requires a tuple"),
        (tuple[tp.Numpy, tp.Numpy], (tensor(),), "the result is a tuple of length 1; the annotation has length 2"),
        (list[tp.Numpy], [tensor(), 3], "the result[1] is a int; it must be a tensor"),
        (dict[str, tp.Numpy], {1: tensor()}, "the result has the key 1; the annotation requires keys of type str"),
        (dict[int, tp.Numpy], {True: tensor()}, "the result has the key True; the annotation requires keys of type int"),
        (tp.Bundle[tp.Numpy], {"a": [None]}, "the result['a'][0] is None; it must be a tensor"),
    ],
)
def test_bodies_that_return_something_else(annotation: Any, returned: Any, text: str) -> None:
    with pytest.raises(JobError) as raised:
        returning(annotation).results(returned)
    assert text in str(raised.value)
    assert str(raised.value).startswith("job job (test_signature.py:")


@pytest.mark.parametrize("annotation", [int, np.ndarray, tuple, typing.Tuple, list, tuple[tp.Numpy, ...], tp.Bundle, tp.Callback, tp.Bundle[int],  # noqa: UP006
                                        tp.Callback[int], tuple[tp.Callback[tp.Numpy]], Images])  # fmt: skip
def test_return_annotations_that_no_job_may_have(annotation: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"the return annotation .* is not one of None, tp\.Numpy"):
        returning(annotation)
