"""Mixup and cutmix of a configuration: the samples of training, and the two labels of a mixed sample in a train job."""

from __future__ import annotations

from collections.abc import Mapping

from jobflow.core.errors import ConfigError
from jobflow.core.types import TensorType
from jobflow.data.mixed_samples import OTHER, SHARE, MixedSamples
from jobflow.data.samples import Samples, Stream
from jobflow.trainer.config import Loaded
from jobflow.trainer.criterion import LABELS
from jobflow.trainer.network import Network


def mixed_samples(loaded: Loaded, samples: Samples | Stream, network: Network, fields: Mapping[str, TensorType]) -> MixedSamples | None:
    """Return the mixed training samples of a configuration with `data.mixup` or `data.cutmix`; None without both.

    `fields` are the fields of the samples. All fields that the model reads, except the labels, are mixed.
    Raises: ConfigError for a stream, samples without labels, and fields that cannot be mixed.
    """
    data = loaded.config.data
    key = "data.mixup" if data.cutmix is None else "data.cutmix"
    if data.mixup is None and data.cutmix is None:
        return None
    start = f"{loaded.origin(key)}: {key}"
    if not isinstance(samples, Samples):
        raise ConfigError(f"{start}: {samples} is a stream, and a mixed sample needs a second one by number; use a reader of files, or omit {key}")
    if network.criterion is None or LABELS not in fields:
        raise ConfigError(f'{start} needs the field "{LABELS}", and the samples have {", ".join(fields)}; name it with fields, or omit {key}')
    inputs = {name: type for name, type in network.taken(fields).items() if name != LABELS}
    for name, type in inputs.items():
        if not type.dtype.is_float and type.dtype.name != "uint8":
            raise ConfigError(f'{start}: the field "{name}" has {type.dtype.name}, and only floats and uint8 can be mixed; omit {key}')
    if data.cutmix is not None:
        wrong = next((name for name, type in inputs.items() if type.ndim != 3), None) or _of_other_size(inputs)
        if wrong is not None:
            what = f'the field "{wrong}" is {inputs[wrong]}, and cutmix needs images [channels, height, width] of one size'
            raise ConfigError(f"{start}: {what}; use data.mixup")
    for name in (OTHER, SHARE):
        if name in fields:
            raise ConfigError(f'{start}: the samples have a field "{name}", which mixed samples add; rename the field')
    return MixedSamples(samples, [*inputs], LABELS, data.mixup, data.cutmix, loaded.config.seed)


def _of_other_size(inputs: Mapping[str, TensorType]) -> str | None:
    """Return the first image with another height or width than the first one, or None."""
    sides = [type.shape[1:] for type in inputs.values()]
    return next((name for name, type in inputs.items() if type.shape[1:] != sides[0]), None)
