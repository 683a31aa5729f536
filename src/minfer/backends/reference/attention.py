"""Attention over the positions that each token sees, and nothing else.

For token t and query head h, with KV head g = h // (n_heads // n_kv_heads):
    w = softmax_j(scale * q[t, h] . k[j, g]),  y[t, h] = sum_j w[j] v[j, g]
or softmax_j(c tanh(scale * q[t, h] . k[j, g] / c)) with a soft-cap c, where j runs over the token's window (see
`ops.Attention`). The cells outside are never looked at, so that whatever they hold, NaN included, contributes nothing,
and neighbours in the batch change nothing. All in float64; the maximum is subtracted before exp, and the sum normalises
once. Each token is reduced alone, in shapes that depend on its window only.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from minfer.backends.reference.operands import Array32, Array64, Indices, Kernels, Region
from minfer.graph import PAGE_SIZE
from minfer.graph.ops import Attention


def attention(op: Attention, q: Array32, k_region: Region, v_region: Region, pages: Indices, spans: Indices) -> Array32:
    outputs: list[Array64] = []
    read: tuple[int, Array64, Array64] | None = None
    for row, (page_start, n_visible) in zip(q, spans.tolist(), strict=True):
        if read is None or read[0] != page_start:
            # Tokens of one sequence share their page list: its cells are dequantised once, for the longest window.
            longest = int(spans[spans[:, 0] == page_start, 1].max())
            positions = np.arange(longest)
            cells = pages[page_start + positions // PAGE_SIZE].astype(np.int64) * PAGE_SIZE + positions % PAGE_SIZE
            read = (page_start, k_region.read(cells), v_region.read(cells))
        first = 0 if op.window is None else max(0, n_visible - op.window)
        k, v = (cells[first:n_visible] for cells in read[1:])
        outputs.append(attend(row.astype(np.float64), k, v, op.scale, op.softcap))
    return np.stack(outputs).astype(np.float32)


def attend(q: Array64, k: Array64, v: Array64, scale: float, softcap: float | None = None) -> Array64:
    """One token: q [n_heads, head_dim], k [n, n_kv_heads, head_dim], v [n, n_kv_heads, value_dim] -> [n_heads,
    value_dim]."""
    n_heads, n_kv_heads = q.shape[0], k.shape[1]
    grouped = q.reshape(n_kv_heads, n_heads // n_kv_heads, -1)
    scores = scale * np.einsum("ghd,ngd->ghn", grouped, k)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    weights = softmax(scores)
    y: Array64 = np.einsum("ghn,ngd->ghd", weights, v).reshape(n_heads, -1)
    return y


def softmax(x: Array64) -> Array64:
    """exp(x - max) / sum(exp(x - max)) over the last dimension."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    normalised: Array64 = e / e.sum(axis=-1, keepdims=True)
    return normalised


KERNELS: Kernels = MappingProxyType({Attention: attention})
