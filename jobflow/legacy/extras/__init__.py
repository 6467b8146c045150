"""Rarely used parts of the job API, imported on first use."""
