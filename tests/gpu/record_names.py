"""Recorder of CuPy's names in data/cupy_names.txt, for tests of kernels on machines without CuPy.

    python tests/gpu/record_names.py        in an environment with cupy-cuda13x and NumPy; a GPU is not needed

A line is a name and its signature: the parameters of a function, `ufunc NIN NOUT`, `type`, or nothing.
"""

from __future__ import annotations

import inspect
import re
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("data") / "cupy_names.txt"
#: the members of cupyx.scipy.special that kernels call
SPECIAL = ("erf", "erfc")


def parameters(function: Any) -> list[str]:
    """Names of parameters, those that may be given by keyword; a star before the name of one that takes the rest."""
    try:
        listed = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return written_parameters(function.__doc__ or "")
    return [("*" if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) else "") + p.name for p in listed if p.name != "self"]


def written_parameters(text: str) -> list[str]:
    """Compiled functions carry their signature in the first line of their documentation: `_ndarray_base.get(self, stream=None)`."""
    match = re.match(r"[\w.]+\((.*)\)", text.strip().split("\n")[0])
    if match is None:
        return ["*unknown"]
    names = [re.split(r"[=:]", part)[0].split()[-1] for part in match[1].split(",") if part.strip() and part.strip() not in "/*"]
    return [name for name in names if name != "self"]


def lines(prefix: str, owner: Any) -> Iterator[str]:
    import cupy

    for name in sorted(n for n in dir(owner) if not n.startswith("_")):
        member = getattr(owner, name)
        if isinstance(member, types.ModuleType):
            continue
        if isinstance(member, cupy.ufunc):
            yield f"{prefix}{name} ufunc {member.nin} {member.nout}"
        elif isinstance(member, type):
            yield f"{prefix}{name} type"
        elif callable(member):
            yield " ".join([prefix + name, *parameters(member)])
        else:
            yield prefix + name


def recorded() -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy says that there is no NCCL
        import cupy
        import cupyx.scipy.special as special

        text_lines = [f"# CuPy {cupy.__version__}; made by record_names.py"]
        text_lines += lines("cupy.", cupy)
        text_lines += lines("ndarray.", cupy.ndarray)
        text_lines += lines("ufunc.", type(cupy.add))
        text_lines += lines("cupy.linalg.", cupy.linalg)
        text_lines += lines("stride_tricks.", cupy.lib.stride_tricks)
        text_lines += [line for line in lines("special.", special) if line.split()[0][8:] in SPECIAL]
    return text_lines


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text("\n".join(recorded()) + "\n")
