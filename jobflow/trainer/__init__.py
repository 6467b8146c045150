"""Training from a configuration file."""
