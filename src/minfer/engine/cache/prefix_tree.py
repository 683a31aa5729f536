"""A radix tree of pages: which beginnings of prompts are kept, and in which pages they stand.

Every node but a root is a run of pages and the tokens of their positions, which follow the tokens of its ancestors.
Runs branch at page borders, and two children of a node differ in their first page. Tokens are compared as the bytes of
32-bit integers, so that a run is compared, and a page looked up, at once. Only the last page of a node without children
may have fewer tokens than a page holds: a tail. Each tree of nodes has a key (everything but tokens that changes the
bits of keys and values, such as adapters), and beginnings are only found under their own key.

Source: RadixAttention, Zheng et al. (2024), with the pages of Kwon et al. (2023) as the unit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from minfer.graph import PAGE_SIZE

TOKEN_BYTES: Final = 4
_PAGE_BYTES: Final = PAGE_SIZE * TOKEN_BYTES


@dataclass(eq=False, slots=True)
class _Node:
    tokens: bytes
    pages: list[int]
    parent: _Node | None
    children: dict[bytes, _Node] = field(default_factory=dict)
    """by the tokens of their first page"""

    @property
    def key(self) -> bytes:
        return self.tokens[:_PAGE_BYTES]


@dataclass(frozen=True)
class Match:
    """The longest beginning that was found."""

    pages: tuple[int, ...]
    """in the order of positions; of the last one perhaps only the first positions belong to it"""
    n_tokens: int


class PrefixTree:
    """Beginnings of token sequences, by page. It counts no owners: the caller shares the pages that `insert` names, and
    gives back those that `insert` and `evict` let go of. Not safe to use from several threads at a time."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, _Node] = {}
        # A node is used no earlier than any node below it, so that the first is always one without children.
        self._by_use: OrderedDict[_Node, None] = OrderedDict()
        self._n_pages = 0

    @property
    def n_pages(self) -> int:
        """Pages in the tree; no page stands in it twice."""
        return self._n_pages

    @property
    def pages(self) -> tuple[int, ...]:
        """The pages, those first that were used least recently."""
        return tuple(page for node in self._by_use for page in reversed(node.pages))

    def match(self, key: Hashable, tokens: bytes) -> Match:
        """The longest beginning of `tokens` that is there. Counts as a use of the runs that it is found in."""
        node = self._roots.get(key)
        if node is None:
            return Match((), 0)
        pages: list[int] = []
        n_bytes, ends = 0, False
        while not ends:
            rest = tokens[n_bytes:]
            child, n_common = _best_child(node, rest)
            if child is None:
                break
            pages += child.pages[: -(-n_common // _PAGE_BYTES)]
            n_bytes += n_common
            node, ends = child, n_common < len(child.tokens)
        self._use(node)
        return Match(tuple(pages), n_bytes // TOKEN_BYTES)

    def insert(self, key: Hashable, tokens: bytes, pages: Sequence[int]) -> tuple[list[int], list[int]]:
        """Adds a beginning, which stands in the first of `pages`. All its runs, old and new, then count as used.

        Returns the pages that are new in the tree, and those that are no longer in it, since what they hold is a part
        of a new one.
        """
        if not tokens:
            return [], []
        node = self._roots.setdefault(key, _Node(b"", [], None))
        removed: list[int] = []
        n_bytes = 0
        while n_bytes < len(tokens):
            rest = tokens[n_bytes:]
            child, n_common = _best_child(node, rest)
            if child is not None and n_common == len(rest):  # all of it is there
                node, n_bytes = child, len(tokens)
            elif child is not None and n_common >= _PAGE_BYTES:
                n_whole = n_common // _PAGE_BYTES
                if n_common == len(child.tokens):
                    removed += self._cut(child, n_whole)  # its tail, if it has one
                else:
                    child = self._split(child, n_whole)
                node, n_bytes = child, n_bytes + n_whole * _PAGE_BYTES
            else:
                for tail in [each for each in node.children.values() if rest.startswith(each.tokens)]:
                    removed += self._cut(tail, 0)
                added = list(pages[n_bytes // _PAGE_BYTES : -(-len(tokens) // _PAGE_BYTES)])
                new = _Node(rest, added, node)
                node.children[new.key] = new
                self._by_use[new] = None
                self._n_pages += len(added)
                self._use(new)
                return added, removed
        self._use(node)
        return [], removed

    def evict(self) -> int | None:
        """Takes the last page of the run that was used least recently out of the tree: its number, or None if there are
        no pages."""
        node = next(iter(self._by_use), None)
        if node is None:
            return None
        (page,) = self._cut(node, len(node.pages) - 1)
        if not self._by_use:
            self._roots.clear()
        return page

    def _use(self, node: _Node) -> None:
        step: _Node | None = node
        while step is not None and step.parent is not None:
            self._by_use.move_to_end(step)
            step = step.parent

    def _cut(self, node: _Node, n_pages: int) -> list[int]:
        """Keeps the first pages of a node, which are full ones: the pages that go. A node without pages goes, too."""
        if n_pages == len(node.pages):
            return []
        assert not node.children
        assert node.parent is not None
        gone = node.pages[n_pages:]
        self._n_pages -= len(gone)
        if n_pages == 0:
            del self._by_use[node], node.parent.children[node.key]
        else:
            del node.pages[n_pages:]
            node.tokens = node.tokens[: n_pages * _PAGE_BYTES]
        return gone

    def _split(self, node: _Node, n_pages: int) -> _Node:
        """Makes a node of the first pages of a node, which becomes its child."""
        parent = node.parent
        assert parent is not None
        border = n_pages * _PAGE_BYTES
        upper = _Node(node.tokens[:border], node.pages[:n_pages], parent)
        parent.children[upper.key] = upper
        node.tokens, node.pages, node.parent = node.tokens[border:], node.pages[n_pages:], upper
        upper.children[node.key] = node
        self._by_use[upper] = None
        return upper


def _best_child(node: _Node, tokens: bytes) -> tuple[_Node | None, int]:
    """The child that has most of the first tokens in common with `tokens`, and how many bytes of them."""
    child = node.children.get(tokens[:_PAGE_BYTES])
    if child is not None:
        return child, n_common_bytes(child.tokens, tokens)
    # None has the whole first page in common.
    best, n_best = None, 0
    for each in node.children.values():
        n_common = n_common_bytes(each.tokens, tokens[:_PAGE_BYTES], n_best)
        if n_common > n_best:
            best, n_best = each, n_common
    return best, n_best


def n_common_bytes(a: bytes | bytearray, b: bytes, n_at_least: int = 0) -> int:
    """How many bytes two token sequences have in common from the first on, in whole tokens.

    Where that is not more than `n_at_least`, which costs a single comparison, the result is 0.
    """
    low, high = n_at_least, min(len(a), len(b))
    if high <= low or not a.startswith(b[: low + TOKEN_BYTES]):
        return 0
    low += TOKEN_BYTES
    while low < high:
        middle = low + (high - low + TOKEN_BYTES) // (2 * TOKEN_BYTES) * TOKEN_BYTES
        if a.startswith(b[:middle]):
            low = middle
        else:
            high = middle - TOKEN_BYTES
    return low
