"""The checks of `jobflow doctor`; those that may hang or crash run in a child process with a time limit."""
