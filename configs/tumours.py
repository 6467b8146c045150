"""Samples for wide_deep.yaml: a function of one's own that gives a dict of arrays, with a row for each sample.

569 tumours (Wolberg, Street and Mangasarian, Wisconsin, 1995; they come with scikit-learn), each with 30 measurements, benign or not.

    numbers   float32[30]   (measurement - mean) / deviation
    bins      int32[30]     16 measurement + q: which sixteenth of the training samples it falls among
    crosses   int32[45]     256 pair + 16 q_i + q_j for each pair i < j of the first ten measurements, the means over a tumour's cells
    labels    int32         1 for benign
"""

from itertools import combinations

import numpy as np
from sklearn.datasets import load_breast_cancer

BINS = 16
CROSSED = 10


def samples(split):
    """Every fifth sample is for validation; means, deviations and bins are those of the training samples."""
    if split not in ("train", "validation"):
        raise ValueError(f'split is {split!r}; it is "train" or "validation"')
    measured, labels = load_breast_cancer(return_X_y=True)
    held_out = np.arange(len(labels)) % 5 == 0
    training = measured[~held_out]
    edges = np.quantile(training, np.arange(1, BINS) / BINS, axis=0)
    quantiles = np.stack([np.searchsorted(edges[:, i], measured[:, i]) for i in range(measured.shape[1])], axis=1)
    pairs = [quantiles[:, i] * BINS + quantiles[:, j] for i, j in combinations(range(CROSSED), 2)]
    arrays = {
        "crosses": np.stack(pairs, axis=1) + BINS**2 * np.arange(len(pairs)),
        "bins": quantiles + BINS * np.arange(measured.shape[1]),
        "numbers": (measured - training.mean(0)) / training.std(0),
        "labels": labels,
    }
    chosen = held_out if split == "validation" else ~held_out
    return {name: array[chosen].astype(np.float32 if name == "numbers" else np.int32) for name, array in arrays.items()}
