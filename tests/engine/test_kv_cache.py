"""Pages: taken, shared, copied before they are written, given back, and never counted wrong."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from minfer.engine.kv_cache import KVSequence
from minfer.engine.page_pool import PagePool, cells_of, pages_for
from minfer.errors import ContextError, ParameterError


class Copies:
    """Notes which pages were copied."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def copy_page(self, source: int, target: int) -> None:
        self.made.append((source, target))


def filled(pool: PagePool, n_tokens: int, contents: Copies | None = None, n_ctx: int = 256) -> KVSequence:
    sequence = KVSequence(pool, contents or Copies(), n_ctx)
    sequence.reserve(n_tokens)
    sequence.append(range(n_tokens))
    return sequence


@pytest.mark.parametrize(("n_positions", "n_pages"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_pages_for(n_positions: int, n_pages: int) -> None:
    assert pages_for(n_positions) == n_pages


def test_a_position_stands_in_its_page() -> None:
    cells = cells_of((5, 2), np.array([0, 63, 64, 127], np.int32))
    assert cells.tolist() == [320, 383, 128, 191]


def test_sequences_take_pages_as_they_grow_and_give_them_back() -> None:
    pool = PagePool(4)
    first, second = filled(pool, 1), filled(pool, 65)
    first.reserve(64)
    assert (first.pages, second.pages, pool.n_free) == ((0,), (1, 2), 1)
    first.reserve(65)
    assert (first.pages, pool.n_free) == ((0, 3), 0)
    second.free()
    assert (second.pages, second.tokens, pool.n_free) == ((), (), 2)
    first.free()
    assert pool.n_free == 4


def test_more_than_n_ctx_is_refused_with_both_numbers() -> None:
    pool = PagePool(4)
    with pytest.raises(ContextError, match=r"101 positions .* context of 100") as caught:
        filled(pool, 101, n_ctx=100)
    assert (caught.value.n_positions, caught.value.n_ctx) == (101, 100)
    assert pool.n_free == 4


def test_a_full_pool_is_refused_and_loses_nothing() -> None:
    pool = PagePool(3)
    first = filled(pool, 128)
    with pytest.raises(ContextError, match="other sequences use 2 of its 3 pages"):
        filled(pool, 128)
    assert pool.n_free == 1
    assert first.pages == (0, 1)
    filled(pool, 64)


def test_only_what_is_reserved_can_be_filled() -> None:
    sequence = filled(PagePool(3), 60)
    sequence.append([1] * 4)
    with pytest.raises(ContextError, match="65 positions are filled, and 64 were reserved"):
        sequence.append([1])
    assert sequence.n_tokens == 64


def test_a_fork_shares_the_pages_and_copies_the_last_before_it_writes_to_it() -> None:
    pool, copies = PagePool(8), Copies()
    first = filled(pool, 100, copies)
    second = first.fork()
    assert (second.tokens, second.pages, pool.n_free) == (first.tokens, (0, 1), 6)
    second.reserve(101)
    assert (second.pages, copies.made) == ((0, 2), [(1, 2)])
    first.reserve(101)  # nobody else has its last page any more
    assert (first.pages, copies.made) == ((0, 1), [(1, 2)])
    first.free()
    assert pool.n_free == 6
    second.free()
    assert pool.n_free == 8


def test_no_copy_where_nothing_is_written_or_the_last_page_is_full() -> None:
    pool, copies = PagePool(8), Copies()
    first = filled(pool, 128, copies)
    second = first.fork()
    second.reserve(128)
    second.reserve(129)
    assert (second.pages, copies.made) == ((0, 1, 2), [])
    third = second.fork_prefix(70)
    third.reserve(70)
    assert (third.pages, copies.made) == ((0, 1), [])


def test_reserved_pages_are_not_shared_but_the_last_filled_one_is_still_copied() -> None:
    pool, copies = PagePool(8), Copies()
    first = filled(pool, 10, copies)
    first.reserve(100)
    second = first.fork()
    assert (first.pages, second.pages) == ((0, 1), (0,))
    first.reserve(100)
    assert (first.pages, copies.made) == ((2, 1), [(0, 2)])


def test_a_prefix_can_be_forked_and_a_sequence_cut() -> None:
    pool = PagePool(8)
    first = filled(pool, 200)
    prefix = first.fork_prefix(65)
    assert (prefix.tokens, prefix.pages) == (tuple(range(65)), (0, 1))
    first.truncate(64)
    assert (first.tokens, first.pages, pool.n_free) == (tuple(range(64)), (0,), 6)
    prefix.truncate(0)
    assert (prefix.pages, pool.n_free) == ((), 7)
    for ask in (first.truncate, first.fork_prefix):
        for n_tokens in (-1, 65):
            with pytest.raises(ParameterError, match=f"has 64 tokens, and {n_tokens} of them"):
                ask(n_tokens)


def test_too_few_pages_for_a_copy_change_nothing() -> None:
    pool, copies = PagePool(2), Copies()
    first = filled(pool, 100, copies)
    second = first.fork()
    with pytest.raises(ContextError):
        second.reserve(101)
    assert (second.pages, second.n_tokens, copies.made) == ((0, 1), 100, [])
    first.free()
    second.reserve(101)
    assert (second.pages, copies.made) == ((0, 1), [])


def test_a_copy_that_fails_loses_no_page() -> None:
    class Failing(Copies):
        def copy_page(self, source: int, target: int) -> None:
            raise KeyboardInterrupt

    pool = PagePool(8)
    first = filled(pool, 100, Failing())
    second = first.fork()
    with pytest.raises(KeyboardInterrupt):
        second.reserve(200)
    first.free()
    second.free()
    assert pool.n_free == 8


def test_a_forgotten_sequence_gives_its_pages_back() -> None:
    pool = PagePool(2)
    first = filled(pool, 100)
    second = first.fork()
    del first
    gc.collect()
    assert pool.n_free == 0
    assert second.n_tokens == 100
    del second
    gc.collect()
    assert pool.take(2) == [0, 1]


def test_a_page_is_not_given_back_or_shared_while_it_is_free() -> None:
    pool = PagePool(2)
    (page,) = pool.take(1)
    pool.give_back([page])
    for change in (pool.give_back, pool.share):
        with pytest.raises(ParameterError, match=f"page {page} is free"):
            change([page])
    assert pool.n_free == 2


def test_what_is_only_kept_is_reclaimed_when_the_pool_is_short() -> None:
    pool = PagePool(3)
    kept = filled(pool, 128)
    asked: list[int] = []

    def reclaim(n_wanted: int) -> None:
        asked.append(n_wanted)
        kept.free()

    pool.when_short(reclaim)
    assert pool.take(1) == [2]
    assert asked == []
    assert pool.take(2) == [0, 1]
    assert asked == [2]
    with pytest.raises(ContextError):
        pool.take(1)
