"""A small typed language of what operations compute for one element, and what is done with it."""
