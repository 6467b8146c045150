"""The service at MASTER_ADDR:MASTER_PORT, and what it and the ranks say to each other.

The service is a program of its own (main.py).  It imports nothing of jobflow but the modules of this folder, and these import each
other and the standard library only, so it starts at once.
"""
