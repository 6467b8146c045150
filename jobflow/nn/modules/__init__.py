"""Modules of `jobflow.nn`; the functions beside them, of the job face, are in the folder above."""
