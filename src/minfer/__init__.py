"""minfer: a local LLM inference engine in Python, kernels included.

    import minfer

    with minfer.load() as model:
        print(model.generate([{"role": "user", "content": "Hello!"}], max_tokens=100).text)

Exceptions are in `minfer.errors`; all derive from `MinferError`.
"""

from minfer.engine import (
    Conversation,
    Delta,
    FinishReason,
    Generation,
    Model,
    SampleStream,
    Session,
    Stats,
    StopCause,
    TextStream,
    load,
    load_tokenizer,
)
from minfer.errors import MinferError
from minfer.text import Tokenizer
from minfer.version import __version__

__all__ = [
    "Conversation",
    "Delta",
    "FinishReason",
    "Generation",
    "MinferError",
    "Model",
    "SampleStream",
    "Session",
    "Stats",
    "StopCause",
    "TextStream",
    "Tokenizer",
    "__version__",
    "load",
    "load_tokenizer",
]
