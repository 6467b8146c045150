"""The version of jobflow."""

__version__ = "0.1.0"
