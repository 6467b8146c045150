"""Every op satisfies every law; new ops are found automatically."""

from __future__ import annotations

import laws
import pytest

from jobflow.ops.op import Op

OPS = {cls.__name__ if cls.__module__ != "jobflow.ops.layout_ops" else f"layout_ops.{cls.__name__}": cls for cls in laws.concrete_ops()}


def test_the_families_are_complete() -> None:
    assert len(OPS) > 90
    assert {"Add", "Relu", "ReduceSum", "Reshape", "Gather", "Where", "Concat"} <= set(OPS)


@pytest.mark.parametrize("name", OPS)
def test_has_samples(name: str) -> None:
    samples = list(OPS[name].samples())
    assert samples, f"{name} has no samples: the laws cannot see it"
    assert all(type(sample.op) is OPS[name] for sample in samples)


@pytest.mark.parametrize("law", laws.LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", OPS)
def test_law(name: str, law: object) -> None:
    cls: type[Op] = OPS[name]
    for sample in cls.samples():
        law(sample)  # type: ignore[operator]
