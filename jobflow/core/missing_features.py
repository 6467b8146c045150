"""PyTorch's names that jobflow omits by design, each with the missing feature that the attribute error names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_COMPLEX = "jobflow has no complex numbers; compute with real and imaginary parts as two tensors"
_FOURIER = "jobflow has no Fourier transforms, because it has no complex numbers; multiply by a matrix of sines and cosines, or use NumPy"
_TRANSFORMS = "jobflow has no function transforms; write the batch axis into the function, and use flow.autograd.grad for gradients"
_JACOBIANS = "jobflow has no whole Jacobians; use flow.autograd.grad once per output, or gradcheck to test gradients"
_FLOAT8 = "jobflow has no 8-bit floating point numbers; use float16 or bfloat16"

_NAMES = {
    _COMPLEX: "ComplexDoubleTensor ComplexFloatTensor angle cdouble cfloat chalf complex complex128 complex32 complex64 imag polar "
    "view_as_complex view_as_real",
    _FOURIER: "fft istft stft",
    _TRANSFORMS: "func functorch vmap",
    _JACOBIANS: "autograd.forward_ad autograd.hessian autograd.hvp autograd.jacobian autograd.jvp autograd.vhp autograd.vjp",
    _FLOAT8: "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu",
}
#: name, with its path below `jobflow` -> the reason why it is missing
_REASONS: Mapping[str, str] = MappingProxyType({name: reason for reason, names in _NAMES.items() for name in names.split()})


def missing(module: str, name: str) -> str:
    """Return the reason why the public `module` lacks `name`, as the end of a message; "" for other names."""
    path = f"{module}.{name}".removeprefix("jobflow.")
    reason = _REASONS.get(path.removeprefix("functional."), "")
    return f": {reason}" if reason else ""
