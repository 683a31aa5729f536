"""Sequences in the KV cache: which tokens they are of, and in which pages their keys and values stand.

Sequences with a common beginning share its pages; a page is copied before one of several owners writes to it.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minfer.engine.cache.prefix_tree import TOKEN_BYTES
from minfer.engine.page_pool import PagePool, cells_of, pages_for
from minfer.errors import ContextError, ParameterError
from minfer.graph import PAGE_SIZE


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Tokens as 32-bit integers, which are faster to compare and to look up than a sequence of Python's."""
    return array("i", tokens).tobytes()


class PageContents(Protocol):
    """Where the keys and values are: see `page_store.PageStore`."""

    def copy_page(self, source: int, target: int) -> None:
        """Copies the rows of a page in all layers."""
        ...

    def check_movable(self) -> None:
        """Refuses what `move_rows` can't do, with UnsupportedError."""
        ...

    def move_rows(self, sources: NDArray[np.int32], targets: NDArray[np.int32], n_positions: int) -> None:
        """Moves rows from cells to cells that are `n_positions` nearer to the beginning; keys are turned back by as
        much. Cells come in the order of positions, and a target may be the source of an earlier row."""
        ...


class KVSequence:
    """One sequence of at most `n_ctx` tokens in the cache. Made by `Runtime.sequence`.

    One that is forgotten without `free` gives its pages back when it is collected.
    """

    def __init__(self, pool: PagePool, contents: PageContents, n_ctx: int) -> None:
        self._pool = pool
        self._contents = contents
        self._n_ctx = n_ctx
        self._pages: list[int] = []
        self._tokens = bytearray()
        self._shifted_from: int | None = None
        # The interpreter holds finalisers: this one holds two lists, and not the pool. The list of pages is the very
        # one, so that it is changed in place only.
        weakref.finalize(self, pool.abandoned.append, self._pages).atexit = False

    @property
    def pages(self) -> tuple[int, ...]:
        return tuple(self._pages)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens whose keys and values are in the cache."""
        return tuple(memoryview(self._tokens).cast("i"))

    @property
    def token_bytes(self) -> bytearray:
        """The same as 32-bit integers; only to be read, and only until the sequence changes."""
        return self._tokens

    @property
    def n_tokens(self) -> int:
        return len(self._tokens) // TOKEN_BYTES

    @property
    def n_cold(self) -> int:
        """Tokens, from the first on, whose keys and values are those that a run over them alone gives."""
        return self.n_tokens if self._shifted_from is None else self._shifted_from

    def reserve(self, n_positions: int) -> None:
        """Makes sure that there are pages for that many positions in all, and that those after the last token can be
        written without another sequence noticing.

        Raises:
            ContextError: more than n_ctx, naming both numbers; or the pool has too few pages. Nothing has changed then.
        """
        if n_positions > self._n_ctx:
            raise ContextError(
                f"{n_positions} positions do not fit into the context of {self._n_ctx}",
                n_positions=n_positions,
                n_ctx=self._n_ctx,
            )
        with self._pool.lock:
            at, n_in_page = divmod(self.n_tokens, PAGE_SIZE)
            writes = n_positions > self.n_tokens and n_in_page > 0
            missing = max(0, pages_for(n_positions) - len(self._pages))
            self._pool.make_room(missing + (writes and self._pool.is_shared(self._pages[at])))
            copies = writes and self._pool.is_shared(self._pages[at])
            new = self._pool.take(missing + copies)
            if copies:
                try:
                    self._contents.copy_page(self._pages[at], new[-1])
                except BaseException:
                    self._pool.give_back(new)
                    raise
                self._pool.give_back([self._pages[at]])
                self._pages[at] = new.pop()
            self._pages += new

    def append(self, tokens: Sequence[int]) -> None:
        """Tells that the keys and values of these tokens have been stored, at the next positions.

        Raises:
            ContextError: they were not reserved.
        """
        with self._pool.lock:
            n_after = self.n_tokens + len(tokens)
            if pages_for(n_after) > len(self._pages):
                n_reserved = len(self._pages) * PAGE_SIZE
                raise ContextError(
                    f"{n_after} positions are filled, and {n_reserved} were reserved",
                    n_positions=n_after,
                    n_ctx=n_reserved,
                )
            self._tokens += token_bytes(tokens)

    def limit_cold(self, n_tokens: int) -> None:
        """Tells that a cold run would give other bits from this position on."""
        with self._pool.lock:
            if n_tokens < self.n_cold:
                self._shifted_from = n_tokens

    def adopt(self, pages: Sequence[int], tokens: Sequence[int]) -> None:
        """Begins an empty sequence with tokens whose keys and values stand in pages that have owners already."""
        with self._pool.lock:
            assert self.n_tokens == 0
            assert len(pages) == pages_for(len(tokens))
            self._pool.share(pages)
            self._pages += pages
            self._tokens += token_bytes(tokens)

    def fork(self) -> KVSequence:
        """A sequence of the same tokens that shares the pages."""
        with self._pool.lock:
            return self.fork_prefix(self.n_tokens)

    def fork_prefix(self, n_tokens: int) -> KVSequence:
        """A sequence of the first tokens that shares their pages.

        Raises:
            ParameterError: there are not that many tokens.
        """
        with self._pool.lock:
            self._check_length(n_tokens)
            other = KVSequence(self._pool, self._contents, self._n_ctx)
            other.adopt(self._pages[: pages_for(n_tokens)], self.tokens[:n_tokens])
            other._shifted_from = self._shifted_from if n_tokens > self.n_cold else None
            return other

    def truncate(self, n_tokens: int) -> None:
        """Keeps the first tokens only, and the pages that these need.

        Raises:
            ParameterError: there are not that many tokens.
        """
        with self._pool.lock:
            self._check_length(n_tokens)
            if n_tokens <= self.n_cold:
                self._shifted_from = None
            n_pages = pages_for(n_tokens)
            self._pool.give_back(self._pages[n_pages:])
            del self._pages[n_pages:]
            del self._tokens[n_tokens * TOKEN_BYTES :]

    def drop(self, start: int, end: int) -> None:
        """Takes the tokens start..end out (`end` itself stays). Those after them move to the positions that become
        free: their keys are turned by the shift, and their values stay as they are.

        If it is interrupted, the tokens before `start` are left.

        Raises:
            ParameterError: that is no range of the sequence.
            UnsupportedError: the model's keys can't be turned afterwards. Nothing has changed then.
            ContextError: the pool has too few pages to move rows out of shared ones. Nothing has changed then.
        """
        with self._pool.lock:
            if not 0 <= start <= end <= self.n_tokens:
                raise ParameterError(f"the sequence has {self.n_tokens} tokens, and {start}..{end} are to be dropped")
            if start == end:
                return
            if end < self.n_tokens:
                self._shift(start, end)
                return
            self.truncate(start)

    def _shift(self, start: int, end: int) -> None:
        self._contents.check_movable()
        n_after = self.n_tokens - (end - start)
        old, first = list(self._pages), start // PAGE_SIZE
        self._pool.make_room(len(self._shared(first, pages_for(n_after))))
        shared = self._shared(first, pages_for(n_after))
        fresh = self._pool.take(len(shared))
        new = list(old)
        for index, page in zip(shared, fresh, strict=True):
            new[index] = page
        try:
            if start % PAGE_SIZE and new[first] != old[first]:
                self._contents.copy_page(old[first], new[first])
            sources = cells_of(old, np.arange(end, self.n_tokens, dtype=np.int32))
            targets = cells_of(new, np.arange(start, n_after, dtype=np.int32))
            self._contents.move_rows(sources, targets, end - start)
        except BaseException:
            self._pool.give_back(fresh)
            self.truncate(start)
            raise
        self._shifted_from = min(self.n_cold, start)
        self._pages[:] = new[: pages_for(n_after)]
        del self._tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]
        self._pool.give_back([*(old[i] for i in shared), *old[pages_for(n_after) :]])

    def _shared(self, start: int, end: int) -> list[int]:
        """Which of a range of its pages have other owners, by index."""
        return [i for i in range(start, end) if self._pool.is_shared(self._pages[i])]

    def free(self) -> None:
        """Gives all pages back; the sequence is empty afterwards."""
        self.truncate(0)

    def _check_length(self, n_tokens: int) -> None:
        if not 0 <= n_tokens <= self.n_tokens:
            raise ParameterError(f"the sequence has {self.n_tokens} tokens, and {n_tokens} of them are asked for")
