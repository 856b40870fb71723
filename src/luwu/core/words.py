"""Text for people: counts with their nouns, and text from elsewhere without control characters of a terminal."""

from __future__ import annotations


def counted(count: int, one: str, several: str = "") -> str:
    """Return a count and its noun: ``1 switch``, ``3 switches``; without ``several``, an s makes the plural."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def printable(text: str) -> str:
    """Replace characters that cannot be printed, such as those that control a terminal, in text from elsewhere.

    Each such character becomes U+FFFD. Ends of lines and tabs stay.
    """
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
