"""The namespace `flow.deprecated`: names that OneFlow deprecated."""

from __future__ import annotations

from typing import Any

from jobflow.core.notices import notice
from jobflow.legacy.aliases import name_scope as variable_scope

__all__ = ["delete_worker", "delete_worker_by_bootstrap", "delete_worker_of_multi_process", "init_worker", "nn", "variable_scope"]


def _workers(*arguments: Any, **options: Any) -> None:
    """Do nothing but write a notice: mpiexec starts and ends the processes."""
    notice("deprecated.init_worker and delete_worker have no effect and are ignored: mpiexec starts the processes")


init_worker = delete_worker = delete_worker_by_bootstrap = delete_worker_of_multi_process = _workers


class nn:
    """The namespace `deprecated.nn`, which contains `Module`."""

    class Module:
        """A module that counts the calls of its `forward`."""

        def __init__(self, name: str | None = None) -> None:
            self.module_name = name or type(self).__name__
            self.call_seq_no = 0

        def forward(self, *arguments: Any) -> Any:
            """Compute the output; subclasses must override this method."""
            raise NotImplementedError(f"{type(self).__name__} does not define forward; define it in the subclass")

        def __call__(self, *arguments: Any) -> Any:
            result = self.forward(*arguments)
            self.call_seq_no += 1
            return result
