"""The rank half: the program of one rank, from its physical graph to a plan with addresses."""
