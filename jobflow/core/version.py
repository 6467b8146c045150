"""The version of jobflow."""

__version__ = "0.1.0"

#: the names of `torch.version`: no release is built with a GPU library
debug = False
cuda: str | None = None
hip: str | None = None
xpu: str | None = None
git_version: str | None = None
