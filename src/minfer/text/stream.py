"""Text from a stream of tokens, whose borders need not be those of characters."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Turns token ids into text piece by piece. All pieces together are what `Tokenizer.detokenize` makes of all ids.

    Bytes are held back until they complete a character. Bytes that cannot become one turn into U+FFFD, as in
    `bytes.decode("utf-8", errors="replace")`.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], has_prefix: Callable[[int], bool] | None = None) -> None:
        """
        Args:
            token_bytes: what a token stands for; raises `TokenizerError` for an id out of range.
            has_prefix: whether a token that comes first starts with a space that is not the text's. None: none does.
        """
        self._token_bytes = token_bytes
        self._has_prefix = has_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def is_pending(self) -> bool:
        """Whether bytes are held back that begin a character."""
        return bool(self._decoder.getstate()[0])

    def push(self, token_id: int) -> str:
        """The text that this token completes; often empty."""
        data = self._token_bytes(token_id)
        if self._has_prefix is not None and data:
            if self._has_prefix(token_id):
                data = data.removeprefix(b" ")
            self._has_prefix = None
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed, or nothing."""
        return self._decoder.decode(b"", final=True)
