"""The pages of the KV cache, with counted owners. The bytes themselves live with the backend.

A page holds the keys and values of `PAGE_SIZE` positions, in all layers. Position p of a sequence stands in cell
`pages[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE`. Source: paged attention, Kwon et al. (2023).
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ContextError, ParameterError
from minfer.graph import PAGE_SIZE


def pages_for(n_positions: int) -> int:
    """How many pages hold that many positions."""
    return -(-n_positions // PAGE_SIZE)


def cell_of(pages: Sequence[int], position: int) -> int:
    """The cell in which a position of a sequence stands."""
    return pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE


def cells_of(pages: Sequence[int], positions: NDArray[np.int32]) -> NDArray[np.int32]:
    """The cells in which these positions of a sequence stand."""
    return np.array([cell_of(pages, position) for position in positions.tolist()], np.int32)


class PagePool:
    """Pages with counted owners: a page is free when it has none. Safe to use from several threads.

    `lock` guards the counts and what is in the pages: a step holds it while it runs, and so does whoever copies or
    moves rows. A page that is given back is thus not written by its next owner before a step that reads it has ended.
    """

    def __init__(self, n_pages: int) -> None:
        self.lock = threading.RLock()
        self._n_owners = [0] * n_pages
        self._free = list(range(n_pages))
        self.abandoned: deque[list[int]] = deque()
        """where a garbage collector puts pages to be given back, since it can't wait for the lock: they are free by the
        next `take`"""
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
        """Sets what is called with the number of free pages that are wanted, where there are fewer: it may give back
        pages that are only kept in case they are of use."""
        self._reclaim = reclaim

    def make_room(self, n_pages: int) -> None:
        """Has pages given back that are only kept in case they are of use, where fewer than `n_pages` are free. Pages
        that were shared may have a single owner afterwards."""
        with self.lock:
            self._collect()
            if n_pages > len(self._free) and self._reclaim is not None:
                self._reclaim(n_pages)

    def take(self, n_pages: int) -> list[int]:
        """Takes pages, the lowest free ones first.

        Raises:
            ContextError: there are not that many.
        """
        with self.lock:
            self.make_room(n_pages)
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

    def _collect(self) -> None:
        while self.abandoned:
            self.give_back(self.abandoned.popleft())

    def _check_owned(self, pages: Sequence[int]) -> None:
        for page in pages:
            if self._n_owners[page] == 0:
                raise ParameterError(f"page {page} is free: it was given back once too often")
