"""Pages: taken, given back, and never counted wrong."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.engine.kv_cache import KVSequence, PagePool, cells_of, pages_for
from minfer.errors import ContextError


@pytest.mark.parametrize(("n_positions", "n_pages"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_pages_for(n_positions: int, n_pages: int) -> None:
    assert pages_for(n_positions) == n_pages


def test_a_position_stands_in_its_page() -> None:
    cells = cells_of((5, 2), np.array([0, 63, 64, 127], np.int32))
    assert cells.tolist() == [320, 383, 128, 191]


def test_sequences_take_pages_as_they_grow_and_give_them_back() -> None:
    pool = PagePool(4)
    first, second = KVSequence(pool, 256), KVSequence(pool, 256)
    first.reserve(1)
    second.reserve(65)
    first.reserve(64)
    assert (first.pages, second.pages, pool.n_free) == ((0,), (1, 2), 1)
    first.reserve(65)
    assert (first.pages, pool.n_free) == ((0, 3), 0)
    second.free()
    assert (second.pages, pool.n_free) == ((), 2)
    first.free()
    assert pool.n_free == 4


def test_more_than_n_ctx_is_refused_with_both_numbers() -> None:
    pool = PagePool(4)
    sequence = KVSequence(pool, 100)
    with pytest.raises(ContextError, match=r"101 positions .* context of 100") as caught:
        sequence.reserve(101)
    assert (caught.value.n_positions, caught.value.n_ctx) == (101, 100)
    assert pool.n_free == 4


def test_a_full_pool_is_refused_and_loses_nothing() -> None:
    pool = PagePool(3)
    first, second = KVSequence(pool, 256), KVSequence(pool, 256)
    first.reserve(128)
    with pytest.raises(ContextError, match="other sequences use 2 of its 3 pages"):
        second.reserve(128)
    assert pool.n_free == 1
    second.reserve(64)
    assert pool.n_free == 0
