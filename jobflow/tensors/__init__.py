"""Eager execution: tensors, gradients, and redistribution among ranks that all run the same program."""
