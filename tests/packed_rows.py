"""Packed rows for tests of panels and matmuls, of every block type."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minfer.quants import GGMLType, block_geometry, dequantise, quantisable_types, quantise

_SCALE_BYTES = {GGMLType.IQ4_NL: 0, GGMLType.IQ4_XS: 0, GGMLType.IQ2_XS: 0, GGMLType.TQ2_0: -2}
"""Where the float16 scale of a block lies, of types that can't be quantised to."""


def random_rows(ggml_type: GGMLType, n_rows: int, n_columns: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows of random bytes whose values are finite: all fields take all of their values."""
    geometry = block_geometry(ggml_type)
    rng = np.random.default_rng(seed)
    rows = np.empty((n_rows, n_columns // geometry.n_values * geometry.n_bytes), np.uint8)
    bad = np.ones(n_rows, bool)
    while bad.any():
        rows[bad] = rng.integers(0, 256, (int(bad.sum()), rows.shape[1]), dtype=np.uint8)
        bad = ~(np.abs(dequantise(ggml_type, rows, n_columns)) < 1e30).all(axis=1)
    return rows


def moderate_rows(ggml_type: GGMLType, n_rows: int, n_columns: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows as weights are: values around 0.1."""
    rng = np.random.default_rng(seed)
    if ggml_type in quantisable_types():
        return quantise(ggml_type, (rng.standard_normal((n_rows, n_columns)) * 0.1).astype(np.float32))
    geometry = block_geometry(ggml_type)
    n_blocks = n_rows * n_columns // geometry.n_values
    blocks = rng.integers(0, 256, (n_blocks, geometry.n_bytes), dtype=np.uint8)
    if ggml_type is GGMLType.MXFP4:
        blocks[:, 0] = rng.integers(120, 126, n_blocks)  # the exponent
    else:
        at = _SCALE_BYTES[ggml_type]
        scales = (rng.uniform(0.5, 2, n_blocks) * 1e-3).astype(np.float16)
        blocks[:, at % geometry.n_bytes :][:, :2] = scales[:, None].view(np.uint8)
    return blocks.reshape(n_rows, -1)
