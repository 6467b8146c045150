"""Kernels of operations: implementations for each target, and loops compiled from expressions."""
