"""The job API: the names, defaults and conventions of OneFlow v0.2-v0.4 over the common core."""
