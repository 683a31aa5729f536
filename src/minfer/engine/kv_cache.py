"""The KV cache's bookkeeping: which pages belong to which sequences. The bytes themselves live with the backend.

A page holds the keys and values of `PAGE_SIZE` positions, in all layers. Position p of a sequence stands in cell
`pages[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE`. Sequences with a common beginning share its pages; a page is copied
before one of several owners writes to it. Source: paged attention, Kwon et al. (2023).
"""

from __future__ import annotations

import heapq
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ContextError, ParameterError
from minfer.graph import PAGE_SIZE


def pages_for(n_positions: int) -> int:
    """How many pages hold that many positions."""
    return -(-n_positions // PAGE_SIZE)


def cells_of(pages: Sequence[int], positions: NDArray[np.int32]) -> NDArray[np.int32]:
    """The cells in which these positions of a sequence stand."""
    return np.asarray(pages, np.int32)[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE


class PagePool:
    """Pages with counted owners: a page is free when it has none. Safe to use from several threads.

    `lock` guards the counts and what is in the pages: a step holds it while it runs, and so does whoever copies or
    moves rows. A page that is given back is thus not written by its next owner before a step that reads it has ended.
    """

    def __init__(self, n_pages: int) -> None:
        self.lock = threading.RLock()
        self._n_owners = [0] * n_pages
        self._free = list(range(n_pages))
        self._abandoned: deque[list[int]] = deque()
        self._reclaim: Callable[[int], object] | None = None

    @property
    def n_pages(self) -> int:
        return len(self._n_owners)

    @property
    def n_free(self) -> int:
        with self.lock:
            self._collect()
            return len(self._free)

    def is_shared(self, page: int) -> bool:
        """Whether a page has several owners."""
        return self._n_owners[page] > 1

    def n_owners(self, page: int) -> int:
        return self._n_owners[page]

    def when_short(self, reclaim: Callable[[int], object]) -> None:
        """Sets what `take` calls with the number of free pages that it wants, where there are fewer: it may give back
        pages that are only kept in case they are of use."""
        self._reclaim = reclaim

    def take(self, n_pages: int) -> list[int]:
        """Takes pages, the lowest free ones first.

        Raises:
            ContextError: there are not that many.
        """
        with self.lock:
            self._collect()
            if n_pages > len(self._free) and self._reclaim is not None:
                self._reclaim(n_pages)
            if n_pages > len(self._free):
                used = self.n_pages - len(self._free)
                raise ContextError(
                    f"the KV cache is full: other sequences use {used} of its {self.n_pages} pages of {PAGE_SIZE} "
                    f"positions, and {n_pages} more are needed",
                    n_positions=(used + n_pages) * PAGE_SIZE,
                    n_ctx=self.n_pages * PAGE_SIZE,
                )
            pages = [heapq.heappop(self._free) for _ in range(n_pages)]
            for page in pages:
                self._n_owners[page] = 1
            return pages

    def share(self, pages: Sequence[int]) -> None:
        """Adds an owner to pages that have one.

        Raises:
            ParameterError: a page is free.
        """
        with self.lock:
            self._check_owned(pages)
            for page in pages:
                self._n_owners[page] += 1

    def give_back(self, pages: Sequence[int]) -> None:
        """Takes an owner from pages; those that have no other are free.

        Raises:
            ParameterError: a page is free already.
        """
        with self.lock:
            self._check_owned(pages)
            for page in pages:
                self._n_owners[page] -= 1
                if self._n_owners[page] == 0:
                    heapq.heappush(self._free, page)

    def abandon(self, pages: list[int]) -> None:
        """Gives pages back without waiting for the lock, as a garbage collector must: they are free by the next
        `take`."""
        self._abandoned.append(pages)

    def _collect(self) -> None:
        while self._abandoned:
            self.give_back(self._abandoned.popleft())

    def _check_owned(self, pages: Sequence[int]) -> None:
        for page in pages:
            if self._n_owners[page] == 0:
                raise ParameterError(f"page {page} is free: it was given back once too often")


class PageContents(Protocol):
    """Where the keys and values are: see `page_store.PageStore`."""

    def copy_page(self, source: int, target: int) -> None:
        """Copies the rows of a page in all layers."""
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
        self._tokens: list[int] = []
        self._shifted_from: int | None = None
        # It holds the very list, so that is changed in place only.
        weakref.finalize(self, pool.abandon, self._pages).atexit = False

    @property
    def pages(self) -> tuple[int, ...]:
        return tuple(self._pages)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens whose keys and values are in the cache."""
        return tuple(self._tokens)

    @property
    def n_tokens(self) -> int:
        return len(self._tokens)

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
            copies = n_positions > self.n_tokens and n_in_page > 0 and self._pool.is_shared(self._pages[at])
            missing = max(0, pages_for(n_positions) - len(self._pages))
            if missing + copies == 0:
                return
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
            self._tokens += tokens

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
            shared = self._pages[: pages_for(n_tokens)]
            self._pool.share(shared)
            other._pages += shared
            other._tokens += self._tokens[:n_tokens]
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
            del self._tokens[n_tokens:]

    def free(self) -> None:
        """Gives all pages back; the sequence is empty afterwards."""
        self.truncate(0)

    def _check_length(self, n_tokens: int) -> None:
        if not 0 <= n_tokens <= self.n_tokens:
            raise ParameterError(f"the sequence has {self.n_tokens} tokens, and {n_tokens} of them are asked for")
