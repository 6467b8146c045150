"""Training samples that are mixed in pairs: mixup and cutmix.

H. Zhang et al., "mixup: beyond empirical risk minimization" (2018): x = s a + (1 - s) b with s ~ Beta(alpha, alpha).
S. Yun et al., "CutMix: regularization strategy to train strong classifiers with localizable features" (2019): a box of b replaces the same box of a.
Its sides are sqrt(1 - s) of the image, its centre is uniform, and s becomes the fraction of a that remains.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, float32
from jobflow.data.samples import Field, Samples
from jobflow.expressions import philox

#: the fields that mixed samples have in addition: the label of the smaller part, and the fraction of the larger part
OTHER, SHARE = "mixed_labels", "mixed_share"


@dataclass(frozen=True)
class Mixture:
    """The random choice for one sample: its partner, its fraction, and the box (top, bottom, left, right) of cutmix, or None for mixup."""

    partner: int
    share: float
    box: tuple[int, int, int, int] | None


class MixedSamples(Samples):
    """The training samples, each mixed with another one that is chosen among all samples.

    The choice is a function of (`seed`, epoch, number), so it does not depend on ranks or batches. `inputs` names the fields to mix, and `labels` the
    field of targets. `mixup` and `cutmix` are the parameters alpha of the Beta distributions. With both, each has the probability 1/2. The field
    `labels` has the label of the larger part, `mixed_labels` that of the smaller part, and `mixed_share` the fraction of the larger part.
    """

    def __init__(self, samples: Samples, inputs: Sequence[str], labels: str, mixup: float | None, cutmix: float | None, seed: int) -> None:
        self._samples, self._inputs, self._labels = samples, tuple(inputs), labels
        self._alphas = [(alpha, boxed) for alpha, boxed in ((mixup, False), (cutmix, True)) if alpha is not None]
        self._key, self.what, self.whole = philox.key_of(seed, "mixed samples"), f"mixed samples of {samples}", samples.whole
        self._sides = samples.fields[self._inputs[0]].shape[1:] if cutmix is not None else ()
        super().__init__({**samples.fields, OTHER: samples.fields[labels], SHARE: Field((), float32)}, len(samples))

    def read(self, indices: Any, epoch: int = 0, fields: Collection[str] | None = None) -> dict[str, Array]:
        names = list(self.fields if fields is None else fields)
        indices = np.asarray(indices, np.int64).reshape(-1)
        mixtures = self._mixtures(indices, epoch)
        labels = [self._labels] if {self._labels, OTHER} & {*names} else []
        own = self._samples.read(indices, epoch, [*(name for name in names if name not in (self._labels, OTHER, SHARE)), *labels])
        mixed = [name for name in self._inputs if name in names]
        partners = np.array([each.partner for each in mixtures], np.int64)
        others = self._samples.read(partners, epoch, [*mixed, *labels]) if mixed or labels else {}
        for name in mixed:
            for row, mixture in enumerate(mixtures):
                _mix(own[name][row, ...], others[name][row, ...], mixture)
        shares = np.array([each.share for each in mixtures], np.float32)
        if labels:
            larger = (shares >= 0.5).reshape(-1, *[1] * (own[self._labels].ndim - 1))
            pair = own[self._labels], others[self._labels]
            own |= {self._labels: np.where(larger, *pair), OTHER: np.where(larger, *pair[::-1])}
        own[SHARE] = np.maximum(shares, 1 - shares)
        return {name: own[name] for name in names}

    def rows(self, indices: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        return self.read(indices, epoch, names)

    def where(self, number: int) -> str:
        return f"{self._samples.where(number)}, mixed with another sample"

    @property
    def facts(self) -> dict[str, Any]:
        return self._samples.facts

    def _mixtures(self, indices: Array, epoch: int) -> list[Mixture]:
        words = philox.words(np, self._key, indices.astype(np.uint64), epoch).astype(np.uint64)
        keys = np.stack([words[0] << np.uint64(32) | words[1], words[2] << np.uint64(32) | words[3]], 1)
        return [self._mixture(number, np.random.Generator(np.random.Philox(key=key))) for number, key in zip(indices.tolist(), keys, strict=True)]

    def _mixture(self, number: int, random: np.random.Generator) -> Mixture:
        count = len(self)
        partner = (number + 1 + int(random.integers(max(count - 1, 1)))) % count
        alpha, boxed = self._alphas[int(random.integers(len(self._alphas)))]
        share = float(random.beta(alpha, alpha))
        if not boxed:
            return Mixture(partner, share, None)
        box = box_of(share, self._sides, random.random(2))
        area = (box[1] - box[0]) * (box[3] - box[2])
        return Mixture(partner, 1 - area / (self._sides[0] * self._sides[1]), box)


def box_of(share: float, sides: Sequence[int], centre: Array) -> tuple[int, int, int, int]:
    """Return (top, bottom, left, right) of a box with sqrt(1 - `share`) of the height and width, cut at the borders; `centre` is in 0..1."""
    ends: list[int] = []
    for side, offset in zip(sides, centre, strict=True):
        middle, half = int(offset * side), int(side * (1 - share) ** 0.5 / 2)
        ends += [max(middle - half, 0), min(middle + half, side)]
    return ends[0], ends[1], ends[2], ends[3]


def _mix(own: Array, other: Array, mixture: Mixture) -> None:
    """Change `own` in place; mixed bytes are rounded."""
    if mixture.box is not None:
        top, bottom, left, right = mixture.box
        own[:, top:bottom, left:right] = other[:, top:bottom, left:right]
        return
    share = np.float32(mixture.share)
    sum = own * share + other * (1 - share)
    own[...] = np.rint(sum) if own.dtype.kind == "u" else sum
