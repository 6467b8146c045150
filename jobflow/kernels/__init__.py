"""How a target runs what operations say: which implementation there is, and the loops that are made of expressions."""
