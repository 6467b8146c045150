"""The layout half: the layout of every value, and the communication where layouts differ."""
