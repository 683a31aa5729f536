"""Steps over sequences: from tokens and page lists to the arrays of a step, and its logits back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.engine.kv_cache import KVSequence, token_bytes
from minfer.engine.model_identity import ModelIdentity
from minfer.engine.page_pool import PagePool, cell_of, pages_for
from minfer.engine.page_store import PageStore
from minfer.engine.plan import ExecutionPlan
from minfer.engine.prefix_cache import PrefixCache
from minfer.errors import ParameterError
from minfer.graph import PAGE_SIZE, Bounds, StepInputs, Symbol
from minfer.models import ModelConfig
from minfer.trace import Observer

MAX_TOKENS_PER_STEP = 512
MAX_OUTPUTS_PER_STEP = 64
DEFAULT_N_SEQUENCES = 4
"""Sequences of full length that the cache has room for; their memory is taken from the system only as it is used."""


@dataclass(frozen=True)
class StepPart:
    """One sequence's share of a step: new tokens from `first_position` on, and the rows of them whose logits are
    wanted."""

    tokens: Sequence[int]
    first_position: int
    pages: tuple[int, ...]
    output_rows: Sequence[int]


def step_bounds(
    n_ctx: int, max_tokens_per_step: int = MAX_TOKENS_PER_STEP, n_sequences: int = DEFAULT_N_SEQUENCES
) -> Bounds:
    """The largest sizes of a step, and the size of the cache, for a context of `n_ctx`."""
    n_pages = pages_for(n_ctx) * n_sequences
    return {
        Symbol.N_TOKENS: max_tokens_per_step,
        Symbol.N_OUTPUTS: min(MAX_OUTPUTS_PER_STEP, max_tokens_per_step),
        Symbol.N_PAGES: n_pages,
        Symbol.N_CELLS: n_pages * PAGE_SIZE,
    }


def make_inputs(parts: Sequence[StepPart]) -> StepInputs:
    """The arrays of one step."""
    # Lists, since most steps have few tokens: a call of NumPy for each part and array would take longer.
    tokens: list[int] = []
    positions: list[int] = []
    cells: list[int] = []
    spans: list[int] = []
    pages: list[int] = []
    rows: list[int] = []
    for part in parts:
        rows += [len(tokens) + row for row in part.output_rows]
        tokens += part.tokens
        for position in range(part.first_position, part.first_position + len(part.tokens)):
            positions.append(position)
            cells.append(cell_of(part.pages, position))
            spans += (len(pages), position + 1)
        pages += part.pages
    return StepInputs(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        cells=np.array(cells, np.int32),
        spans=np.array(spans, np.int32).reshape(-1, 2),
        pages=np.array(pages, np.int32),
        output_rows=np.array(rows, np.int32),
    )


@dataclass(frozen=True)
class CacheUsage:
    """How full the KV cache is."""

    position_bytes: int
    """bytes that one position takes, in all layers"""
    n_pages: int
    n_used_pages: int
    """pages of live and of kept sequences; one that several share counts once"""
    n_kept_pages: int
    """pages that finished sequences keep, in case a prompt begins like them"""

    @property
    def page_bytes(self) -> int:
        return self.position_bytes * PAGE_SIZE

    @property
    def used_bytes(self) -> int:
        return self.n_used_pages * self.page_bytes

    @property
    def kept_bytes(self) -> int:
        return self.n_kept_pages * self.page_bytes

    @property
    def total_bytes(self) -> int:
        """What the cache can hold. It is taken from the system only as pages are used."""
        return self.n_pages * self.page_bytes


class Runtime:
    """A compiled model with its cache. Steps from several threads take turns."""

    def __init__(
        self,
        plan: ExecutionPlan,
        config: ModelConfig,
        n_ctx: int,
        bounds: Bounds,
        observers: Sequence[Observer],
        *,
        identity: ModelIdentity,
        prefix_cache_bytes: int = 0,
    ) -> None:
        self.config = config
        self.identity = identity
        self.n_ctx = n_ctx
        self.pool = PagePool(bounds[Symbol.N_CELLS] // PAGE_SIZE)
        self.store = PageStore(plan.kv_layers())
        self.lock = self.pool.lock
        """held while a step runs, and by whoever counts, copies or moves what is in the pages"""
        self._position_bytes = self.store.position_bytes
        self.prefix_cache = PrefixCache(self.pool, PAGE_SIZE * self._position_bytes, prefix_cache_bytes)
        self._plan = plan
        self._bounds = bounds
        self._observers = tuple(observers)
        self._closed = False

    @property
    def max_tokens_per_step(self) -> int:
        return self._bounds[Symbol.N_TOKENS]

    @property
    def max_outputs_per_step(self) -> int:
        return self._bounds[Symbol.N_OUTPUTS]

    @property
    def max_pages_per_step(self) -> int:
        """Page references: a page that is shared counts once for each sequence."""
        return self._bounds[Symbol.N_PAGES]

    def cache_usage(self) -> CacheUsage:
        """How full the KV cache is now."""
        with self.lock:
            n_pages = self.pool.n_pages
            n_used = n_pages - self.pool.n_free
            return CacheUsage(self._position_bytes, n_pages, n_used, self.prefix_cache.n_pages)

    def sequence(self, reuse: Sequence[int] = ()) -> KVSequence:
        """A new sequence. It begins with the longest prefix of the tokens `reuse` that is in the cache, and is empty if
        there is none; it never has all of them.

        Raises:
            ParameterError: a token that is not in the vocabulary.
        """
        sequence = KVSequence(self.pool, self.store, self.n_ctx)
        if reuse:
            check_tokens(reuse, self.config.n_vocab)
            wanted = token_bytes(reuse)
            with self.lock:
                found = self.prefix_cache.find(wanted)
                sequence.adopt(found.pages, reuse[: found.n_tokens])
        return sequence

    def step(self, parts: Sequence[StepPart]) -> NDArray[np.float32]:
        """Runs one step over the parts: logits f32 [n_outputs, n_vocab], in the order of the parts.

        Raises:
            ContextError: a position >= n_ctx.
            ParameterError: a token that is not in the vocabulary; or the model is closed.
        """
        for part in parts:
            check_tokens(part.tokens, self.config.n_vocab)
        inputs = make_inputs(parts)
        inputs.check(n_vocab=self.config.n_vocab, n_ctx=self.n_ctx, bounds=self._bounds)
        with self.lock:
            self.check_open()
            return self._plan.step(inputs, self._observers)

    def check_open(self) -> None:
        """Refuses to go on once the model is closed.

        Raises:
            ParameterError: it is.
        """
        if self._closed:
            raise ParameterError("the model is closed")

    def close(self) -> None:
        with self.lock:
            self._closed = True
            self.store.close()
            self._plan.close()
            for observer in self._observers:
                observer.close()


def check_tokens(tokens: Sequence[int], n_vocab: int) -> None:
    """Refuses ids that are not in the vocabulary.

    Raises:
        ParameterError: names the first one.
    """
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise ParameterError(f"token id {token} is not in the vocabulary of {n_vocab}")
