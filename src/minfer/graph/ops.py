"""The whole vocabulary of a compute graph: one frozen dataclass an op.

An op holds what is fixed when the graph is built; operands are values of the graph. Each op says what it takes and
gives in `output_specs`, which is the single place where shapes are checked. What an op *computes* is defined by the
file of the same name in `backends/reference/`.

Shapes are row-major. `n` stands for the number of rows, usually the symbol `n_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from minfer.errors import GraphError
from minfer.graph.specs import Dim, Shape, Symbol, TensorSpec
from minfer.quants import GGMLType

Specs = Sequence[TensorSpec]


class ActivationKind(StrEnum):
    """Element-wise non-linearities."""

    SILU = "silu"
    """x / (1 + exp(-x))"""
    GELU = "gelu"
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the tanh approximation that models are trained with"""


class RopeStyle(StrEnum):
    """Which two dimensions of a head are rotated together."""

    INTERLEAVED = "interleaved"
    """2i and 2i+1: Llama files in GGUF"""
    NON_INTERLEAVED = "non_interleaved"
    """i and i + n_rot/2: Qwen, GPT-NeoX"""


@dataclass(frozen=True)
class Op:
    """Base of all ops."""

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        """The specs of the outputs.

        Raises:
            GraphError: when the inputs don't fit the op.
        """
        raise NotImplementedError

    @property
    def in_place_inputs(self) -> tuple[int, ...]:
        """Inputs whose storage the first output may take over: every backend must compute right in that case."""
        return ()

    @property
    def kind(self) -> str:
        """The name of the op, as shown to people."""
        return type(self).__name__


@dataclass(frozen=True)
class Embedding(Op):
    """(tokens i32[n], table[n_vocab, n_embd]) -> f32[n, n_embd]: the rows of the table, dequantised."""

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        tokens, table = _take(self, inputs, 2)
        _want(self, _is_index(tokens), f"token ids must be i32[n], not {tokens}")
        _want(self, len(table.shape) == 2, f"the table must have two dimensions, not {table}")
        return (TensorSpec((*tokens.shape, table.shape[1])),)


@dataclass(frozen=True)
class MatMul(Op):
    """(x f32[n, k], weight[m, k] (, bias[m])) -> f32[n, m]: x times the weight's transpose, plus the bias."""

    has_bias: bool = False

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        operands = _take(self, inputs, 3 if self.has_bias else 2)
        return (_projection(self, operands[0], operands[1], operands[2] if self.has_bias else None),)


@dataclass(frozen=True)
class MatMulGroup(Op):
    """Several `MatMul`s of one x in one pass: (x, weight..., bias...) -> one output a weight.

    `has_bias[i]` tells whether weight i has a bias; the biases follow all the weights, in the same order.
    """

    has_bias: tuple[bool, ...]

    @property
    def n_weights(self) -> int:
        return len(self.has_bias)

    def split_inputs(self, n_inputs: int) -> tuple[tuple[int, int | None], ...]:
        """For each weight, the indices of the weight and of its bias among the inputs."""
        biases = iter(range(1 + self.n_weights, n_inputs))
        return tuple((1 + i, next(biases) if has else None) for i, has in enumerate(self.has_bias))

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        operands = _take(self, inputs, 1 + self.n_weights + sum(self.has_bias))
        return tuple(
            _projection(self, operands[0], operands[w], None if b is None else operands[b])
            for w, b in self.split_inputs(len(operands))
        )


@dataclass(frozen=True)
class GatedMatMul(Op):
    """(x f32[n, k], gate[m, k], up[m, k]) -> f32[n, m]: activation(x gate^T) * (x up^T) in one pass."""

    activation: ActivationKind

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        x, gate, up = _take(self, inputs, 3)
        output = _projection(self, x, gate, None)
        _want(self, _projection(self, x, up, None) == output, f"gate {gate} and up {up} differ")
        return (output,)


@dataclass(frozen=True)
class RMSNorm(Op):
    """(x f32[..., d], weight[d]) -> like x: x / sqrt(mean(x^2) + eps) * weight over the last dimension."""

    eps: float

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        x, weight = _take(self, inputs, 2)
        _want_f32(self, x)
        _want(self, weight.shape == x.shape[-1:], f"weight {weight} does not fit {x}")
        return (x,)

    @property
    def in_place_inputs(self) -> tuple[int, ...]:
        return (0,)


