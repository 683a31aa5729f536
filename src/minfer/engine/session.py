"""One sequence being extended: what has been computed so far, and the logits after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from minfer.engine.kv_cache import KVSequence
from minfer.engine.page_pool import pages_for
from minfer.engine.runtime import Runtime, StepPart, check_tokens
from minfer.engine.session_file import load_sequence, save_sequence
from minfer.engine.unpicklable import Unpicklable
from minfer.errors import ContextError, MinferError, ParameterError

ProgressCallback = Callable[[int, int], None]
"""Called with (tokens done, tokens in all) while a prompt is read."""
_KIND: Final = "session"


class Session(Unpicklable):
    """A sequence in the KV cache. A context manager: leaving it closes it.

    Args:
        runtime: where it is computed.
        reuse: the tokens to come. The session begins with the longest prefix of them that is in the cache (`n_tokens`
            says how long it is), but never with all; the others are still to be given to `extend`.
        sequence: the sequence to go on with; the session then owns it.

    Raises:
        ParameterError: a token of `reuse` is not in the vocabulary.
    """

    _instead = "Save it to a file, and load it in the other process with the same model; fork() is a copy in this one"

    def __init__(self, runtime: Runtime, *, reuse: Sequence[int] = (), sequence: KVSequence | None = None) -> None:
        self._runtime = runtime
        self._sequence = runtime.sequence(reuse) if sequence is None else sequence
        runtime.prefix_cache.watch(self._sequence)
        self._closed = False

    @property
    def sequence(self) -> KVSequence:
        """What it has in the cache; the session owns it."""
        return self._sequence

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
        with self._runtime.lock:
            self._check_open()
            return Session(self._runtime, sequence=self._sequence.fork())

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first tokens.

        Raises:
            ParameterError: there are not that many.
        """
        with self._runtime.lock:
            self._check_open()
            self._sequence.truncate(n_tokens)

    def drop(self, start: int, end: int) -> None:
        """Forgets the tokens start..end (`end` itself stays), and moves those after them to the positions that become
        free: their keys are turned by the shift. What has been computed from the dropped tokens stays in what follows
        them, so that the logits are near to, and not the same as, those of the remaining tokens alone.

        Raises:
            ParameterError: that is no range of the tokens.
            UnsupportedError: the model's keys can't be turned afterwards.
            ContextError: the cache has too few pages to move what other sessions share.
        """
        with self._runtime.lock:
            self._check_open()
            self._sequence.drop(start, end)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes the session to a file, from which `Session.load` goes on bit for bit. A saved session or conversation
        that is there is replaced.

        Args:
            path: the file.
            overwrite: whether a file of any other kind is replaced, too.

        Raises:
            ForeignFileError: a file of another kind is there.
            SessionFileError: it can't be written there.
        """
        self._check_open()
        save_sequence(path, self._runtime, self._sequence, kind=_KIND, extra={}, overwrite=overwrite)

    @classmethod
    def load(cls, runtime: Runtime, path: str | Path) -> Session:
        """A session that was saved with the same model and cache types.

        Raises:
            SessionFileError: the file can't be read, is damaged, or is of another version, model or cache type.
            ContextError: it is longer than the context, or the cache has too few pages for it.
        """
        sequence, _ = load_sequence(path, runtime, kind=_KIND)
        return cls(runtime, sequence=sequence)

    def close(self) -> None:
        """Gives the pages back, or leaves them to the prefix cache. The session can't be used afterwards."""
        with self._runtime.lock:
            if not self._closed:
                self._closed = True
                self._runtime.prefix_cache.keep(self._sequence)
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
        self._prepare(tokens)
        limit = runtime.max_outputs_per_step if every_row else runtime.max_tokens_per_step
        size = limit if chunk is None else min(limit, chunk)
        results = []
        for start in range(0, n_new, size):
            part = list(tokens[start : start + size])
            is_last = start + size >= n_new
            rows = range(len(part)) if every_row else [len(part) - 1] if is_last else []
            with runtime.lock:
                self._check_open()
                logits = runtime.step([self._part(part, rows)])
                self._sequence.append(part)
            if every_row or is_last:
                results.append(logits)
            if progress is not None:
                progress(start + len(part), n_new)
        return results

    def _prepare(self, tokens: Sequence[int]) -> None:
        """Refuses what can't be computed, and takes the pages for the rest."""
        with self._runtime.lock:
            self._check_open()
            self.check_room(len(tokens))
            check_tokens(tokens, self._runtime.config.n_vocab)
            self._sequence.reserve(self.n_tokens + len(tokens))

    def _part(self, tokens: Sequence[int], rows: Sequence[int]) -> StepPart:
        """The session's part of a step that is taken before the lock is given up."""
        n_before, n_after = self.n_tokens, self.n_tokens + len(tokens)
        # Others may have come to share the page to write to since the pages were taken.
        self._sequence.reserve(n_after)
        return StepPart(tokens, n_before, self._sequence.pages[: pages_for(n_after)], rows)

    def _check_open(self) -> None:
        if self._closed:
            raise ParameterError("the session is closed")


