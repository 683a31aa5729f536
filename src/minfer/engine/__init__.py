"""The engine: loading, sequences, the decode loop."""

from minfer.engine.answer import Answer, Delta, GenerationRequest
from minfer.engine.batch import BatchEngine, BatchHandle
from minfer.engine.batch_types import (
    BatchRequest,
    EngineSnapshot,
    Event,
    EventListener,
    Failed,
    PromptLogprobs,
    PromptProgress,
    SampleDelta,
    SampleDone,
    SampleStats,
    Started,
    StepListener,
    StepReport,
)
from minfer.engine.cache_types import CACHE_TYPES, parse_cache_type, position_bytes
from minfer.engine.conversation import Conversation
from minfer.engine.default_sampling import RECOMMENDABLE, DefaultSampling, SamplingSource, default_sampling
from minfer.engine.generation import TextStream
from minfer.engine.loading import load, load_tokenizer
from minfer.engine.model import Model
from minfer.engine.options import (
    DEFAULT_MAX_TOKENS,
    ChatOptions,
    GenerateOptions,
    SamplingOptions,
    sampling_params,
)
from minfer.engine.prompts import Message, Prompt
from minfer.engine.results import FinishReason, Generation, Stats, StopCause, Work
from minfer.engine.samples import SampleStream
from minfer.engine.session import ProgressCallback, Session
from minfer.engine.thinking import AnswerPart

__all__ = [
    "CACHE_TYPES",
    "DEFAULT_MAX_TOKENS",
    "RECOMMENDABLE",
    "Answer",
    "AnswerPart",
    "BatchEngine",
    "BatchHandle",
    "BatchRequest",
    "ChatOptions",
    "Conversation",
    "DefaultSampling",
    "Delta",
    "EngineSnapshot",
    "Event",
    "EventListener",
    "Failed",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "GenerationRequest",
    "Message",
    "Model",
    "ProgressCallback",
    "Prompt",
    "PromptLogprobs",
    "PromptProgress",
    "SampleDelta",
    "SampleDone",
    "SampleStats",
    "SampleStream",
    "SamplingOptions",
    "SamplingSource",
    "Session",
    "Started",
    "Stats",
    "StepListener",
    "StepReport",
    "StopCause",
    "TextStream",
    "Work",
    "default_sampling",
    "load",
    "load_tokenizer",
    "parse_cache_type",
    "position_bytes",
    "sampling_params",
]
