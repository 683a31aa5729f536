"""How panels are shared out."""

from __future__ import annotations

import pytest

from minfer.backends.cpu.ops.matmul.entries import even_share


@pytest.mark.parametrize(("n_panels", "n_threads", "most"), [(36, 2, 28), (96, 2, 14), (56, 3, 18), (560, 16, 5)])
def test_all_threads_get_as_much(n_panels: int, n_threads: int, most: int) -> None:
    share = even_share(n_panels, n_threads, most)
    n_chunks = -(-n_panels // share)
    busiest = -(-n_chunks // n_threads) * share
    assert 1 <= share <= most
    assert busiest <= 1.1 * n_panels / n_threads
    assert n_chunks >= 2 * n_threads


@pytest.mark.parametrize("most", [0, 1])
def test_a_chunk_has_at_least_one_panel(most: int) -> None:
    assert even_share(7, 2, most) == 1


def test_one_thread_takes_as_much_as_it_may() -> None:
    assert even_share(1000, 1, 20) == 20
