"""The engine: loading, sequences, the decode loop."""

from minfer.engine.answer import Answer, Delta, GenerationRequest
from minfer.engine.conversation import Conversation
from minfer.engine.generation import TextStream
from minfer.engine.loading import CACHE_TYPES, load, load_tokenizer
from minfer.engine.model import Model
from minfer.engine.options import DEFAULT_MAX_TOKENS, ChatOptions, GenerateOptions, SamplingOptions
from minfer.engine.prompts import Message, Prompt
from minfer.engine.results import FinishReason, Generation, Stats, StopCause, Work
from minfer.engine.samples import SampleStream
from minfer.engine.session import Session

__all__ = [
    "CACHE_TYPES",
    "DEFAULT_MAX_TOKENS",
    "Answer",
    "ChatOptions",
    "Conversation",
    "Delta",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "GenerationRequest",
    "Message",
    "Model",
    "Prompt",
    "SampleStream",
    "SamplingOptions",
    "Session",
    "Stats",
    "StopCause",
    "TextStream",
    "Work",
    "load",
    "load_tokenizer",
]
