"""Softcap: limit * tanh(x / limit), in float64, rounded to float32. Source: Gemma 2 (2024)."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from minfer.backends.reference.operands import Array32, Kernels
from minfer.graph.ops import Softcap


def softcap(op: Softcap, x: Array32) -> Array32:
    y: Array32 = (op.limit * np.tanh(x.astype(np.float64) / op.limit)).astype(np.float32)
    return y


KERNELS: Kernels = MappingProxyType({Softcap: softcap})
