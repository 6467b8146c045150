"""The rendezvous service at MASTER_ADDR:MASTER_PORT, and its protocol.

The service is a separate program (main.py).  Its modules import only each other and the standard library, so it starts quickly.
"""
