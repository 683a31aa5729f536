"""The NumPy dtypes that hold the values of each scalar type."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

# By the type's name. bf16 has no dtype of its own: its bits are held.
DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "i1": np.dtype(np.bool_),
        "i8": np.dtype(np.int8),
        "i16": np.dtype(np.int16),
        "i32": np.dtype(np.int32),
        "i64": np.dtype(np.int64),
        "u8": np.dtype(np.uint8),
        "u16": np.dtype(np.uint16),
        "u32": np.dtype(np.uint32),
        "u64": np.dtype(np.uint64),
        "f16": np.dtype(np.float16),
        "bf16": np.dtype(np.uint16),
        "f32": np.dtype(np.float32),
        "f64": np.dtype(np.float64),
    }
)
