"""The namespace `experimental.scope`: `config` sets pipeline stages and rematerialization."""

from jobflow.core.scope import config

__all__ = ["config"]
