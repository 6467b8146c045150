"""Common mistakes in the body of a job, where tensors look like arrays: their messages and lines."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parts import Rows, X, declare
from processes import run

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import ConfigError, DtypeError, JobError, SourceLine

PROGRAMS = Path(__file__).with_name("programs")

HERE = r"test_mistakes\.py:\d+"
ROW = np.ones((6,), np.float32)

MISTAKES: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "an array beside a tensor": (
        lambda x: x + ROW,
        DtypeError,
        rf"operator at {HERE}: an operand is a NumPy array float32\[6\], not a tensor; arrays become tensors as",
    ),
    "a tensor beside an array": (
        lambda x: ROW * x,
        DtypeError,
        rf"operator at {HERE}: an operand is a NumPy array float32\[6\], not a tensor; arrays become tensors as",
    ),
    "an array compared": (lambda x: x < ROW, DtypeError, rf"operator at {HERE}: an operand is a NumPy array"),
    "conversion to an array": (np.array, JobError, r"the float32\[4,6\] tensor <tensor x float32\[4,6\]> has no values"),
    "indexing": (lambda x: x[0], JobError, rf"indexing at {HERE}: a float32\[4,6\] tensor of a job cannot be indexed with \[\.\.\.\]; use slice"),
    "iteration": (list, JobError, r"iteration at .*: a float32\[4,6\] tensor of a job has no values before the job runs; use x.shape"),
    "numpy()": (lambda x: x.numpy(), AttributeError, rf'{HERE}: the tensor x float32\[4,6\] of a job has no "numpy", because its values are unknown'),
    "a misspelt attribute": (lambda x: x.shap, AttributeError, 'of a job has no "shap"; did you mean "shape"'),
    "no element type": (lambda x: flow.cast(x, "flot"), AssertionError, rf"cast at {HERE}: dtype is 'flot' of type str, not an element type"),
    "no initializer": (
        lambda x: flow.layers.dense(x, 3, kernel_initializer=0.1),
        ConfigError,
        rf"variable 'Dense-weight' at {HERE}: initializer must be an initializer such as constant_initializer\(0.1\), not 0.1",
    ),
    "no regularizer": (
        lambda x: flow.layers.dense(x, 3, kernel_regularizer=0.1),
        ConfigError,
        rf"variable 'Dense-weight' at {HERE}: regularizer must be a regularizer such as regularizers.l2\(0.01\), not 0.1",
    ),
    "a fraction beside integers": (
        lambda x: flow.cast(x, flow.int32) + 0.5,
        DtypeError,
        rf"shift at {HERE}: 0.5 is not an integer, but the tensor is int32",
    ),
    "matrices for images": (
        lambda x: flow.layers.conv2d(x, 3, 3, name="c"),
        ValueError,
        rf'conv2d at {HERE} \(layer "c"\): inputs float32\[4,6\] must have 4 axes in the order NCHW',
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(fresh: None, name: str) -> None:
    mistake, kind, text = MISTAKES[name]

    @flow.global_function()
    def job(x: Rows) -> tp.Numpy:  # type: ignore[valid-type]
        return mistake(x)

    with pytest.raises(kind, match=text) as caught:
        job(X)
    assert any(note.startswith("while job job (test_mistakes.py:") for note in caught.value.__notes__)


def test_element_types_as_numpy_spells_them(fresh: None) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Bundle[tp.Numpy]:
        return flow.cast(x, np.int32), flow.constant(1, "int8", (2,)), flow.cast(x, np.dtype(np.float64))

    assert [a.dtype for a in job(X)] == [np.int32, np.int8, np.float64]


def test_numbers_beyond_the_element_type_are_infinite(fresh: None) -> None:
    job = declare(lambda x: flow.zeros_like(x) + 1e50, Rows)
    assert np.isposinf(job(X)).all()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_variable_becomes_an_argument_and_another_variable(on: Callable[[int], None], count: int) -> None:
    """Assign an argument, or a variable in another storage: both keep their placement."""
    on(count)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Bundle[tp.Numpy]:
        a = flow.get_variable("a", (4, 6), initializer=flow.ones_initializer(), distribute=flow.distribute.split(0))
        b = flow.get_variable("b", (4, 6), initializer=flow.zeros_initializer())
        c = flow.get_variable("c", (4, 6), initializer=flow.zeros_initializer(), distribute=flow.distribute.split(1))
        flow.assign(a, x)
        flow.assign(b, a)
        flow.assign(c, b)
        return a, b, c, x

    expected = [np.ones_like(X), np.zeros_like(X), np.zeros_like(X)]
    for number in range(4):
        *results, last = job(X + number)
        np.testing.assert_array_equal(last, X + np.float32(number))
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        expected = [last, *expected[:2]]


def test_a_tensor_of_another_job(fresh: None) -> None:
    tensors = []

    @flow.global_function()
    def first(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        tensors.append(flow.math.exp(x, name="e"))
        return x

    first(X)
    for use in (lambda x: x + tensors[0], lambda x: tensors[0]):

        @flow.global_function()
        def second(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
            return use(x)  # noqa: B023 - called in this turn of the loop

        with pytest.raises(JobError, match=rf"at {HERE}: <tensor e float32\[4,6\]> belongs to another job; compute it here"):
            second(X)


def test_futures_used_as_arrays_raise(fresh: None) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))):  # type: ignore[no-untyped-def]
        return x, x

    with pytest.raises(
        JobError, match=rf"iteration at {HERE}: the result of a job without return annotation is a future; write a, b = job\(...\).get\(\)"
    ):
        _, _ = job(X)
    with pytest.raises(AttributeError, match=rf'{HERE}: the result of a job without return annotation has no "mean"; write job\(...\).get\(\).mean'):
        job(X).mean()
    assert not hasattr(job(X), "shape")


def test_options_of_the_optimizer_name_their_line(fresh: None) -> None:
    config = flow.function_config()
    config.train.primary_lr(0.1)
    config.train.model_update_conf({"adam_conf": {"beta_1": 0.9}})

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((4, 6))) -> None:
        flow.losses.add_loss(flow.layers.dense(x, 1))

    with pytest.raises(ConfigError, match=rf'{HERE}: function_config.train.model_update_conf.adam_conf: unknown key "beta_1"; did you mean "beta1"'):
        job(X)


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (flow.clear_default_session, "clear_default_session"),
        (flow.get_all_variables, "access to all variables"),
        (lambda: flow.load_variables({}), "access to all variables"),
        (lambda: flow.train.CheckPoint().init(), "access to all variables"),
        (flow.global_function, "global_function"),
    ],
    ids=["clear", "get", "load", "checkpoint", "declare"],
)
def test_unsupported_calls_inside_a_job_raise(fresh: None, act: Callable[[], Any], what: str) -> None:
    wrong = [True]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        if wrong[0]:
            act()
        return x

    with pytest.raises(JobError, match=rf"{what} at {HERE}.* the body of a job"):
        job(X)
    wrong[0] = False
    np.testing.assert_array_equal(job(X), X)


@pytest.mark.mpi
def test_ranks_that_serve_end_whatever_the_program_catches(fresh: None) -> None:
    ended = run(PROGRAMS / "catches.py", ranks=2, limit=30)
    assert (ended.code, ended.out) == (0, "1 12.0\nbehind 1\n2 12.0\nbehind 2\n"), ended.err


@pytest.mark.parametrize("program", ["flow.zeross", "job(flow)(np.ones(3, np.float32))"])
def test_one_hint_is_enough(program: str) -> None:
    """Python appends its own hints to messages about missing attributes."""
    lines = [
        "import numpy as np, jobflow as flow, jobflow.typing as tp",
        "def job(flow):",
        "    @flow.global_function()",
        "    def inner(x: tp.Numpy.Placeholder((3,))) -> tp.Numpy:",
        "        return x.shap",
        "    return inner",
        program,
    ]
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1 and ended.stderr.lower().count("did you mean") == 1, ended.stderr


def test_a_program_whose_name_is_no_text_in_the_encoding_of_the_system() -> None:
    """A folder from another system: the message names its lines and can be written to a text stream."""
    line = str(SourceLine(os.fsdecode(b"/data/j\xf6rg/j\xf6b.py"), 3))
    assert line == "j\N{REPLACEMENT CHARACTER}b.py:3" and str(SourceLine("/data/jörg/jöb.py", 3)) == "jöb.py:3"
