"""Names of PyTorch that need a missing feature raise an AttributeError that names the feature."""

from __future__ import annotations

import operator

import pytest

import jobflow as flow


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("complex64", "complex numbers"),
        ("polar", "complex numbers"),
        ("view_as_real", "complex numbers"),
        ("functional.view_as_complex", "complex numbers"),
        ("fft.fft", "Fourier transforms"),
        ("vmap", "function transforms"),
        ("func.grad", "function transforms"),
        ("autograd.functional.jacobian", "Jacobians"),
        ("float8_e4m3fn", "8-bit"),
    ],
)
def test_error_names_the_missing_feature(name: str, feature: str) -> None:
    with pytest.raises(AttributeError, match=f"jobflow has no .*{feature}.*; "):
        operator.attrgetter(name)(flow)
    assert not hasattr(flow, name.partition(".")[0]) or "." in name


def test_other_names_are_suggested() -> None:
    with pytest.raises(AttributeError, match="cumsum"):
        flow.cumsun  # noqa: B018