@dataclass(frozen=True)
class AddRMSNorm(Op):
    """(a, b f32[..., d], weight[d]) -> (a + b, RMSNorm(a + b)): a residual addition with the norm that follows."""

    eps: float

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        a, b, weight = _take(self, inputs, 3)
        _elementwise(self, (a, b))
        _want(self, weight.shape == a.shape[-1:], f"weight {weight} does not fit {a}")
        return (a, a)

    @property
    def in_place_inputs(self) -> tuple[int, ...]:
        return (0, 1)


@dataclass(frozen=True)
class Add(Op):
    """(a, b) -> a + b, of equal shapes."""

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        return _elementwise(self, inputs)

    @property
    def in_place_inputs(self) -> tuple[int, ...]:
        return (0, 1)


@dataclass(frozen=True)
class Multiply(Op):
    """(a, b) -> a * b element by element, of equal shapes."""

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        return _elementwise(self, inputs)

    @property
    def in_place_inputs(self) -> tuple[int, ...]:
        return (0, 1)


@dataclass(frozen=True)
class Activation(Op):
    """(x) -> activation(x), element by element."""

    activation: ActivationKind

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        (x,) = _take(self, inputs, 1)
        _want_f32(self, x)
        return (x,)

    @property
    def in_place_inputs(self) -> tuple[int, ...]:
        return (0,)


@dataclass(frozen=True)
class GatedActivation(Op):
    """(gate, up) -> activation(gate) * up; with SiLU this is SwiGLU."""

    activation: ActivationKind

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        return _elementwise(self, inputs)

    @property
    def in_place_inputs(self) -> tuple[int, ...]:
        return (0, 1)


@dataclass(frozen=True)
class Reshape(Op):
    """(x) -> the same values under another shape. The first dimension stays as it is."""

    shape: Shape

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        (x,) = _take(self, inputs, 1)
        output = TensorSpec(self.shape, x.ggml_type)
        same = output.n_static_values() == x.n_static_values() and self.shape[:1] == x.shape[:1]
        _want(self, same and output.symbols() == x.symbols(), f"{x} can't become {output}")
        return (output,)


@dataclass(frozen=True)
class Rope(Op):
    """(x f32[n, n_heads, head_dim], positions i32[n]) -> like x: rotary position embedding.

    Pair i of a head turns by `position * frequencies[i]`; both of its parts are then multiplied by `magnitude`.
    Dimensions from `2 * len(frequencies)` on pass through. All scaling variants end in these numbers when the model is
    loaded. Source: Su et al., RoFormer (2021).
    """

    style: RopeStyle
    frequencies: tuple[float, ...]
    magnitude: float = 1.0

    @property
    def n_rot(self) -> int:
        """How many dimensions of a head are rotated."""
        return 2 * len(self.frequencies)

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        x, positions = _take(self, inputs, 2)
        _want_f32(self, x)
        _want(self, len(x.shape) == 3, f"x must be [n, n_heads, head_dim], not {x}")
        _want(self, positions == TensorSpec(x.shape[:1], GGMLType.I32), f"positions {positions} do not fit {x}")
        head_dim = x.shape[2]
        _want(self, isinstance(head_dim, int) and self.n_rot <= head_dim, f"n_rot {self.n_rot} > head_dim {head_dim}")
        return (x,)

    @property
    def in_place_inputs(self) -> tuple[int, ...]:
        return (0,)

    def __repr__(self) -> str:
        numbers = self.frequencies
        listed = f"{numbers[0]:.6g}..{numbers[-1]:.6g} ({len(numbers)})" if numbers else "none"
        return f"Rope(style={self.style.value}, frequencies={listed}, magnitude={self.magnitude:g})"


@dataclass(frozen=True)
class KVStore(Op):
    """(k f32[n, n_kv_heads, head_dim], v f32[n, n_kv_heads, value_dim], cells i32[n], k_state, v_state) -> nothing.

    Writes row t of k and v into cell `cells[t]` of the layer's two persistent regions, converted to their type.
    """

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        k, v, cells, k_state, v_state = _take(self, inputs, 5)
        for rows, state in ((k, k_state), (v, v_state)):
            _want_f32(self, rows)
            _want(self, cells == TensorSpec(rows.shape[:1], GGMLType.I32), f"cells {cells} do not fit {rows}")
            _want(self, _is_region(state), f"{state} is no KV region")
            _want(self, rows.shape[1:] == state.shape[1:], f"{rows} does not fit {state}")
        return ()


