"""Text and tokens: tokenizers from GGUF metadata, streams of text, chat templates.

`vocabulary` reads and checks what the file says, and `ends` knows what ends a generation; `partition` finds special
tokens in a text; `bpe` (with words cut by `pretokenizers`) and `spm` turn the rest into ids; `stream` turns ids into
text. `template/` renders chat templates from `messages`. `tokenizer` joins them.
"""

from __future__ import annotations

from minfer.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from minfer.text.stream import StreamDecoder
from minfer.text.template.chat_template import ChatTemplate
from minfer.text.template.continuation import is_continued
from minfer.text.template.given import TEMPLATE_NAMES
from minfer.text.token_types import TokenType
from minfer.text.tokenizer import GUARD, TextPiece, Tokenizer, build_tokenizer
from minfer.text.vocabulary import TokenizerModel, Vocabulary

__all__ = [
    "GUARD",
    "PRE_TOKENIZERS",
    "TEMPLATE_NAMES",
    "ChatTemplate",
    "PreTokenizer",
    "StreamDecoder",
    "TextPiece",
    "TokenType",
    "Tokenizer",
    "TokenizerModel",
    "Vocabulary",
    "build_tokenizer",
    "is_continued",
]
