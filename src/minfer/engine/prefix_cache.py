"""Prefix reuse: a prompt begins with the keys and values of the longest beginning that is in the cache already.

They come from sequences that are alive, or from the pages that finished ones left behind, which stand in a tree.
Positions that a prefix gives hold the same bits as a cold run would compute, so that nobody can tell from the logits.
Pages that are only kept in case they are of use are given back when the budget is passed, or when a live sequence needs
pages and there are no free ones; the least recently used go first, and the end of a sequence goes before its beginning.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakSet

from minfer.engine.cache.prefix_tree import TOKEN_BYTES, Match, PrefixTree, n_common_bytes
from minfer.engine.kv_cache import KVSequence
from minfer.engine.page_pool import PagePool, pages_for
from minfer.graph import PAGE_SIZE

DEFAULT_MAX_BYTES: Final = 512 * 2**20
_NO_ADAPTERS: Final = ()
"""The key of the tree: what changes keys and values besides tokens."""


class PrefixCache:
    """Finds prefixes and keeps finished sequences. Safe to use from several threads.

    Args:
        pool: the pages; the cache takes on to give some back when there are too few.
        page_bytes: bytes of a page.
        max_bytes: what kept sequences may use, in whole pages; 0 turns reuse off altogether.
    """

    def __init__(self, pool: PagePool, page_bytes: int, max_bytes: int) -> None:
        self._pool = pool
        self._max_pages = max_bytes // page_bytes
        self._live: WeakSet[KVSequence] = WeakSet()
        self._tree = PrefixTree()
        pool.when_short(self._give_back)

    @property
    def n_pages(self) -> int:
        """Pages that finished sequences keep; one that several share counts once."""
        return self._tree.n_pages

    def watch(self, sequence: KVSequence) -> None:
        """Lets other sequences begin with what this one has computed, as long as it lives."""
        with self._pool.lock:
            self._live.add(sequence)

    def find(self, tokens: bytes) -> Match:
        """The longest beginning of `tokens` (see `token_bytes`) that is there, perhaps of length 0. It is never all of
        them: the last token has to be computed for its logits. The caller holds the pool's lock until it has become an
        owner of the pages."""
        wanted = tokens[:-TOKEN_BYTES]
        if self._max_pages == 0 or not wanted:
            return Match((), 0)
        best = self._tree.match(_NO_ADAPTERS, wanted)
        for sequence in self._live:
            n_common = n_common_bytes(sequence.token_bytes, wanted, best.n_tokens * TOKEN_BYTES) // TOKEN_BYTES
            n_common = min(n_common, sequence.n_cold)
            if n_common > best.n_tokens:
                best = Match(sequence.pages[: pages_for(n_common)], n_common)
        return best

    def keep(self, sequence: KVSequence) -> None:
        """Keeps a finished sequence's pages in case they are of use. The sequence itself is still the caller's to free.

        Of one that is larger than the budget, as much of the beginning is kept as fits.
        """
        with self._pool.lock:
            n_tokens = min(sequence.n_cold, self._max_pages * PAGE_SIZE)
            tokens = bytes(sequence.token_bytes[: n_tokens * TOKEN_BYTES])
            added, removed = self._tree.insert(_NO_ADAPTERS, tokens, sequence.pages)
            self._pool.share(added)
            self._pool.give_back(removed)
            while self._tree.n_pages > self._max_pages:
                self._evict()

    def clear(self) -> None:
        """Gives everything back that is kept."""
        with self._pool.lock:
            while self._tree.n_pages:
                self._evict()

    def _give_back(self, n_wanted: int) -> None:
        while self._tree.n_pages and self._pool.n_free < n_wanted:
            self._evict()

    def _evict(self) -> None:
        page = self._tree.evict()
        if page is not None:
            self._pool.give_back([page])
