"""Worlds: the ranks of a program as this process, its threads, or MPI processes."""
