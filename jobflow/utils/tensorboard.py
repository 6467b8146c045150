"""The namespace `flow.utils.tensorboard`: TensorBoard event files, written by the package tensorboardX."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, NoReturn, Self

from jobflow.core.errors import JobError, user_line
from jobflow.core.extras import optional
from jobflow.functional.tensor_class import Tensor


class SummaryWriter:
    """A writer of scalars, histograms, images and text with the methods of tensorboardX, which also accept tensors.

    Raises: ModuleNotFoundError with the command that installs tensorboardX.
    """

    def __init__(
        self,
        log_dir: Any = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        library = optional("tensorboardX", "utils.tensorboard.SummaryWriter")
        self._writer = library.SummaryWriter(None if log_dir is None else str(log_dir), comment, purge_step, max_queue, flush_secs, filename_suffix)

    @property
    def log_dir(self) -> str:
        """The folder of the event files."""
        return str(self._writer.logdir)

    def get_logdir(self) -> str:
        """Return the folder of the event files."""
        return self.log_dir

    def add_graph(self, model: Any, input_to_model: Any = None, verbose: bool = False, use_strict_trace: bool = True) -> NoReturn:
        """Raise JobError, because graphs of modules are not written."""
        raise JobError(f"SummaryWriter.add_graph at {user_line()}: graphs of modules are not written; export to ONNX, or print the module")

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._writer, name)
        return _with_arrays(member) if callable(member) else member

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.close()


def _with_arrays(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method so that it receives NumPy arrays instead of tensors."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        return method(*map(_array, arguments), **{name: _array(value) for name, value in named.items()})

    return call


def _array(value: Any) -> Any:
    """Return a tensor, or the tensors in a dict, list or tuple, as NumPy arrays; return another value unchanged."""
    if isinstance(value, Tensor):
        return value.detach().numpy()
    if isinstance(value, dict):
        return {name: _array(each) for name, each in value.items()}
    return type(value)(map(_array, value)) if type(value) in (list, tuple) else value
