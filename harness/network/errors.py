"""Errors of the kit."""

from __future__ import annotations


class NetworkError(Exception):
    """A command, a process or the wire did not do what it was asked to; the text carries its output."""


class NetworkUnavailableError(NetworkError):
    """This machine or user cannot have test networks; the text says what is missing."""
