"""The operations: one class each; `op` has their base class."""
