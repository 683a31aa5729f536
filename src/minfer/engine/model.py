"""A loaded model: the public face of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from minfer.engine.answer import Answer, GenerationRequest
from minfer.engine.generation import TextStream
from minfer.engine.prompts import Prompt, encode_prompt, is_chat
from minfer.engine.results import Generation
from minfer.engine.runtime import Runtime
from minfer.engine.session import ProgressCallback, Session
from minfer.errors import ParameterError
from minfer.gguf import GGUFFile
from minfer.models import HParams
from minfer.sampling import Sampler, SamplingParams
from minfer.text import Tokenizer

DEFAULT_MAX_TOKENS = 512


class GenerateOptions(TypedDict, total=False):
    """The keyword arguments of `Model.generate` and `Model.stream`; their meaning and ranges: `generate`."""

    max_tokens: int
    stop: str | Sequence[str]
    ignore_eos: bool
    special: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_window: int
    logit_bias: Mapping[int, float]
    seed: int | None
    progress: ProgressCallback | None


_NOT_SAMPLING = frozenset({"max_tokens", "stop", "ignore_eos", "special", "progress"})


class Model:
    """A model that is ready to run; made by `minfer.load`. A context manager: leaving it gives the memory back.

    Its methods may be called from several threads; steps take turns.
    """

    def __init__(self, file: GGUFFile, tokenizer: Tokenizer, runtime: Runtime) -> None:
        self._file = file
        self._tokenizer = tokenizer
        self._runtime = runtime
        self._closed = False

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def hparams(self) -> HParams:
        return self._runtime.hparams

    @property
    def n_ctx(self) -> int:
        """How many positions a sequence may have."""
        return self._runtime.n_ctx

    @property
    def n_vocab(self) -> int:
        return self._runtime.hparams.n_vocab

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Token ids of a text, without BOS. With `special`, special tokens in the text are parsed as such."""
        return self._tokenizer.tokenize(text, special=special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids. Bytes that are no UTF-8 become U+FFFD."""
        return self._tokenizer.detokenize(ids)

    def logits(
        self,
        tokens: Sequence[int] | NDArray[np.integer],
        all: bool = False,  # noqa: A002
    ) -> NDArray[np.float32]:
        """The logits after the last token, f32 [n_vocab]; with `all`, after every one, f32 [n_tokens, n_vocab].

        The tokens are taken as they are: no BOS is added.

        Raises:
            ParameterError: no tokens, or one that is not in the vocabulary.
            ContextError: more tokens than n_ctx.
        """
        ids = encode_prompt(self._tokenizer, tokens)
        with self.session() as session:
            return session.extend_all(ids) if all else session.extend(ids)

    def session(self, reuse: Sequence[int] = ()) -> Session:
        """A sequence to extend token by token; close it when done.

        It is empty, or, where the tokens to come are given in `reuse`, begins with the longest prefix of them that is
        in the cache (`n_tokens` says how long that is), but never with all of them.
        """
        self._check_open()
        return Session(self._runtime, reuse=reuse)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """Generates an answer.

        Args:
            prompt: raw text, token ids, or a list of chat messages for the file's template.
            max_tokens: at most so many tokens (default 512).
            stop: a string, or several, that end the answer; none of it is in the text.
            ignore_eos: go on after end-of-generation tokens, which are then part of `tokens`.
            special: parse special tokens in raw text.
            temperature: 0 is greedy (default 0.8).
            top_k, top_p, min_p: filters (defaults 40, 0.95, 0.05; off: 0, 1, 0).
            repetition_penalty, frequency_penalty, presence_penalty: over the last `penalty_window` tokens (off by
            default). logit_bias: token id -> added to its logit; -inf bans it.
            seed: the same seed gives the same answer; by default a random one, found in `stats.seed`.
            progress: called with (tokens read, tokens in all) while the prompt is read.

        Raises:
            ParameterError: an unknown option, or a value out of its range.
            ContextError: the prompt is longer than the context; nothing has been computed then.
            TemplateError: messages, and the chat template is missing or fails.
        """
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.result

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> TextStream:
        """Like `generate`, but gives the answer piece by piece: an iterator of strings with a `result`."""
        self._check_open()
        unknown = sorted(set(options) - set(GenerateOptions.__annotations__))
        if unknown:
            known = ", ".join(GenerateOptions.__annotations__)
            raise ParameterError(f"unknown option {', '.join(unknown)}; known: {known}")
        stop = options.get("stop", ())
        sampling = {name: value for name, value in options.items() if name not in _NOT_SAMPLING}
        request = GenerationRequest(
            prompt_tokens=encode_prompt(self._tokenizer, prompt, special=options.get("special", False)),
            sampling=SamplingParams(**sampling),  # type: ignore[arg-type]  # it checks each value itself
            max_tokens=options.get("max_tokens", DEFAULT_MAX_TOKENS),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=options.get("ignore_eos", False),
            continues_text=not is_chat(prompt),
        )
        Session(self._runtime).check_room(len(request.prompt_tokens))
        answer = Answer(self._tokenizer, Sampler(request.sampling, self.n_vocab), request)
        return TextStream(answer, self.session, progress=options.get("progress"))

    def close(self) -> None:
        """Gives memory and the file back. The model can't be used afterwards."""
        if not self._closed:
            self._closed = True
            self._runtime.close()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ParameterError("the model is closed")
