"""The packages of `pip install .`: few and small ones; errors about missing packages name the extra."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import setuptools

from jobflow.core.extras import PACKAGES

ROOT = Path(__file__).parents[1]
CORE = {"numpy", "pyyaml", "mpi4py", "rich", "jinja2", "psutil"}


def least(requirements: list[str]) -> dict[str, str]:
    """Package -> the least version that is asked for."""
    matches = (re.fullmatch(r"([\w-]+)>=([\d.]+)(,.*)?", text) for text in requirements)
    return {match[1].lower(): match[2] for match in matches if match}


def test_requirements_of_the_installation_and_its_extras() -> None:
    with mock.patch.object(setuptools, "setup") as setup:
        exec(compile((ROOT / "setup.py").read_text(), str(ROOT / "setup.py"), "exec"), {"__file__": str(ROOT / "setup.py")})
    arguments = setup.call_args.kwargs
    core, extras = least(arguments["install_requires"]), {name: least(requirements) for name, requirements in arguments["extras_require"].items()}
    assert set(core) == CORE
    assert {"gpu", "mpi", "train", "parquet", "remote", "test"} <= set(extras)
    known = {package.name.lower(): package for package in PACKAGES}
    for name, package in known.items():
        if package.extra or name in core:
            assert (extras[package.extra] if package.extra else core)[name] == package.least, name
    for extra in ("train", "parquet", "remote"):
        assert {name for name, package in known.items() if package.extra == extra} == set(extras[extra]), extra
        assert extras[extra].items() <= extras["test"].items(), extra
