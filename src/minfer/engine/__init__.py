"""The engine: loading, sequences, the decode loop."""

from minfer.engine.answer import Answer, Delta, GenerationRequest
from minfer.engine.generation import TextStream
from minfer.engine.loading import CACHE_TYPES, load, load_tokenizer
from minfer.engine.model import GenerateOptions, Model
from minfer.engine.prompts import Message, Prompt
from minfer.engine.results import FinishReason, Generation, Stats, StopCause, Work
from minfer.engine.session import Session

__all__ = [
    "CACHE_TYPES",
    "Answer",
    "Delta",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "GenerationRequest",
    "Message",
    "Model",
    "Prompt",
    "Session",
    "Stats",
    "StopCause",
    "TextStream",
    "Work",
    "load",
    "load_tokenizer",
]
