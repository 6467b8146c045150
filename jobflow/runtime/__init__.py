"""Execution of plans: devices, communicators, worlds, variables and the executor."""
