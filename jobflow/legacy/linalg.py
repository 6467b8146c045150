"""flow.linalg: another place to find `matmul`."""

from jobflow.legacy.shared_names import matmul as matmul
