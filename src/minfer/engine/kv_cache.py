"""The KV cache's bookkeeping: which pages belong to which sequence. The bytes themselves live with the backend.

A page holds the keys and values of `PAGE_SIZE` positions, in all layers. Position p of a sequence stands in cell
`pages[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE`.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ContextError
from minfer.graph import PAGE_SIZE


def pages_for(n_positions: int) -> int:
    """How many pages hold that many positions."""
    return -(-n_positions // PAGE_SIZE)


class PagePool:
    """The free pages of a cache. Safe to use from several threads."""

    def __init__(self, n_pages: int) -> None:
        self._n_pages = n_pages
        self._free = list(range(n_pages - 1, -1, -1))
        self._lock = threading.Lock()

    @property
    def n_pages(self) -> int:
        return self._n_pages

    @property
    def n_free(self) -> int:
        return len(self._free)

    def take(self, n_pages: int) -> list[int]:
        """Takes pages, the lowest free ones first.

        Raises:
            ContextError: there are not that many.
        """
        with self._lock:
            if n_pages > len(self._free):
                used = self._n_pages - len(self._free)
                raise ContextError(
                    f"the KV cache is full: other sequences use {used} of its {self._n_pages} pages of {PAGE_SIZE} "
                    f"positions, and {n_pages} more are needed",
                    n_positions=(used + n_pages) * PAGE_SIZE,
                    n_ctx=self._n_pages * PAGE_SIZE,
                )
            return [self._free.pop() for _ in range(n_pages)]

    def give_back(self, pages: list[int]) -> None:
        with self._lock:
            self._free.extend(pages)
            self._free.sort(reverse=True)


class KVSequence:
    """The pages of one sequence of at most `n_ctx` positions."""

    def __init__(self, pool: PagePool, n_ctx: int) -> None:
        self._pool = pool
        self._n_ctx = n_ctx
        self._pages: list[int] = []
        self.n_positions = 0
        """positions that are filled"""

    @property
    def pages(self) -> tuple[int, ...]:
        return tuple(self._pages)

    def reserve(self, n_positions: int) -> None:
        """Makes sure that there are pages for that many positions in all.

        Raises:
            ContextError: more than n_ctx, naming both numbers; or the pool has too few pages.
        """
        if n_positions > self._n_ctx:
            raise ContextError(
                f"{n_positions} positions do not fit into the context of {self._n_ctx}",
                n_positions=n_positions,
                n_ctx=self._n_ctx,
            )
        missing = pages_for(n_positions) - len(self._pages)
        if missing > 0:
            self._pages += self._pool.take(missing)

    def free(self) -> None:
        """Gives all pages back; the sequence is empty afterwards."""
        self._pool.give_back(self._pages)
        self._pages = []
        self.n_positions = 0


def cells_of(pages: tuple[int, ...], positions: NDArray[np.int32]) -> NDArray[np.int32]:
    """The cells in which these positions of a sequence stand."""
    return np.asarray(pages, np.int32)[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
