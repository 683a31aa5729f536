"""The types of the KV cache that tests go through."""

from __future__ import annotations

from minfer.models import KVTypes
from minfer.quants import GGMLType

KV_TYPES = {
    "f32": KVTypes(GGMLType.F32, GGMLType.F32),
    "f16": KVTypes(GGMLType.F16, GGMLType.F16),
    "q8_0": KVTypes(GGMLType.Q8_0, GGMLType.Q8_0),
    "k-f16-v-q8_0": KVTypes(GGMLType.F16, GGMLType.Q8_0),
}
