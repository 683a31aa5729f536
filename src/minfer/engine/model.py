"""A loaded model: the public face of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

import numpy as np
from numpy.typing import NDArray

from minfer.engine.batch import BatchEngine
from minfer.engine.chat_state import ChatState
from minfer.engine.context_shift import ChatContext, TurnDropper, drop_half
from minfer.engine.conversation import Conversation
from minfer.engine.conversation_file import load_conversation
from minfer.engine.default_sampling import DefaultSampling, default_sampling
from minfer.engine.generation import TextStream, close_session
from minfer.engine.options import ChatOptions, GenerateOptions, check_options, make_request
from minfer.engine.prompts import Message, Prompt, continues_text, encode_prompt, is_chat, with_prefill
from minfer.engine.results import Generation
from minfer.engine.runtime import Runtime
from minfer.engine.samplers import Samplers
from minfer.engine.samples import SampleStream
from minfer.engine.session import Session
from minfer.engine.transcript import Transcript
from minfer.engine.unpicklable import Unpicklable
from minfer.errors import ParameterError
from minfer.gguf import GGUFFile
from minfer.graph import PAGE_SIZE
from minfer.models import ModelConfig
from minfer.sampling import VocabularyOps
from minfer.text import Tokenizer
from minfer.text.messages import plain_messages


class Model(Unpicklable):
    """A model that is ready to run; made by `minfer.load`. A context manager: leaving it gives the memory back.

    Its methods may be called from several threads; steps take turns.
    """

    def __init__(
        self, file: GGUFFile, tokenizer: Tokenizer, runtime: Runtime, vocabulary_ops: VocabularyOps | None = None
    ) -> None:
        self._file = file
        self._tokenizer = tokenizer
        self._runtime = runtime
        self._samplers = Samplers(tokenizer, vocabulary_ops, default_sampling(file))
        self._closed = False

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def config(self) -> ModelConfig:
        return self._runtime.config

    @property
    def n_ctx(self) -> int:
        """How many positions a sequence may have."""
        return self._runtime.n_ctx

    @property
    def n_vocab(self) -> int:
        return self._runtime.config.n_vocab

    @property
    def name(self) -> str:
        """What the file calls the model, or its own name."""
        return self._runtime.identity.name

    @property
    def fingerprint(self) -> str:
        """Tells models apart: of the metadata, and of parts of all tensors."""
        return self._runtime.identity.fingerprint

    @property
    def default_sampling(self) -> DefaultSampling:
        """How tokens are chosen where nobody says otherwise, and who recommends it."""
        return self._samplers.defaults

    @property
    def kv_position_bytes(self) -> int:
        """Bytes that a position takes in the KV cache."""
        return self._runtime.store.position_bytes

    @property
    def kv_bytes_in_use(self) -> int:
        """Bytes of the KV cache's pages that sequences use now, finished ones that are kept for reuse included."""
        pool = self._runtime.pool
        return (pool.n_pages - pool.n_free) * PAGE_SIZE * self.kv_position_bytes

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

    def load_session(self, path: str | Path) -> Session:
        """A session that `Session.save` wrote, to go on with bit for bit; close it when done.

        Raises:
            SessionFileError: the file can't be read, is damaged, or is of another version, model or cache type.
            ContextError: it is longer than the context, or the cache has too few pages for it.
        """
        self._check_open()
        return Session.load(self._runtime, path)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """Generates an answer.

        Args:
            prompt: raw text, token ids, or a list of chat messages for the file's template.
            max_tokens: at most so many tokens (default 512); -1 sets no limit.
            stop: a string, or several, that end the answer; none of it is in the text.
            ignore_eos: go on after end-of-generation tokens, which are then part of `tokens`.
            special: parse special tokens in raw text.
            context_shift: make room when the context is full, instead of ending there: of messages, the oldest turns
                after the system prompt go; of anything else, the older half of the tokens. `stats` counts what is gone.
            template_variables: for the chat template, for example `{"enable_thinking": False}`.
            prefill: a text that the answer to messages begins with. The result holds what comes after it.
            continue_final_message: go on with the last message, which is the assistant's, instead of answering it. The
                result holds what is new.
            logprobs: the log probability of each token, and of so many of the likeliest in its place.
            temperature, top_k, top_p, min_p, ...: how tokens are drawn; `SamplingParams` explains them. Where
                they are not given, what `default_sampling` recommends for the model holds, or else a temperature of 0.8
                with top-k 40, top-p 0.95 and min-p 0.05.
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
        options = check_options(options, GenerateOptions)
        shifts = options.get("context_shift", False)
        prompt, continues = _continued(prompt, options)
        if shifts and is_chat(prompt):
            return self._stream_of_turns(prompt, continues, options)
        tokens = self._encode(prompt, continues, options)
        Session(self._runtime).check_room(len(tokens))
        request = make_request(options, self.default_sampling, tokens, continues_text=continues_text(prompt, continues))
        answer = self._samplers.answer(request)
        return TextStream(
            answer,
            lambda: self.session(reuse=tokens),
            on_end=close_session,
            make_room=drop_half if shifts else None,
            progress=options.get("progress"),
        )

    def samples(self, prompt: Prompt, n: int, **options: Unpack[GenerateOptions]) -> list[Generation]:
        """Generates n answers to one prompt together. They share its place in the cache, and it is read once.

        Sample i takes the seed `seed + i`, and is what `generate` gives for that seed. A context that is full ends the
        answers; `context_shift` is refused.

        Raises:
            ParameterError: n is not an integer of at least 1; or as `generate`.
            ContextError: as `generate`, and also if the cache has too few pages for all answers.
        """
        stream = self.stream_samples(prompt, n, **options)
        for _ in stream:
            pass
        return stream.results

    def stream_samples(self, prompt: Prompt, n: int, **options: Unpack[GenerateOptions]) -> SampleStream:
        """Like `samples`, but gives pairs of the index of an answer and its next piece, and has `results`."""
        self._check_open()
        options = check_options(options, GenerateOptions)
        if options.get("context_shift", False):
            raise ParameterError("context_shift does not go with samples, which share the cache of their prompt")
        prompt, continues = _continued(prompt, options)
        tokens = self._encode(prompt, continues, options)
        Session(self._runtime).check_room(len(tokens))
        request = make_request(options, self.default_sampling, tokens, continues_text=continues_text(prompt, continues))
        return SampleStream(self._samplers, request, n, lambda: self.session(reuse=tokens), options.get("progress"))

    def conversation(
        self,
        system: str | None = None,
        *,
        messages: Sequence[Message] = (),
        context_shift: bool = True,
        reuse: bool = True,
        **options: Unpack[ChatOptions],
    ) -> Conversation:
        """A conversation, which keeps what has been computed from turn to turn. Close it when done.

        Args:
            system: a system prompt.
            messages: what has been said before.
            context_shift: drop the oldest turns after the system prompt when the context is full. If not, an answer
                ends there, and a further question is an error.
            reuse: False computes the whole conversation anew for each answer, with the same result.
            options: for every answer; `generate` explains them.

        Raises:
            ParameterError: an unknown option, or a value out of its range.
            TemplateError: the chat template is missing, or does not take the messages.
        """
        self._check_open()
        given = [] if system is None else [{"role": "system", "content": system}]
        given += plain_messages(messages) if messages else []
        return Conversation(
            self._runtime,
            self._tokenizer,
            self._samplers,
            ChatState(tuple(given)),
            context_shift=context_shift,
            reuse=reuse,
            options=options,
        )

    def load_conversation(
        self, path: str | Path, *, reuse: bool = True, **options: Unpack[ChatOptions]
    ) -> Conversation:
        """A conversation that `Conversation.save` wrote, to go on with bit for bit. Close it when done.

        Args:
            path: the file.
            reuse: as for `conversation`.
            options: take the place of the saved ones.

        Raises:
            SessionFileError: the file can't be read, is damaged, or is of another version, model or cache type.
            ContextError: it is longer than the context, or the cache has too few pages for it.
            ParameterError: an unknown option, or a value out of its range.
        """
        self._check_open()
        options = check_options(options, ChatOptions)
        saved = load_conversation(path, self._runtime, self.default_sampling)
        # With a seed of its own, what comes next begins the random numbers anew.
        state = replace(saved.state, sampler=None) if "seed" in options else saved.state
        try:
            return Conversation(
                self._runtime,
                self._tokenizer,
                self._samplers,
                state,
                context_shift=saved.context_shift,
                reuse=reuse,
                options={**saved.options, **options},
                session=saved.session,
            )
        except BaseException:
            close_session(saved.session)
            raise

    def batch_engine(self, name: str = "model", *, max_active: int = 8, max_queued: int = 64) -> BatchEngine:
        """An engine that computes many requests together, in a thread of its own; close it before the model.

        Args:
            name: what clients call the model.
            max_active: how many sequences are computed together at most.
            max_queued: how many requests may wait.

        Raises:
            ParameterError: a value out of its range.
        """
        self._check_open()
        return BatchEngine(
            self._runtime,
            self._tokenizer,
            self._samplers,
            model_name=name,
            max_active=max_active,
            max_queued=max_queued,
        )

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

    def _stream_of_turns(self, messages: Sequence[Message], continues: bool, options: GenerateOptions) -> TextStream:
        """Answers messages, the oldest of which may go."""
        context = ChatContext(self._tokenizer, self.n_ctx, True, options.get("template_variables", {}), continues)
        fitted = context.fit(Transcript(), messages, 0)
        tokens = fitted.transcript.tokens
        request = make_request(
            options, self.default_sampling, tokens, continues_text=continues_text(messages, continues)
        )
        answer = self._samplers.answer(request)
        answer.work.n_dropped_tokens = fitted.n_dropped
        return TextStream(
            answer,
            lambda: self.session(reuse=tokens),
            on_end=close_session,
            make_room=TurnDropper(context, messages, fitted, answer),
            progress=options.get("progress"),
        )

    def _encode(self, prompt: Prompt, continues: bool, options: GenerateOptions) -> tuple[int, ...]:
        special, variables = options.get("special", False), options.get("template_variables", {})
        return encode_prompt(self._tokenizer, prompt, special=special, variables=variables, continues=continues)

    def _check_open(self) -> None:
        if self._closed:
            raise ParameterError("the model is closed")


def _continued(prompt: Prompt, options: GenerateOptions) -> tuple[Prompt, bool]:
    """The prompt with the beginning of its answer, and whether the answer goes on with its last message."""
    prefill, continues = options.get("prefill", ""), options.get("continue_final_message", False)
    if not is_chat(prompt):
        if prefill or continues:
            name = "prefill" if prefill else "continue_final_message"
            raise ParameterError(f"{name} goes with messages; any other prompt is continued as it is")
        return prompt, False
    return with_prefill(prompt, prefill), bool(prefill.strip()) or continues
