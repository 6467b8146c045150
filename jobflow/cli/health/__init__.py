"""The checks of `jobflow doctor`.

Checks that may hang or crash run in a child process with a time limit.
"""
