"""The operations: one class each, grouped in families; `base` says what an op is."""
