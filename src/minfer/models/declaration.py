"""What an architecture's file is given to declare its graph with: the builder, the numbers, and the file's tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minfer.errors import ModelError, UnsupportedError
from minfer.gguf import GGUFFile
from minfer.graph import Graph, GraphBuilder, Value, ops
from minfer.models.config import ModelConfig, Norm, NormKind, Rope
from minfer.models.rope_scaling import make_rope
from minfer.quants import GGMLType, dequantise

ROPE_FREQS = "rope_freqs.weight"


@dataclass(frozen=True)
class KVTypes:
    """The element types of the KV cache; by default half floats, see docs/adr/0003-f16-cache.md."""

    k: GGMLType = GGMLType.F16
    v: GGMLType = GGMLType.F16


class Declaration:
    """Declares weights by their GGUF name with the shape that they must have, and remembers which were used."""

    def __init__(self, file: GGUFFile, config: ModelConfig, kv_types: KVTypes) -> None:
        self.config = config
        self.kv_types = kv_types
        self.builder = GraphBuilder()
        self._file = file
        self._used: set[str] = set()
        self._ropes: dict[Rope, ops.Rope] = {}

    def weight(self, name: str, *shape: int) -> Value:
        """A tensor that must be there, of this shape (row-major).

        Raises:
            ModelError: it is missing, or of another shape.
        """
        info = self._file.tensors.get(name)
        if info is None:
            raise ModelError(f"the file has no tensor {name}, which {self.config.architecture} needs")
        if info.shape != shape:
            raise ModelError(f"{name} is {list(info.shape)}, and the metadata make it {list(shape)}")
        self._used.add(name)
        return self.builder.weight(name, shape, info.ggml_type)

    def has(self, name: str) -> bool:
        return name in self._file.tensors

    def linear(self, x: Value, name: str, n_rows: int) -> Value:
        """x times `NAME.weight`, plus `NAME.bias` where the file has one. The result is named `NAME`."""
        weight = self.weight(f"{name}.weight", n_rows, x.spec.n_static_values())
        bias = self.weight(f"{name}.bias", n_rows) if self.has(f"{name}.bias") else None
        return self.builder.matmul(x, weight, bias, name)

    def norm(self, x: Value, norm: Norm, name: str) -> Value:
        """The norm of x's last dimension, with `NAME.weight`. The result is named `NAME`."""
        width = x.spec.shape[-1]
        assert isinstance(width, int)  # only the first dimension is a symbol
        weight = self.weight(f"{name}.weight", width)
        match norm.kind:
            case NormKind.RMS:
                return self.builder.rms_norm(x, weight, norm.eps, name)
            case NormKind.LAYER:
                bias = [self.weight(f"{name}.bias", width)] if self.has(f"{name}.bias") else []
                return self.builder.apply(ops.LayerNorm(norm.eps, has_bias=bool(bias)), (x, weight, *bias), name)

    def rope(self, x: Value, rope: Rope, name: str) -> Value:
        """x [n, n_heads, head_dim] rotated to its positions, with the file's `rope_freqs.weight` where there is one."""
        if rope not in self._ropes:
            self._ropes[rope] = make_rope(rope, self._rope_divisors())
        return self.builder.rope(x, self.builder.input("positions"), self._ropes[rope], name)

    def _rope_divisors(self) -> tuple[float, ...] | None:
        if not self.has(ROPE_FREQS):
            return None
        info = self._file.tensors[ROPE_FREQS]
        if len(info.shape) != 1:
            raise ModelError(f"{ROPE_FREQS} is {list(info.shape)}, and must have one dimension")
        self._used.add(ROPE_FREQS)
        values = dequantise(info.ggml_type, self._file.tensor_data(ROPE_FREQS), info.shape[0])
        return tuple(np.asarray(values, np.float64).tolist())

    def finish(self, logits: Value) -> Graph:
        """The finished graph.

        Raises:
            UnsupportedError: the file holds tensors that the architecture, as built here, does not use: something in
                the model would be left out.
        """
        unused = [name for name in self._file.tensors if name not in self._used]
        if unused:
            shown = ", ".join(unused[:5]) + (", ..." if len(unused) > 5 else "")
            count = f"{len(unused)} tensor{'s' if len(unused) > 1 else ''}"
            raise UnsupportedError(
                f"{count} of this {self.config.architecture} file ({shown})",
                hint="The model is more than what is built for this architecture",
            )
        return self.builder.build({"logits": logits})
