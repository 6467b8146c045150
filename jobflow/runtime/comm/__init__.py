"""Communicators: collectives and transfers between ranks."""
