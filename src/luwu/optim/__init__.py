"""Optimizers: torch's interface to the updates that the server applies."""
