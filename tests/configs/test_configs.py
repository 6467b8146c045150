"""Every configuration is short, says how to use it, compiles for the devices it names, and trains; devices change no loss."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import shortened
from shortened import FOLDER, NAMES, trained, whole

from jobflow.cli import main
from jobflow.trainer.preview import preview

LONGEST = 40
WIDEST = 150
#: configurations that compile here in every suite; tests/records compiles all of them
COMPILED = ("lenet_digits", "mlp_hybrid", "char_gpt_2x2")
VARIANTS = [name for name in NAMES if name.startswith("char_gpt_")]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("PIL", reason="folders of images need Pillow")
    return shortened.images_in(tmp_path_factory.mktemp("images"))


def test_what_was_asked_for_is_there() -> None:
    wanted = {"lenet_digits", "mlp_hybrid", "mirrored", "resnet_images", "char_gpt", "wide_deep"}
    assert wanted | {"char_gpt_dp", "char_gpt_tp", "char_gpt_pp", "char_gpt_2x2"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_short_and_says_how_to_use_it(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST
    assert max(map(len, lines)) <= WIDEST
    head = "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))])
    assert f"jobflow train configs/{name}.yaml" in head
    files = set(re.findall(r"configs/(\w+)\.yaml", head))
    assert files <= set(NAMES), "its comments name files that are not there"


@pytest.mark.parametrize("name", [name if name in COMPILED else pytest.param(name, marks=pytest.mark.full) for name in NAMES])
def test_it_compiles_as_it_is_for_its_devices(name: str, images: Path) -> None:
    loaded = whole(name, images)
    devices = loaded.config.strategy.devices
    seen = preview(loaded)
    assert len(seen.figures.ranks) == (1 if devices == "all" else devices)
    assert all(rank.computing for rank in seen.figures.ranks)
    sent = sum(traffic.nbytes for rank in seen.figures.ranks for traffic in rank.traffic.values())
    assert (sent > 0) == (devices != "all")


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_evaluates_and_saves(name: str, images: Path, tmp_path: Path) -> None:
    seen, outcome = trained(shortened.shortened(name, images, tmp_path, 3))
    assert outcome.step == 3 and outcome.stopped == "end"
    assert len(seen.losses) == 3 and np.isfinite(seen.losses).all()
    assert [report.step for report in seen.evaluations] == [3]
    assert np.isfinite(seen.evaluations[0].metrics["validation/loss"])
    assert len(seen.saved_at) == 1


@pytest.mark.parametrize("name", ("lenet_digits", "mlp_hybrid", "wide_deep"))
def test_devices_change_no_loss(name: str, images: Path, tmp_path: Path) -> None:
    curves = [trained(shortened.shortened(name, images, tmp_path / str(n), 4, f"strategy.devices={n}"))[0] for n in (1, 2)]
    assert [seen.ranks for seen in curves] == [1, 2]
    np.testing.assert_allclose(curves[1].losses, curves[0].losses, rtol=1e-5)
    assert curves[1].evaluations[0].metrics == pytest.approx(curves[0].evaluations[0].metrics, rel=1e-4)


@pytest.mark.full
def test_ways_to_spread_the_transformer_change_no_loss(images: Path, tmp_path: Path) -> None:
    one, *others = [trained(shortened.shortened(name, images, tmp_path / name, 4))[0] for name in ("char_gpt", *VARIANTS)]
    assert one.ranks == 1 and sorted(seen.ranks for seen in others) == [2, 2, 2, 4]
    for name, seen in zip(VARIANTS, others, strict=True):
        np.testing.assert_allclose(seen.losses, one.losses, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.full) if name in ("char_gpt_dp", "char_gpt_tp") else name for name in NAMES])
def test_its_train_job_agrees_with_one_device(name: str, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = next(own for start, own in shortened.SETTINGS.items() if name.startswith(start))
    own = (f"data.train.path={images}",) if name == "resnet_images" else ()
    settings = [word for setting in (*own, *small) for word in ("--set", setting)]
    assert main(["verify", str(FOLDER / f"{name}.yaml"), "--steps", "1", *settings]) == 0, capsys.readouterr().out
