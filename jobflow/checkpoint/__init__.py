"""`flow.checkpoint`: the variables of the session, saved and read; `store` is the format underneath."""

from jobflow.checkpoint.session_variables import get, save

__all__ = ["get", "save"]
