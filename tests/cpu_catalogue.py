"""Every kernel of the CPU backend, traced for small shapes: what tests of the generated code go through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages

from minfer.backends import cpu
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.kernels.walker import trace_begin, trace_walk, trace_work
from minfer.backends.cpu.ops.attention.kernels import (
    AttentionShape,
    trace_attention_combine,
    trace_attention_split,
    trace_attention_tiles,
    trace_attention_tokens,
)
from minfer.backends.cpu.ops.elementwise import Elementwise, trace_elementwise
from minfer.backends.cpu.ops.embedding import trace_embedding, trace_embedding_float
from minfer.backends.cpu.ops.kv_store import StoreShape, trace_kv_store
from minfer.backends.cpu.ops.layer_norm import LayerNormShape, trace_layer_norm
from minfer.backends.cpu.ops.matmul.floats import TILE_ROWS, FloatShape, trace_float
from minfer.backends.cpu.ops.matmul.quantised import MatMulShape, trace_direct, trace_direct_tiles, trace_tiles
from minfer.backends.cpu.ops.quantise import trace_quantise
from minfer.backends.cpu.ops.rms_norm import NormShape, trace_rms_norm
from minfer.backends.cpu.ops.rope import RopeShape, trace_rope
from minfer.backends.cpu.ops.rope_store import trace_rope_store
from minfer.backends.cpu.ops.select_rows import trace_select_rows
from minfer.backends.cpu.ops.softcap import trace_softcap
from minfer.backends.cpu.panels import formats
from minfer.backends.cpu.panels.floats import FLOAT_TYPES
from minfer.backends.cpu.panels.pack import packable_types, panel_format
from minfer.backends.cpu.vocabulary.kernels import trace_arg_max, trace_collect, trace_exp_sum, trace_group_maxima
from minfer.graph.ops import ActivationKind, RopeStyle
from minfer.quants import GGMLType
from minfer.simd import KernelIR

TOKENS = StepWord.N_TOKENS
F32, F16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.Q8_0


def catalogue(vector_bytes: int) -> dict[str, list[KernelIR]]:
    """The kernels by the name of the function that traces them; names of kernels are unique."""
    return {
        trace: [replace(kernel, name=f"{trace}_{i}") for i, kernel in enumerate(kernels)]
        for trace, kernels in _traced(vector_bytes).items()
    }


def functions_that_trace() -> set[str]:
    """The names of all functions of the backend that trace a kernel."""
    names: set[str] = set()
    for each in walk_packages(cpu.__path__, f"{cpu.__name__}."):
        module = import_module(each.name)
        names |= {
            name
            for name, value in vars(module).items()
            if name.startswith("trace_") and getattr(value, "__module__", None) == module.__name__
        }
    return names


def _traced(vector_bytes: int) -> Mapping[str, list[KernelIR]]:
    return {
        "trace_direct": list(_direct()),
        "trace_direct_tiles": [trace_direct_tiles(MatMulShape(formats.Q4_0, 32, TOKENS, has_bias=True))],
        "trace_tiles": [trace_tiles(MatMulShape(formats.Q6_K, 256, TOKENS))],
        "trace_embedding": [trace_embedding(formats.Q6_K, 256)],
        "trace_embedding_float": [trace_embedding_float(FloatShape(each, 35, TOKENS)) for each in FLOAT_TYPES],
        "trace_float": [trace_float(FloatShape(each, 66, TOKENS), TILE_ROWS) for each in FLOAT_TYPES],
        "trace_attention_split": [trace_attention_split(_attention(each, vector_bytes)) for each in (F32, F16, Q8_0)],
        "trace_attention_combine": [trace_attention_combine(_attention(F32, vector_bytes))],
        "trace_attention_tokens": [
            trace_attention_tokens(_attention(F16, vector_bytes)),
            trace_attention_tokens(replace(_attention(F16, vector_bytes), softcap=50.0)),
        ],
        "trace_attention_tiles": [trace_attention_tiles(replace(_attention(F16, vector_bytes), v_type=Q8_0))],
        "trace_rms_norm": [
            trace_rms_norm(NormShape(65, 1e-5, TOKENS)),
            trace_rms_norm(NormShape(96, 1e-5, TOKENS, adds=True, quantised=True)),
        ],
        "trace_layer_norm": [
            trace_layer_norm(LayerNormShape(65, 1e-5, TOKENS, has_bias=bias)) for bias in (True, False)
        ],
        "trace_softcap": [trace_softcap(30.0, 35, TOKENS)],
        "trace_quantise": [trace_quantise(480, TOKENS)],
        "trace_elementwise": [
            trace_elementwise(Elementwise.ADD, None, 35, TOKENS),
            trace_elementwise(Elementwise.MULTIPLY, None, 35, TOKENS),
            trace_elementwise(Elementwise.ACTIVATION, ActivationKind.GELU, 35, TOKENS),
            trace_elementwise(Elementwise.GATED, ActivationKind.SILU, 35, TOKENS),
        ],
        "trace_rope": [trace_rope(RopeShape(style, 3, 24, 16)) for style in RopeStyle],
        "trace_kv_store": [trace_kv_store(StoreShape(2, 64, 32, each, each)) for each in (F32, F16, Q8_0)],
        "trace_rope_store": [
            trace_rope_store(
                RopeShape(RopeStyle.INTERLEAVED, 4, 64, 64),
                RopeShape(RopeStyle.INTERLEAVED, 2, 64, 64),
                StoreShape(2, 64, 32, Q8_0, F16),
            )
        ],
        "trace_select_rows": [trace_select_rows(35)],
        "trace_arg_max": [trace_arg_max()],
        "trace_group_maxima": [trace_group_maxima()],
        "trace_collect": [trace_collect()],
        "trace_exp_sum": [trace_exp_sum()],
        "trace_walk": [trace_walk()],
        "trace_work": [trace_work()],
        "trace_begin": [trace_begin()],
    }


def _direct() -> Iterator[KernelIR]:
    """Every format of panels; with a bias, and with a gate."""
    for panel in {panel_format(each).name: panel_format(each) for each in packable_types()}.values():
        yield trace_direct(MatMulShape(panel, panel.unit_columns, TOKENS))
    yield trace_direct(MatMulShape(formats.Q4_0, 32, TOKENS, has_bias=True))
    yield trace_direct(MatMulShape(formats.Q4_1, 32, TOKENS, gate=ActivationKind.GELU))


def _attention(ggml_type: GGMLType, vector_bytes: int) -> AttentionShape:
    return AttentionShape(6, 2, 32, 32, ggml_type, ggml_type, 0.25, 70, vector_bytes)
