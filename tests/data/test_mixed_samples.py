"""Mixup and cutmix of samples, against the published formulas in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jobflow.data.mixed_samples import MixedSamples, box_of
from jobflow.data.samples import Columns

COUNT, SIDE = 40, 8
RANDOM = np.random.default_rng(0)
#: the first pixel of each image names its sample
IMAGES = RANDOM.random((COUNT, 2, SIDE, SIDE), np.float32)
LABELS = np.arange(COUNT, dtype=np.int32) % 5
ALL = np.arange(COUNT)


def mixed(mixup: float | None, cutmix: float | None, images: Any = IMAGES, seed: int = 3) -> MixedSamples:
    return MixedSamples(Columns({"images": images, "labels": LABELS}), ["images"], "labels", mixup, cutmix, seed)


def parts(samples: MixedSamples, epoch: int = 0) -> list[tuple[int, float]]:
    """Return the partner and the fraction of each sample."""
    return [(each.partner, each.share) for each in samples._mixtures(ALL, epoch)]


def test_mixup_is_a_convex_combination_of_two_samples() -> None:
    samples = mixed(0.4, None)
    read = samples.read(ALL, 2)
    for row, (partner, share) in enumerate(parts(samples, 2)):
        assert partner != row
        np.testing.assert_allclose(read["images"][row], share * IMAGES[row] + (1 - share) * IMAGES[partner], rtol=1e-5, atol=1e-6)
        pair = (LABELS[row], LABELS[partner]) if share >= 0.5 else (LABELS[partner], LABELS[row])
        assert (read["labels"][row], read["mixed_labels"][row]) == pair
        assert read["mixed_share"][row] == pytest.approx(max(share, 1 - share))


def test_cutmix_replaces_a_box_and_its_share_is_the_remaining_area() -> None:
    samples = mixed(None, 1.0)
    read, sizes = samples.read(ALL), []
    for row, (partner, share) in enumerate(parts(samples)):
        own, other = (read["images"][row] == IMAGES[each] for each in (row, partner))
        assert (own | other).all()
        assert np.isclose(own.mean(), share)
        rows, columns = (np.flatnonzero((~own[0]).any(axis)) for axis in (1, 0))
        sizes.append(len(rows) * len(columns))
        assert (~own).sum() == 2 * len(rows) * len(columns)  # one box in all channels
    assert min(sizes) == 0 and max(sizes) >= 30


@pytest.mark.parametrize("share", [0.0, 0.3, 0.75, 1.0])
@pytest.mark.parametrize("centre", [(0.0, 0.99), (0.5, 0.5), (0.3, 0.7)])
def test_the_box_of_cutmix_follows_the_paper(share: float, centre: tuple[float, float]) -> None:
    height, width = 32, 20
    y, x = int(centre[0] * height), int(centre[1] * width)
    cut_h, cut_w = int(height * np.sqrt(1 - share)), int(width * np.sqrt(1 - share))
    expected = [
        np.clip(y - cut_h // 2, 0, height),
        np.clip(y + cut_h // 2, 0, height),
        np.clip(x - cut_w // 2, 0, width),
        np.clip(x + cut_w // 2, 0, width),
    ]
    assert list(box_of(share, (height, width), np.array(centre))) == expected


def test_fractions_have_a_beta_distribution_and_both_kinds_are_equally_frequent() -> None:
    big = Columns({"images": np.zeros((1500, 1, 64, 64), np.uint8), "labels": np.zeros(1500, np.int32)})
    share = np.array([each.share for each in MixedSamples(big, ["images"], "labels", 0.3, None, 1)._mixtures(np.arange(1500), 0)])
    assert share.mean() == pytest.approx(0.5, abs=0.05) and share.var() == pytest.approx(1 / (4 * (2 * 0.3 + 1)), rel=0.08)
    both = MixedSamples(big, ["images"], "labels", 0.3, 1.0, 1)._mixtures(np.arange(1500), 0)
    assert np.mean([each.box is not None for each in both]) == pytest.approx(0.5, abs=0.05)


def test_a_mixed_sample_depends_on_seed_epoch_and_number_alone() -> None:
    samples = mixed(0.4, 1.0)
    whole = samples.read(ALL, 1)
    some = samples.read([7, 30, 7], 1, ["labels", "images", "mixed_share", "mixed_labels"])
    assert list(some) == ["labels", "images", "mixed_share", "mixed_labels"]
    for name, array in some.items():
        np.testing.assert_array_equal(array, whole[name][[7, 30, 7]])
    for other in (samples.read(ALL, 0), mixed(0.4, 1.0, seed=4).read(ALL, 1)):
        assert not np.array_equal(other["mixed_share"], whole["mixed_share"])
    assert list(samples.read([3], 1, ["mixed_share"])) == ["mixed_share"]


def test_bytes_are_rounded_and_a_single_sample_stays_as_it_is() -> None:
    bytes_ = RANDOM.integers(0, 256, IMAGES.shape, np.uint8)
    samples = mixed(1.0, None, bytes_)
    read = samples.read(ALL)["images"]
    partner, share = parts(samples)[5]
    assert read.dtype == np.uint8
    assert np.abs(read[5] - (share * bytes_[5] + (1 - share) * bytes_[partner])).max() <= 0.501
    one = MixedSamples(Columns({"images": IMAGES[:1], "labels": LABELS[:1]}), ["images"], "labels", 1.0, None, 0)
    np.testing.assert_allclose(one.read([0])["images"], IMAGES[:1], rtol=1e-6)
