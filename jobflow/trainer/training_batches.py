"""The batches of training, and the train job with its first batch for `jobflow verify`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from jobflow.core.errors import DataError
from jobflow.core.types import Array
from jobflow.data.batches import Batches
from jobflow.data.describe import SOME
from jobflow.data.sample_order import Order
from jobflow.data.samples import Samples, Stream
from jobflow.data.table import Table
from jobflow.engine.job import Job
from jobflow.trainer.config import Loaded
from jobflow.trainer.jobs import Jobs, prepared


@contextmanager
def first_batch(loaded: Loaded) -> Iterator[tuple[Job, dict[str, Array]]]:
    """Yield the train job for one device and the arguments of its first batch, which are valid inside the block."""
    with prepared(loaded, only=("train",)) as jobs:
        jobs.session.settings.cpu_device_num = 1  # a mirrored job then takes the whole batch, which its caller divides
        with batches_of_training(jobs).start(epochs=1) as reading:
            batch = next(iter(reading))
        yield jobs.train(batch.size), {name: np.asarray(array) for name, array in batch.arguments.items()}


@contextmanager
def data_advised(loaded: Loaded, samples: Samples | Stream) -> Iterator[None]:
    """Add the command that finds all samples that cannot be read to a DataError of the block."""
    try:
        yield
    except DataError as error:
        more = f" --samples {len(samples)}" if isinstance(samples, Samples) and not isinstance(samples, Table) and len(samples) > SOME else ""
        error.args = (f"{error}. `jobflow data {loaded.files[0]}{more}` lists all samples that cannot be read", *error.args[1:])
        raise


def batches_of_training(jobs: Jobs) -> Batches:
    """Return the batches of the training samples in the order of training."""
    data, samples = jobs.config.data, jobs.mixed or jobs.samples["train"]
    order = Order(jobs.config.seed, len(samples), data.shuffle) if isinstance(samples, Samples) else None
    fields = list(jobs.trained)
    return Batches(samples, order, data.batch_size, data.drop_last, data.prefetch, fields=fields)
