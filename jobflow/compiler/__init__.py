"""From a job to the plans of its ranks: pure functions, each to a new type."""
