"""The tree of kept pages, beside a list that is searched from end to end."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.engine.cache.prefix_tree import PrefixTree, n_common_bytes
from minfer.graph import PAGE_SIZE

P = PAGE_SIZE


def key_of(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def run_of(*pieces: tuple[int, int]) -> bytes:
    """Tokens from (token, how often)."""
    return key_of(*(token for token, n in pieces for _ in range(n)))


def test_an_empty_tree_finds_nothing() -> None:
    tree = PrefixTree()
    assert tree.match(None, key_of(1, 2, 3)).n_tokens == 0
    assert tree.evict() is None


def test_whole_pages_and_a_part_of_the_next_are_found() -> None:
    tree = PrefixTree()
    assert tree.insert(None, run_of((1, P), (2, P), (3, 5)), [7, 8, 9]) == ([7, 8, 9], [])
    match = tree.match(None, run_of((1, P), (2, P), (3, 9)))
    assert (match.pages, match.n_tokens) == ((7, 8, 9), 2 * P + 5)
    match = tree.match(None, run_of((1, P), (2, 10), (4, 100)))
    assert (match.pages, match.n_tokens) == ((7, 8), P + 10)
    assert tree.match(None, run_of((2, P))).n_tokens == 0


def test_a_beginning_is_found_under_its_own_key_only() -> None:
    tree = PrefixTree()
    tree.insert("adapter", run_of((1, P)), [0])
    assert tree.match(None, run_of((1, P))).n_tokens == 0
    assert tree.match("adapter", run_of((1, P))).n_tokens == P


def test_a_longer_tail_takes_the_place_of_a_shorter_one() -> None:
    tree = PrefixTree()
    tree.insert(None, run_of((1, 5)), [0])
    assert tree.insert(None, run_of((1, 9)), [1]) == ([1], [0])
    assert tree.insert(None, run_of((1, 7)), [2]) == ([], [])
    assert tree.insert(None, run_of((1, P), (2, 1)), [3, 4]) == ([3, 4], [1])
    assert tree.insert(None, run_of((1, 9)), [5]) == ([], [])
    assert tree.n_pages == 2


def test_pages_that_are_there_stay_and_count_as_used() -> None:
    tree = PrefixTree()
    tree.insert(None, run_of((1, P), (2, P)), [0, 1])
    tree.insert(None, run_of((1, P), (3, P)), [2, 3])  # page 2 holds what page 0 holds
    tree.match(None, run_of((1, P), (2, P)))
    assert [tree.evict() for _ in range(4)] == [3, 1, 0, None]


def test_a_page_that_others_stand_on_goes_after_them() -> None:
    tree = PrefixTree()
    tree.insert(None, run_of((1, P), (2, P), (3, P)), [0, 1, 2])
    tree.insert(None, run_of((9, P)), [3])
    assert [tree.evict() for _ in range(5)] == [2, 1, 0, 3, None]


TOKENS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 3, P - 1, P])), max_size=4)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), TOKENS), max_size=12), TOKENS, st.integers(0, 20))
def test_it_finds_what_a_search_of_all_finds(
    steps: list[tuple[bool, list[tuple[int, int]]]], wanted: list[tuple[int, int]], n_evicted: int
) -> None:
    """Each page's contents are known, so that what is found can be read back; evictions take leaves only."""
    tree, next_page = PrefixTree(), 0
    contents: dict[int, bytes] = {}
    kept: list[bytes] = []
    for inserts, pieces in steps:
        tokens = run_of(*pieces)
        if not inserts:
            tree.match(None, tokens)
            continue
        starts = range(0, len(tokens), 4 * P)
        pages = [next_page + i for i in range(len(starts))]
        next_page += len(pages)
        added, removed = tree.insert(None, tokens, [*pages, -1])  # more than the tokens need
        contents |= {page: tokens[start : start + 4 * P] for page, start in zip(pages, starts, strict=True)}
        assert set(added) <= set(pages)
        assert not set(removed) & set(tree.pages)
        assert tree.n_pages == len(tree.pages)
        kept.append(tokens)
    key = run_of(*wanted)
    match = tree.match(None, key)
    n_bytes = 4 * match.n_tokens
    assert n_bytes == max((n_common_bytes(each, key) for each in kept), default=0)
    assert b"".join(contents[page] for page in match.pages)[:n_bytes] == key[:n_bytes]
    n_before = tree.n_pages
    gone = [tree.evict() for _ in range(n_evicted)]
    assert sum(page is not None for page in gone) == min(n_evicted, n_before)
    match = tree.match(None, key)
    n_bytes = 4 * match.n_tokens
    assert not set(match.pages) & set(gone)
    assert b"".join(contents[page] for page in match.pages)[:n_bytes] == key[:n_bytes]


@given(st.lists(st.integers(0, 1), max_size=200), st.lists(st.integers(0, 1), max_size=200), st.integers(0, 50))
def test_common_bytes_are_those_of_whole_tokens(a: list[int], b: list[int], n_least: int) -> None:
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert n_common_bytes(key_of(*a), key_of(*b), 4 * n_least) == (4 * n if n > n_least else 0)
