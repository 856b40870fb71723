"""Tokens to text as they come."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from luwu.data.tokenizer import Tokenizer

UNFINISHED = "\ufffd"
"""Character that decoders return for a letter whose last bytes have not come yet."""


class TextStream:
    """Turns tokens into text one by one.

    A token may be a part of a letter, and its text may depend on the tokens before it. So the last tokens are decoded
    again together with each new one, and what the text has grown by is given out once its last letter is whole.

    Args:
        tokenizer: tokenizer of the tokens.
        prompt: tokens before the first one; their text is not given out.
        ends: tokens that end the text; what follows one is left out, as it is itself.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], ends: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._context = list(prompt)
        self._new: list[int] = []
        self._ended = False

    def push(self, token: int) -> str:
        """Take one token, and return the text that is complete now."""
        self._ended = self._ended or token in self._ends
        if self._ended:
            return ""
        self._new.append(token)
        text = self._decoded()
        return "" if text.endswith(UNFINISHED) else self._give(text)

    def finish(self) -> str:
        """Return the rest: letters that never became complete."""
        return self._give(self._decoded())

    def _decoded(self) -> str:
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._new)[len(before) :]

    def _give(self, text: str) -> str:
        if text:
            self._context, self._new = self._new, []
        return text
