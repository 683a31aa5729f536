"""Attention over a KV cache, and what comes before it: rotations and the store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from minfer.graph.ops.base import Op, Specs, is_region, take, want, want_f32
from minfer.graph.specs import Symbol, TensorSpec
from minfer.quants import GGMLType


class RopeStyle(StrEnum):
    """Which two dimensions of a head are rotated together."""

    INTERLEAVED = "interleaved"
    """2i and 2i+1: Llama files in GGUF"""
    NON_INTERLEAVED = "non_interleaved"
    """i and i + n_rot/2: Qwen, GPT-NeoX"""


@dataclass(frozen=True)
class Rope(Op):
    """(x f32[n, n_heads, head_dim], positions i32[n]) -> like x: rotary position embedding.

    Pair i of a head turns by `position * frequencies[i]`; both of its parts are then multiplied by `magnitude`.
    Dimensions from `2 * len(frequencies)` on pass through. All scaling variants end in these numbers when the model is
    loaded. Source: Su et al., RoFormer (2021).
    """

    row_wise = True
    in_place_inputs = (0,)

    style: RopeStyle
    frequencies: tuple[float, ...]
    magnitude: float = 1.0

    @property
    def n_rot(self) -> int:
        """How many dimensions of a head are rotated."""
        return 2 * len(self.frequencies)

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        x, positions = take(self, inputs, 2)
        want_f32(self, x)
        want(self, len(x.shape) == 3, f"x must be [n, n_heads, head_dim], not {x}")
        want(self, positions == TensorSpec(x.shape[:1], GGMLType.I32), f"positions {positions} do not fit {x}")
        head_dim = x.shape[2]
        want(self, isinstance(head_dim, int) and self.n_rot <= head_dim, f"n_rot {self.n_rot} > head_dim {head_dim}")
        return (x,)

    def __repr__(self) -> str:
        numbers = self.frequencies
        listed = f"{numbers[0]:.6g}..{numbers[-1]:.6g} ({len(numbers)})" if numbers else "none"
        return f"Rope(style={self.style.value}, frequencies={listed}, magnitude={self.magnitude:g})"


@dataclass(frozen=True)
class KVStore(Op):
    """(k f32[n, n_kv_heads, head_dim], v f32[n, n_kv_heads, value_dim], cells i32[n], k_state, v_state) -> nothing.

    Writes row t of k and v into cell `cells[t]` of the layer's two persistent regions, converted to their type.
    """

    states_written = (3, 4)

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        k, v, cells, k_state, v_state = take(self, inputs, 5)
        for rows, state in ((k, k_state), (v, v_state)):
            want_f32(self, rows)
            want(self, cells == TensorSpec(rows.shape[:1], GGMLType.I32), f"cells {cells} do not fit {rows}")
            want(self, is_region(state), f"{state} is no KV region")
            want(self, rows.shape[1:] == state.shape[1:], f"{rows} does not fit {state}")
        return ()


@dataclass(frozen=True)
class Attention(Op):
    """(q f32[n, n_heads, head_dim], k_state, v_state, pages i32[n_pages], spans i32[n, 2]) -> [n, n_heads, value_dim].

    Token t sees the positions j in [max(0, n_visible - window), n_visible) of its own sequence, where
    `spans[t] = (page_start, n_visible)`; position j stands in cell `pages[page_start + j // 64] * 64 + j % 64`.
    Query head h reads KV head `h // (n_heads // n_kv_heads)`. Softmax of `s = scale * q.k`, or of
    `softcap * tanh(s / softcap)`, then the weighted sum of the values. Source: Vaswani et al. (2017); grouped queries:
    Ainslie et al. (2023); paged cache: Kwon et al. (2023); soft-caps: Gemma 2 (2024).
    """

    states_read = (1, 2)

    scale: float
    window: int | None = None
    softcap: float | None = None

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        q, k_state, v_state, pages, spans = take(self, inputs, 5)
        want_f32(self, q)
        want(self, len(q.shape) == 3, f"q must be [n, n_heads, head_dim], not {q}")
        for state in (k_state, v_state):
            want(self, is_region(state), f"{state} is no KV region")
        want(self, pages == TensorSpec((Symbol.N_PAGES,), GGMLType.I32), f"pages {pages}")
        want(self, spans == TensorSpec((q.shape[0], 2), GGMLType.I32), f"spans {spans} do not fit {q}")
        n_heads, n_kv_heads = q.shape[1], k_state.shape[1]
        fits = isinstance(n_heads, int) and isinstance(n_kv_heads, int) and n_heads % n_kv_heads == 0
        want(self, fits, f"{n_heads} query heads can't share {n_kv_heads} KV heads")
        want(self, v_state.shape[1] == n_kv_heads, f"K has {n_kv_heads} heads and V has {v_state.shape[1]}")
        want(self, q.shape[2] == k_state.shape[2], f"queries {q} and keys {k_state} differ in width")
        want(self, self.window is None or self.window > 0, f"window {self.window}")
        want(self, self.softcap is None or self.softcap > 0, f"softcap {self.softcap}")
        return (TensorSpec((q.shape[0], n_heads, v_state.shape[2])),)
