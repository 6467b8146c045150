"""The operations: one class per operation, derived from `op.Op`."""
