"""flow.linalg: another place to find `matmul`."""

from jobflow.arrays import matmul as matmul
