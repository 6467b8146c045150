"""The program of one rank as plain data, and what is checked about it before it runs."""
