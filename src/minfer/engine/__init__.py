"""The engine: loading, sequences, the decode loop."""

from minfer.engine.generation import TextStream
from minfer.engine.loading import CACHE_TYPES, load, load_tokenizer
from minfer.engine.model import GenerateOptions, Model
from minfer.engine.prompts import Message, Prompt
from minfer.engine.results import FinishReason, Generation, Stats, StopCause
from minfer.engine.session import Session

__all__ = [
    "CACHE_TYPES",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "Message",
    "Model",
    "Prompt",
    "Session",
    "Stats",
    "StopCause",
    "TextStream",
    "load",
    "load_tokenizer",
]
