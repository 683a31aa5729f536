"""One sequence being extended: what has been computed so far, and the logits after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from minfer.engine.kv_cache import KVSequence
from minfer.engine.runtime import Runtime, StepPart, check_tokens
from minfer.errors import ContextError, ParameterError

ProgressCallback = Callable[[int, int], None]
"""Called with (tokens done, tokens in all) while a prompt is read."""


class Session:
    """A sequence in the KV cache. A context manager: leaving it frees the pages."""

    def __init__(self, runtime: Runtime, sequence: KVSequence | None = None) -> None:
        self._runtime = runtime
        self._sequence = runtime.sequence() if sequence is None else sequence
        self._closed = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens whose keys and values are in the cache."""
        return self._sequence.tokens

    @property
    def n_tokens(self) -> int:
        return self._sequence.n_tokens

    @property
    def is_full(self) -> bool:
        """Whether no further token fits into the context."""
        return self.n_tokens >= self._runtime.n_ctx

    def extend(
        self, tokens: Sequence[int], *, chunk: int | None = None, progress: ProgressCallback | None = None
    ) -> NDArray[np.float32]:
        """Adds tokens, in chunks, and returns the logits f32 [n_vocab] after the last one.

        Raises:
            ParameterError: no tokens, or one that is not in the vocabulary; or the session or its model is closed.
            ContextError: they don't fit; nothing has been computed then.
        """
        (logits,) = self._extend(tokens, every_row=False, chunk=chunk, progress=progress)
        last: NDArray[np.float32] = logits[-1]
        return last

    def extend_all(self, tokens: Sequence[int], *, chunk: int | None = None) -> NDArray[np.float32]:
        """Like `extend`, but returns the logits after every one of the tokens, f32 [n_tokens, n_vocab]."""
        return np.concatenate(self._extend(tokens, every_row=True, chunk=chunk, progress=None))

    def check_room(self, n_new: int) -> None:
        """Refuses what `extend` would refuse for the number of tokens.

        Raises:
            ParameterError: no tokens.
            ContextError: more than fit, naming both numbers.
        """
        n_before, n_ctx = self.n_tokens, self._runtime.n_ctx
        if n_new == 0:
            raise ParameterError("there are no tokens to compute: the prompt is empty")
        if n_before + n_new > n_ctx:
            after = f" after the {n_before} that came before" if n_before else ""
            raise ContextError(
                f"{n_new} tokens{after} do not fit into the context of {n_ctx}; "
                "shorten the prompt, or load the model with a larger n_ctx",
                n_positions=n_before + n_new,
                n_ctx=n_ctx,
            )

    def fork(self) -> Session:
        """Another session that goes on from here by itself. Both share what has been computed so far."""
        self._check_open()
        return Session(self._runtime, self._sequence.fork())

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first tokens.

        Raises:
            ParameterError: there are not that many.
        """
        self._check_open()
        self._sequence.truncate(n_tokens)

    def close(self) -> None:
        """Gives the pages back. The session can't be used afterwards."""
        self._closed = True
        self._sequence.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _extend(
        self, tokens: Sequence[int], *, every_row: bool, chunk: int | None, progress: ProgressCallback | None
    ) -> list[NDArray[np.float32]]:
        runtime, n_new = self._runtime, len(tokens)
        self._check_open()
        self.check_room(n_new)
        check_tokens(tokens, runtime.hparams.n_vocab)
        limit = runtime.max_outputs_per_step if every_row else runtime.max_tokens_per_step
        size = limit if chunk is None else min(limit, chunk)
        n_after = self.n_tokens + n_new
        results = []
        for start in range(0, n_new, size):
            part = list(tokens[start : start + size])
            is_last = start + size >= n_new
            rows = range(len(part)) if every_row else [len(part) - 1] if is_last else []
            logits = self._step(part, n_after, rows)
            if every_row or is_last:
                results.append(logits)
            if progress is not None:
                progress(start + len(part), n_new)
        return results

    def _step(self, tokens: list[int], n_reserved: int, rows: Sequence[int]) -> NDArray[np.float32]:
        # Between two steps, others may have come to share the page that the next one writes to.
        with self._runtime.lock:
            self._check_open()
            sequence = self._sequence
            sequence.reserve(n_reserved)
            logits = self._runtime.step([StepPart(tokens, sequence.n_tokens, sequence.pages, rows)])
            sequence.append(tokens)
        return logits

    def _check_open(self) -> None:
        if self._closed:
            raise ParameterError("the session is closed")
