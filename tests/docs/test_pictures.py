"""Screenshots in docs/pictures: few, small, and each from a row of scripts/screenshots."""

from __future__ import annotations

import runpy

from pages import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "screenshots"))


def test_screenshots_are_few_and_small_and_have_a_row_of_the_script() -> None:
    files = sorted((ROOT / "docs" / "pictures").glob("*.png"))
    assert [file.stem for file in files] == sorted(picture.name for picture in SCRIPT["PICTURES"])
    assert len(files) <= SCRIPT["MOST"] and sum(file.stat().st_size for file in files) <= SCRIPT["MOST_BYTES"]
