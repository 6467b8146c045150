"""A stand-in that griffe loads; scripts/site/public_objects.py puts the public names into it."""
