"""Data sets for programs: MNIST, or a stand-in for it where it cannot be had."""

from jobflow.data.mnist import load_mnist

__all__ = ["load_mnist"]
