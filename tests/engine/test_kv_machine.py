"""Sequences fork, grow, are cut, lose a range, are kept and are freed in any order: a simple model says what is where.

The model knows each sequence as a list of tokens, and which store wrote each. The cache's cells hold what was stored
there last: the number of the store, and the position where it now stands. A sequence is right when its cells, read
through its pages, are of its stores at 0, 1, 2, ... Pages are right when each has exactly as many owners as there are
sequences that list it.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from minfer.engine.kv_cache import KVSequence, token_bytes
from minfer.engine.page_pool import PagePool, cells_of, pages_for
from minfer.engine.prefix_cache import PrefixCache
from minfer.errors import ContextError
from minfer.graph import PAGE_SIZE

N_PAGES = 10
N_CTX = 5 * PAGE_SIZE - 7
POSITIONS = st.integers(0, N_CTX)
INDICES = st.integers(0, 99)
MAX_SEQUENCES = 6

Text = list[tuple[int, int]]
"""Tokens, each with the number of the store that wrote it."""


class Cells:
    """For each cell the number of its store, its position, and whether the position has been changed by a shift."""

    def __init__(self) -> None:
        self.rows = np.full((N_PAGES * PAGE_SIZE, 3), -1)

    def copy_page(self, source: int, target: int) -> None:
        pages = self.rows.reshape(N_PAGES, PAGE_SIZE, 3)
        pages[target] = pages[source]

    def check_movable(self) -> None:
        pass

    def move_rows(self, sources: NDArray[np.int32], targets: NDArray[np.int32], n_positions: int) -> None:
        # One by one, in order: a target may be the source of an earlier row.
        for source, target in zip(sources, targets, strict=True):
            store, position, _ = self.rows[source]
            self.rows[target] = store, position - n_positions, 1


class KVMachine(RuleBasedStateMachine):
    """The cache beside the model."""

    @initialize(budget=st.sampled_from([0, 2, 4, N_PAGES]))
    def start(self, budget: int) -> None:
        self.pool = PagePool(N_PAGES)
        self.cells = Cells()
        self.cache = PrefixCache(self.pool, 1, budget)
        self.sequences: list[tuple[KVSequence, Text]] = []
        self.n_stores = 0
        self.token_of: list[int] = []  # by store
        self.new()
        self.append(0, 100, 0, 0)

    def pick(self, index: int) -> tuple[KVSequence, Text]:
        return self.sequences[index % len(self.sequences)]

    @rule()
    def new(self) -> None:
        self.add(KVSequence(self.pool, self.cells, N_CTX), [])

    def add(self, sequence: KVSequence, tokens: Text) -> None:
        if len(self.sequences) == MAX_SEQUENCES:
            self.end(self.n_stores, "keep")
        self.cache.watch(sequence)
        self.sequences.append((sequence, tokens))

    @rule(index=INDICES, n=st.integers(1, 150), n_spare=st.sampled_from([0, 0, 70]), token=st.integers(0, 2))
    def append(self, index: int, n: int, n_spare: int, token: int) -> None:
        sequence, tokens = self.pick(index)
        before = sequence.pages
        try:
            sequence.reserve(len(tokens) + n + n_spare)
        except ContextError:
            assert sequence.pages == before
            if len(tokens) + n + n_spare <= N_CTX:
                at = len(tokens) // PAGE_SIZE
                copies = len(tokens) % PAGE_SIZE > 0 and self.pool.is_shared(before[at])
                self.check_full(pages_for(len(tokens) + n + n_spare) - len(before) + copies)
            return
        positions = np.arange(len(tokens), len(tokens) + n, dtype=np.int32)
        stores = np.arange(self.n_stores, self.n_stores + n)
        self.n_stores += n
        self.token_of += [token] * n
        self.cells.rows[cells_of(sequence.pages, positions)] = np.stack([stores, positions, 0 * positions], axis=1)
        sequence.append([token] * n)
        tokens += [(token, store) for store in stores.tolist()]

    @rule(index=INDICES, n=st.one_of(st.none(), POSITIONS))
    def fork(self, index: int, n: int | None) -> None:
        sequence, tokens = self.pick(index)
        if n is None:
            self.add(sequence.fork(), list(tokens))
        else:
            n = min(n, len(tokens))
            self.add(sequence.fork_prefix(n), tokens[:n])

    @rule(index=INDICES, n=POSITIONS)
    def truncate(self, index: int, n: int) -> None:
        sequence, tokens = self.pick(index)
        n = min(n, len(tokens))
        sequence.truncate(n)
        del tokens[n:]

    @rule(index=INDICES, start=POSITIONS, n=st.integers(0, 100))
    def drop(self, index: int, start: int, n: int) -> None:
        sequence, tokens = self.pick(index)
        start = min(start, len(tokens))
        end = min(start + n, len(tokens))
        n_cold, before = sequence.n_cold, sequence.pages
        try:
            sequence.drop(start, end)
        except ContextError:
            assert sequence.pages == before
            written = before[start // PAGE_SIZE : pages_for(len(tokens) - (end - start))]
            self.check_full(sum(self.pool.is_shared(page) for page in written))
            return
        del tokens[start:end]
        assert sequence.n_cold in (min(n_cold, start), len(tokens))

    def check_full(self, n_wanted: int) -> None:
        """A live sequence is refused pages only if there really are too few, and none that are only kept."""
        assert self.cache.n_pages == 0
        assert n_wanted > self.pool.n_free

    @rule(index=INDICES, how=st.sampled_from(["free", "keep", "keep", "forget"]))
    def end(self, index: int, how: str) -> None:
        if len(self.sequences) > 1:
            sequence, _ = self.sequences.pop(index % len(self.sequences))
            if how == "keep":
                self.cache.keep(sequence)
            if how != "forget":  # CPython collects one that is forgotten at once
                sequence.free()

    @rule(tokens=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 150)), max_size=3))
    def find(self, tokens: list[tuple[int, int]]) -> None:
        wanted = [token for token, n in tokens for _ in range(n)]
        live = ([token for token, _ in text[: sequence.n_cold]] for sequence, text in self.sequences)
        least = max((n_common(wanted[:-1], text) for text in live), default=0) if self.cache._max_pages else 0
        found = self.cache.find(token_bytes(wanted))
        n_found = found.n_tokens
        assert least <= n_found < max(len(wanted), 1)
        sequence = KVSequence(self.pool, self.cells, N_CTX)
        sequence.adopt(found.pages, wanted[:n_found])
        assert sequence.n_cold == n_found
        stores = self.read(sequence)[:, 0].tolist()
        assert [self.token_of[store] for store in stores] == wanted[:n_found]
        self.add(sequence, list(zip(wanted[:n_found], stores, strict=True)))

    def read(self, sequence: KVSequence) -> NDArray[np.int64]:
        return self.cells.rows[cells_of(sequence.pages, np.arange(sequence.n_tokens, dtype=np.int32))]

    @invariant()
    def every_sequence_is_what_the_model_says(self) -> None:
        if not hasattr(self, "pool"):
            return
        for sequence, tokens in self.sequences:
            assert sequence.tokens == tuple(token for token, _ in tokens)
            rows = self.read(sequence)
            assert rows[:, 0].tolist() == [store for _, store in tokens]
            assert rows[:, 1].tolist() == list(range(len(tokens)))
            assert not rows[: sequence.n_cold, 2].any()

    @invariant()
    def every_page_has_as_many_owners_as_list_it(self) -> None:
        if not hasattr(self, "pool"):
            return
        n_free = self.pool.n_free
        listed = Counter(page for sequence, _ in self.sequences for page in sequence.pages)
        listed.update(self.cache._tree.pages)
        assert [self.pool.n_owners(page) for page in range(N_PAGES)] == [listed[page] for page in range(N_PAGES)]
        assert n_free == N_PAGES - len(listed)
        assert self.cache.n_pages <= self.cache._max_pages

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.sequences.clear()
            self.cache.clear()
            assert sorted(self.pool.take(N_PAGES)) == list(range(N_PAGES))


def n_common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


TestKVMachine = KVMachine.TestCase
TestKVMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None, derandomize=True)
