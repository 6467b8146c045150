"""Where the examples get MNIST from."""

from __future__ import annotations

from typing import Any

import numpy as np

import jobflow as flow

Batches = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def load_data(train_batch_size: int = 100, test_batch_size: int = 100, data_format: str = "NCHW") -> tuple[Batches, Batches]:
    """((train images, train labels), (test images, test labels)), each cut into batches along its first axis."""
    return flow.data.load_mnist(train_batch_size, test_batch_size, data_format)
