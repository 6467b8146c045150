"""The rendezvous service at MASTER_ADDR:MASTER_PORT, and its protocol.

The service is a program of its own (main.py).  It imports nothing of jobflow but the modules of this folder, and these import each
other and the standard library only, so it starts at once.
"""
