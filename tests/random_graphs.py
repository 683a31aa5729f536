"""A hypothesis strategy for graphs: any ops in any order, values that are read often, once or never."""

from __future__ import annotations

from hypothesis import strategies as st

from minfer.graph import Graph, GraphBuilder, Symbol, Value
from minfer.graph.ops import ActivationKind, Rope, RopeStyle
from minfer.quants import GGMLType

WIDTHS = (32, 64)
N_HEADS = 2

_STEPS = ("add", "multiply", "activation", "norm", "matmul", "reshape", "rope", "attention", "gated", "add_norm")


class _Pool:
    """The values so far. Picks favour late ones, so that most are read soon and few are read for long."""

    def __init__(self, draw: st.DrawFn, first: Value) -> None:
        self._draw = draw
        self._values = [first]

    def add(self, value: Value) -> None:
        self._values.append(value)

    def any(self) -> Value:
        return self._pick(self._values)

    def like(self, value: Value) -> Value:
        """One of the same spec; the value itself, if need be."""
        return self._pick([other for other in self._values if other.spec == value.spec])

    def _pick(self, values: list[Value]) -> Value:
        return values[-1 - min(self._draw(st.integers(0, 5)), len(values) - 1)]


@st.composite
def random_graphs(draw: st.DrawFn, max_steps: int = 16) -> Graph:
    """Graphs over one embedding of 20 tokens. The output `logits` is a product with a weight; others are any values."""
    b = GraphBuilder()
    table = b.weight("table", (20, draw(st.sampled_from(WIDTHS))), GGMLType.F32)
    pool = _Pool(draw, b.embedding(b.input("tokens"), table, "embedding"))
    for index, step in enumerate(draw(st.lists(st.sampled_from(_STEPS), min_size=6, max_size=max_steps))):
        _add_step(b, pool, draw, step, f"{step}{index}")
    last = _flat(b, pool.any(), "last")
    outputs = {"logits": _linear(b, last, "output", 20)}
    for index in range(draw(st.integers(1, 4))):
        outputs[f"extra{index}"] = pool.any()
    return b.build(outputs)


def _add_step(b: GraphBuilder, pool: _Pool, draw: st.DrawFn, step: str, name: str) -> None:
    x = pool.any()
    match step:
        case "add":
            pool.add(b.add(x, pool.like(x), name))
        case "multiply":
            pool.add(b.multiply(x, pool.like(x), name))
        case "activation":
            pool.add(b.activation(x, draw(st.sampled_from(ActivationKind)), name))
        case "norm":
            pool.add(_norm(b, x, name))
        case "matmul":
            flat = _flat(b, x, name)
            for part in range(draw(st.integers(1, 3))):
                n_rows = draw(st.sampled_from(WIDTHS))
                pool.add(_linear(b, flat, f"{name}.{part}", n_rows, bias=draw(st.booleans())))
        case "reshape":
            pool.add(_flat(b, x, name) if len(x.spec.shape) == 3 else _heads(b, x, name))
        case "rope":
            style = draw(st.sampled_from(RopeStyle))
            pool.add(b.rope(_heads(b, x, name), b.input("positions"), Rope(style, (1.0, 0.1)), name))
        case "attention":
            pool.add(_attention(b, _heads(b, x, name), name))
        case "gated":
            flat = _flat(b, x, name)
            bias = draw(st.booleans())
            gate, up = (_linear(b, flat, f"{name}.{part}", 32, bias=bias) for part in ("gate", "up"))
            activated = b.activation(gate, draw(st.sampled_from(ActivationKind)), f"{name}.activated")
            pool.add(b.multiply(*((activated, up) if draw(st.booleans()) else (up, activated)), name))
        case "add_norm":
            total = b.add(x, pool.like(x), f"{name}.sum")
            pool.add(total)
            pool.add(_norm(b, total, name))


def _flat(b: GraphBuilder, x: Value, name: str) -> Value:
    return x if len(x.spec.shape) == 2 else b.merge_heads(x, f"{name}.flat")


def _heads(b: GraphBuilder, x: Value, name: str) -> Value:
    return x if len(x.spec.shape) == 3 else b.split_heads(x, N_HEADS, f"{name}.heads")


def _linear(b: GraphBuilder, x: Value, name: str, n_rows: int, *, bias: bool = False) -> Value:
    weight = b.weight(f"{name}.weight", (n_rows, x.spec.n_static_values()), GGMLType.F32)
    return b.matmul(x, weight, b.weight(f"{name}.bias", (n_rows,), GGMLType.F32) if bias else None, name)


def _norm(b: GraphBuilder, x: Value, name: str) -> Value:
    width = x.spec.shape[-1]
    assert not isinstance(width, Symbol)
    return b.rms_norm(x, b.weight(f"{name}.weight", (width,), GGMLType.F32), 1e-6, name)


def _attention(b: GraphBuilder, x: Value, name: str) -> Value:
    """Of x on itself: queries, keys and values are one."""
    width = x.spec.shape[-1]
    assert not isinstance(width, Symbol)
    keys, values = (b.kv_region(f"{name}.{part}_cache", N_HEADS, width, GGMLType.F32) for part in "kv")
    b.kv_store(x, x, b.input("cells"), keys, values, f"{name}.store")
    return b.attention(x, keys, values, scale=0.3, window=None, name=name)
