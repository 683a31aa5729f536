"""Prefix reuse: a prompt begins with the keys and values of the longest beginning that is in the cache already.

They come from sequences that are alive, or from the pages that finished ones left behind. Positions that a prefix gives
hold the same bits as a cold run would compute, so that nobody can tell from the logits. Pages that are only kept in
case they are of use are given back when the budget is passed, or when a live sequence needs pages and there are no free
ones; the least recently used go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from weakref import WeakSet

from minfer.engine.kv_cache import KVSequence
from minfer.engine.page_pool import PagePool
from minfer.graph import PAGE_SIZE

DEFAULT_MAX_BYTES: Final = 512 * 2**20
_COMPARED_AT_ONCE: Final = 256


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
        self._kept: list[KVSequence] = []  # the least recently used first
        pool.when_short(self._give_back)

    @property
    def n_sequences(self) -> int:
        """Finished sequences that are kept."""
        return len(self._kept)

    @property
    def n_pages(self) -> int:
        """Pages that finished sequences keep; one that several share counts once."""
        with self._pool.lock:
            return len({page for sequence in self._kept for page in sequence.pages})

    def watch(self, sequence: KVSequence) -> None:
        """Lets other sequences begin with what this one has computed, as long as it lives."""
        with self._pool.lock:
            self._live.add(sequence)

    def find(self, tokens: Sequence[int]) -> KVSequence | None:
        """A new sequence of the longest beginning of `tokens` that is there, shared with whom it comes from; None where
        there is none. It is never all of them: the last token has to be computed for its logits."""
        with self._pool.lock:
            if self._max_pages == 0 or len(tokens) < 2:
                return None
            wanted = tuple(tokens[:-1])
            lengths = [
                (_n_common(wanted, sequence.tokens[: sequence.n_cold]), sequence)
                for sequence in (*self._kept, *self._live)
            ]
            n_tokens, source = max(lengths, key=lambda item: item[0], default=(0, None))
            if n_tokens == 0 or source is None:
                return None
            if source in self._kept:
                self._touch(source)
            return source.fork_prefix(n_tokens)

    def keep(self, sequence: KVSequence) -> None:
        """Keeps a finished sequence's pages in case they are of use. The sequence itself is still the caller's to free.

        Of one that is larger than the budget, as much of the beginning is kept as fits.
        """
        with self._pool.lock:
            n_tokens = min(sequence.n_cold, self._max_pages * PAGE_SIZE)
            tokens = sequence.tokens[:n_tokens]
            if not tokens:
                return
            for other in self._kept:
                if other.tokens[:n_tokens] == tokens:
                    self._touch(other)
                    return
            for other in [each for each in self._kept if each.tokens == tokens[: each.n_tokens]]:
                self._drop(other)
            self._kept.append(sequence.fork_prefix(n_tokens))
            while self.n_pages > self._max_pages:
                self._drop(self._kept[0])

    def clear(self) -> None:
        """Gives everything back that is kept."""
        with self._pool.lock:
            while self._kept:
                self._drop(self._kept[0])

    def _give_back(self, n_wanted: int) -> None:
        while self._kept and self._pool.n_free < n_wanted:
            self._drop(self._kept[0])

    def _touch(self, sequence: KVSequence) -> None:
        self._kept.remove(sequence)
        self._kept.append(sequence)

    def _drop(self, sequence: KVSequence) -> None:
        self._kept.remove(sequence)
        sequence.free()


def _n_common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many tokens two sequences have in common from the first on."""
    n = min(len(a), len(b))
    for start in range(0, n, _COMPARED_AT_ONCE):
        end = min(start + _COMPARED_AT_ONCE, n)
        if a[start:end] != b[start:end]:
            return next(i for i in range(start, end) if a[i] != b[i])
    return n
