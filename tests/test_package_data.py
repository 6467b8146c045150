"""Files of the package that are no modules: the configuration of the distribution names all of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jobflow.tools.pages import UPLOT, script

ROOT = Path(__file__).parents[1]
UPLOT_FOLDER = "jobflow/tools/templates/uplot"


def data_files() -> set[str]:
    """Return the files in the package other than modules."""
    paths = (path for path in (ROOT / "jobflow").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc"))
    return {path.relative_to(ROOT).as_posix() for path in paths}


def test_patterns_of_the_distribution_match_all_files() -> None:
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    (patterns,) = re.findall(r"package_data=\{(.*)\}", text)
    named: set[str] = set()
    for package, globs in re.findall(r'"([\w.]*)": \[(.*?)\]', patterns):
        folder = ROOT / package.replace(".", "/") if package else ROOT / "jobflow"
        for glob in re.findall(r'"(.*?)"', globs):
            named |= {path.relative_to(ROOT).as_posix() for path in (folder.glob(glob) if package else folder.rglob(glob)) if path.is_file()}
    assert named == data_files() and f"{UPLOT_FOLDER}/LICENSE" in named


def test_uplot_has_its_licence_and_version_in_each_page() -> None:
    assert (ROOT / UPLOT_FOLDER / "VERSION").read_text().strip() == UPLOT
    source = script("uplot/uPlot.iife.min.js")
    assert f"(v{UPLOT})" in source and "Permission is hereby granted" in source.partition("*/")[0] and "</script" not in source


@pytest.mark.full
def test_an_installed_wheel_has_all_files(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "jobflow", tmp_path / "source" / "jobflow", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "source")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path / "wheels"), str(tmp_path / "source")]
    result = subprocess.run(build, capture_output=True, text=True, timeout=300)
    if result.returncode and "setuptools" in result.stderr and "No matching distribution" in result.stderr:
        pytest.skip("pip cannot install setuptools to build a wheel")
    assert result.returncode == 0, result.stderr
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert data_files() <= set(names)
    assert sum(name.endswith("LICENSE") for name in names if ".dist-info/" in name) == 2, "the licences of jobflow and of uPlot"
