"""The compiler: pure functions from a traced job to the plan of each rank, one per stage, each with a result type."""
