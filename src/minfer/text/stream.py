"""Text from a stream of tokens, whose borders need not be those of characters."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Turns token ids into text piece by piece. All pieces together are what `Tokenizer.detokenize` makes of all ids.

    Bytes are held back until they complete a character. Bytes that cannot become one turn into U+FFFD, as in
    `bytes.decode("utf-8", errors="replace")`.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, drop_leading_space: bool) -> None:
        """
        Args:
            token_bytes: what a token stands for; raises `TokenizerError` for an id out of range.
            drop_leading_space: whether one space at the very start is the tokenizer's, and not the text's.
        """
        self._token_bytes = token_bytes
        self._drop_leading_space = drop_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; often empty."""
        data = self._token_bytes(token_id)
        if self._drop_leading_space and data:
            self._drop_leading_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed, or nothing. Then starts anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
