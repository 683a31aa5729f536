"""Rows in memory to columns and back: queries become lanes, and lanes become rows of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minfer.simd import Kernel, Value, i64

_MOST_AT_ONCE = 8


def load_columns(k: Kernel, rows: Value, stride: int, n_rows: Value, width: int, to: Value, lanes: int) -> None:
    """to[d][i] = rows[i][d], for row i at `rows + i * stride` (f32). Lanes from `n_rows` on repeat the last row."""
    size = min(lanes, _MOST_AT_ONCE)
    starts = [rows + k.minimum(n_rows - 1, i) * stride for i in range(lanes)]

    def block(d: Value, n: int) -> None:
        mask = None if n == size else k.first_lanes(n, size)
        pieces = [k.load(start + d, size, mask=mask) for start in starts]
        squares = [_transpose(k, pieces[i : i + size]) for i in range(0, lanes, size)]
        for column in range(n):
            for i, square in enumerate(squares):
                k.store(to + (d + column) * lanes + i * size, square[column])

    _in_blocks(k, width, size, block)


def store_rows(k: Kernel, columns: Value, lanes: int, width: int, n_rows: Value, to: Value, stride: int) -> None:
    """to[i][d] = columns[d][i] for the first `n_rows` lanes; row i goes to `to + i * stride` (f32)."""
    size = min(lanes, _MOST_AT_ONCE)

    def block(d: Value, n: int) -> None:
        for first in range(0, lanes, size):
            # Columns beyond the last one are not there to be read: it stands in for them, and is not stored.
            pieces = [k.load(columns + (d + min(c, n - 1)) * lanes + first, size) for c in range(size)]
            mask = None if n == size else k.first_lanes(n, size)
            for i, row in enumerate(_transpose(k, pieces)):
                at = to + (first + i) * stride + d
                with k.if_(n_rows > first + i):
                    k.store(at, row, mask=mask)

    _in_blocks(k, width, size, block)


def _in_blocks(k: Kernel, width: int, size: int, block: Callable[[Value, int], None]) -> None:
    n_whole = width // size * size
    with k.loop(0, n_whole, size) as d:
        block(d, size)
    if n_whole < width:
        block(k.const(i64, n_whole), width - n_whole)


def _transpose(k: Kernel, rows: Sequence[Value]) -> list[Value]:
    """The columns of a square of 2**n rows: the halves are woven into each other n times."""
    n = len(rows)
    low = [lane // 2 + n * (lane % 2) for lane in range(n)]
    high = [index + n // 2 for index in low]
    result = list(rows)
    for _ in range(n.bit_length() - 1):
        # Weaving row i with row i + n/2 brings what belongs together next to each other.
        result = [k.shuffle(result[i], half, result[i + n // 2]) for i in range(n // 2) for half in (low, high)]
    return result
