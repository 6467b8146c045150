"""Programs on ranks: storage, binding, arguments, runs and outputs. Jobs, graphs, redistribution, `verify` and `explain` use them."""
