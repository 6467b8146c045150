"""A small typed language for the elementwise formulas of operations, with cost, derivative, text and evaluation of expressions."""
