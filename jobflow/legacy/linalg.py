"""flow.linalg: another path of `matmul`."""

from jobflow.legacy.shared_names import matmul as matmul
