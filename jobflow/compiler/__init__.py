"""The compiler: from a traced job to the plan of each rank, as pure functions, each with its own result type."""
