"""flow.linalg: another place to find `matmul`."""

from jobflow.legacy.arrays import matmul as matmul
