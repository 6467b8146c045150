"""Rarely used modules of the job API, imported at first use."""
