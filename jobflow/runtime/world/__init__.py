"""Who runs the ranks: this process, its threads, or MPI."""
