"""The plan of one rank as plain data, and the checks of a plan before it runs."""