@dataclass(frozen=True)
class Extension:
    """A session's share of a step that several sessions take together."""

    session: Session
    tokens: Sequence[int]
    wants_logits: bool = True


def extend_together(extensions: Sequence[Extension]) -> list[NDArray[np.float32] | None]:
    """Extends several sessions of one runtime, in one step where its limits allow that, else in as few as it takes.

    Returns, for each, the logits f32 [n_vocab] after its last token, the same bits as if it had been extended alone;
    None where they are not wanted.

    Raises:
        ParameterError: no tokens for one, or a token that is not in the vocabulary; a session that is closed, of
            another runtime, or there twice.
        ContextError: one has no room, or the cache has too few pages. Nothing has been computed then.
    """
    if not extensions:
        return []
    runtime = extensions[0].session._runtime
    if len({id(each.session) for each in extensions}) < len(extensions):
        raise ParameterError("a session can take part in a step only once")
    if any(each.session._runtime is not runtime for each in extensions):
        raise ParameterError("sessions of different models can't take a step together")
    with runtime.lock:
        try:
            for each in extensions:
                each.session._prepare(each.tokens)
        except MinferError:
            for each in extensions:
                each.session._sequence.truncate(each.session.n_tokens)
            raise
    results: list[NDArray[np.float32] | None] = [None] * len(extensions)
    left = [(index, list(each.tokens)) for index, each in enumerate(extensions)]
    while left:
        left = _take_step(runtime, extensions, left, results)
    return results


def _take_step(
    runtime: Runtime,
    extensions: Sequence[Extension],
    left: list[tuple[int, list[int]]],
    results: list[NDArray[np.float32] | None],
) -> list[tuple[int, list[int]]]:
    """One step over as many of the tokens that are left, in order, as fit: what is left after it."""
    parts: list[StepPart] = []
    taken: list[tuple[int, list[int], bool]] = []
    after: list[tuple[int, list[int]]] = []
    with runtime.lock:
        n_tokens, n_outputs = runtime.max_tokens_per_step, runtime.max_outputs_per_step
        n_pages = runtime.max_pages_per_step
        for index, tokens in left:
            session, part = extensions[index].session, tokens[:n_tokens]
            session._check_open()
            part_pages = pages_for(session.n_tokens + len(part))
            if after or not part or part_pages > n_pages or n_outputs == 0:
                after.append((index, tokens))
                continue
            ends = len(part) == len(tokens)
            has_row = ends and extensions[index].wants_logits
            parts.append(session._part(part, [len(part) - 1] if has_row else []))
            taken.append((index, part, has_row))
            n_tokens, n_pages, n_outputs = n_tokens - len(part), n_pages - part_pages, n_outputs - has_row
            if not ends:
                after.append((index, tokens[len(part) :]))
        logits = iter(runtime.step(parts))
        for index, part, has_row in taken:
            extensions[index].session._sequence.append(part)
            if has_row:
                results[index] = next(logits)
    return after