@dataclass(frozen=True)
class Attention(Op):
    """(q f32[n, n_heads, head_dim], k_state, v_state, pages i32[n_pages], spans i32[n, 2]) -> [n, n_heads, value_dim].

    Token t sees the positions j in [max(0, n_visible - window), n_visible) of its own sequence, where
    `spans[t] = (page_start, n_visible)`; position j stands in cell `pages[page_start + j // 64] * 64 + j % 64`.
    Query head h reads KV head `h // (n_heads // n_kv_heads)`. Softmax of `scale * q.k`, then the weighted sum of the
    values. Source: Vaswani et al. (2017); grouped queries: Ainslie et al. (2023); paged cache: Kwon et al. (2023).
    """

    scale: float
    window: int | None = None

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        q, k_state, v_state, pages, spans = _take(self, inputs, 5)
        _want_f32(self, q)
        _want(self, len(q.shape) == 3, f"q must be [n, n_heads, head_dim], not {q}")
        for state in (k_state, v_state):
            _want(self, _is_region(state), f"{state} is no KV region")
        _want(self, pages == TensorSpec((Symbol.N_PAGES,), GGMLType.I32), f"pages {pages}")
        _want(self, spans == TensorSpec((q.shape[0], 2), GGMLType.I32), f"spans {spans} do not fit {q}")
        n_heads, n_kv_heads = q.shape[1], k_state.shape[1]
        fits = isinstance(n_heads, int) and isinstance(n_kv_heads, int) and n_heads % n_kv_heads == 0
        _want(self, fits, f"{n_heads} query heads can't share {n_kv_heads} KV heads")
        _want(self, v_state.shape[1] == n_kv_heads, f"K has {n_kv_heads} heads and V has {v_state.shape[1]}")
        _want(self, q.shape[2] == k_state.shape[2], f"queries {q} and keys {k_state} differ in width")
        _want(self, self.window is None or self.window > 0, f"window {self.window}")
        return (TensorSpec((q.shape[0], n_heads, v_state.shape[2])),)


@dataclass(frozen=True)
class SelectRows(Op):
    """(x f32[n, d], rows i32[n_outputs]) -> f32[n_outputs, d]."""

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        x, rows = _take(self, inputs, 2)
        _want_f32(self, x)
        _want(self, _is_index(rows), f"rows must be i32[n], not {rows}")
        return (TensorSpec((rows.shape[0], *x.shape[1:]), x.ggml_type),)


@dataclass(frozen=True)
class Copy(Op):
    """(x) -> x in the memory of another backend."""

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        return _take(self, inputs, 1)


OPS: tuple[type[Op], ...] = (
    Embedding, MatMul, MatMulGroup, GatedMatMul, RMSNorm, AddRMSNorm, Add, Multiply, Activation, GatedActivation,
    Reshape, Rope, KVStore, Attention, SelectRows, Copy,
)  # fmt: skip
"""Every op."""


def _want(op: Op, condition: bool, message: str) -> None:
    if not condition:
        raise GraphError(f"{op.kind}: {message}")


def _want_f32(op: Op, x: TensorSpec) -> None:
    _want(op, x.ggml_type is GGMLType.F32, f"computes on f32, not on {x}")


def _is_index(spec: TensorSpec) -> bool:
    return spec.ggml_type is GGMLType.I32 and len(spec.shape) == 1


def _is_region(spec: TensorSpec) -> bool:
    return len(spec.shape) == 3 and spec.shape[0] is Symbol.N_CELLS


def _take(op: Op, inputs: Specs, n_wanted: int) -> tuple[TensorSpec, ...]:
    _want(op, len(inputs) == n_wanted, f"takes {n_wanted} inputs, not {len(inputs)}")
    return tuple(inputs)


def _elementwise(op: Op, inputs: Specs) -> tuple[TensorSpec, ...]:
    a, b = _take(op, inputs, 2)
    _want_f32(op, a)
    _want(op, a == b, f"{a} and {b} differ")
    return (a,)


def _projection(op: Op, x: TensorSpec, weight: TensorSpec, bias: TensorSpec | None) -> TensorSpec:
    _want_f32(op, x)
    _want(op, len(x.shape) == 2 and len(weight.shape) == 2, f"wants matrices, not {x} and {weight}")
    _want(op, x.shape[1] == weight.shape[1], f"{x} does not fit the weight {weight}")
    n_rows: Dim = weight.shape[0]
    _want(op, bias is None or bias.shape == (n_rows,), f"bias {bias} does not fit the weight {weight}")
    return TensorSpec((x.shape[0], n_rows))
