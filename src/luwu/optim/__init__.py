"""Optimizers: torch's face of the updates that the server applies."""
