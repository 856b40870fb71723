"""Optimizers: what the server applies, with the face of torch."""
