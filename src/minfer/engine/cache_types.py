"""The types that the KV cache may have, by the names that users give them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from minfer.errors import ParameterError, UnsupportedError
from minfer.models import KVTypes, ModelConfig
from minfer.quants import GGMLType, block_geometry, row_bytes

CACHE_TYPES: Final[Mapping[str, GGMLType]] = MappingProxyType(
    {"f32": GGMLType.F32, "f16": GGMLType.F16, "q8_0": GGMLType.Q8_0}
)


def parse_cache_type(text: str | None) -> KVTypes:
    """The types of keys and values: `q8_0` for both, or `k:f16,v:q8_0`. What is left out is the default, as None is.

    Raises:
        UnsupportedError: a type that is none of `CACHE_TYPES`.
        ParameterError: it is written in another way.
    """
    if text is None:
        return KVTypes()
    if ":" not in text:
        both = _type_named(text)
        return KVTypes(both, both)
    types = {"k": KVTypes().k, "v": KVTypes().v}
    parts = [part.split(":") for part in text.split(",")]
    names = [part[0].strip() for part in parts]
    if any(len(part) != 2 for part in parts) or len(set(names)) < len(names) or not set(names) <= set(types):
        raise ParameterError(f"a cache type is one for all, as in q8_0, or k:f16,v:q8_0, and not {text!r}")
    types |= {name: _type_named(part[1].strip()) for name, part in zip(names, parts, strict=True)}
    return KVTypes(types["k"], types["v"])


def position_bytes(config: ModelConfig, types: KVTypes) -> int | None:
    """Bytes that a position takes in the KV cache, in all layers; None where a head's width is no whole number of a
    type's blocks, so that the type can't be used."""
    n_bytes = 0
    for layer in config.layers:
        attention = layer.mixer
        for width, ggml_type in ((attention.head_dim, types.k), (attention.value_dim, types.v)):
            if width % block_geometry(ggml_type).n_values:
                return None
            n_bytes += attention.n_kv_heads * row_bytes(ggml_type, width)
    return n_bytes


def _type_named(name: str) -> GGMLType:
    if name not in CACHE_TYPES:
        raise UnsupportedError(f"cache type {name!r}", CACHE_TYPES)
    return CACHE_TYPES[name]
