"""The namespace `flow.linalg`: an alias of `matmul`."""

from jobflow.legacy.shared_names import matmul as matmul
