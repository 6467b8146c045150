"""The namespace `flow.hub`: PyTorch's downloads of models, which raise an error that proposes files."""

from __future__ import annotations

from typing import Any, NoReturn

from jobflow.core.errors import JobError, user_line


def _refused(what: str) -> NoReturn:
    raise JobError(
        f"hub.{what} at {user_line()}: downloads of models and their code are not supported; download the weights, and pass "
        f"flow.load(path) to load_state_dict"
    )


def load(repo_or_dir: Any, model: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise JobError, because models are not downloaded."""
    _refused("load")


def load_state_dict_from_url(url: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise JobError, because weights are not downloaded."""
    _refused("load_state_dict_from_url")


def load_url(url: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise JobError, because weights are not downloaded; the older name of `load_state_dict_from_url`."""
    _refused("load_url")


def download_url_to_file(url: Any, dst: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise JobError, because files are not downloaded."""
    _refused("download_url_to_file")


def list(github: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise JobError, because models are not downloaded."""
    _refused("list")


def help(github: Any, model: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise JobError, because models are not downloaded."""
    _refused("help")


def get_dir() -> NoReturn:
    """Raise JobError, because there is no folder of downloads."""
    _refused("get_dir")


def set_dir(d: Any) -> NoReturn:
    """Raise JobError, because there is no folder of downloads."""
    _refused("set_dir")
