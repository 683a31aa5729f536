"""What an architecture's file is given to declare its graph with: the builder, the numbers, and the file's tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minfer.errors import ModelError, UnsupportedError
from minfer.gguf import GGUFFile
from minfer.graph import Graph, GraphBuilder, Value
from minfer.graph.ops import RopeStyle
from minfer.models.hparams import HParams
from minfer.quants import GGMLType, dequantise

ROPE_FREQS = "rope_freqs.weight"


@dataclass(frozen=True)
class KVTypes:
    """The element types of the KV cache; by default half floats, see docs/adr/0003-f16-cache.md."""

    k: GGMLType = GGMLType.F16
    v: GGMLType = GGMLType.F16


class Declaration:
    """Declares weights by their GGUF name with the shape that they must have, and remembers which were used."""

    def __init__(self, file: GGUFFile, hparams: HParams, kv_types: KVTypes) -> None:
        self.hparams = hparams
        self.kv_types = kv_types
        self.builder = GraphBuilder()
        self._file = file
        self._used: set[str] = set()

    def weight(self, name: str, *shape: int) -> Value:
        """A tensor that must be there, of this shape (row-major).

        Raises:
            ModelError: it is missing, or of another shape.
        """
        info = self._file.tensors.get(name)
        if info is None:
            raise ModelError(f"the file has no tensor {name}, which {self.hparams.architecture} needs")
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

    def norm(self, x: Value, name: str, width: int) -> Value:
        """RMSNorm with `NAME.weight`. The result is named `NAME`."""
        return self.builder.rms_norm(x, self.weight(f"{name}.weight", width), self.hparams.norm_eps, name)

    def rope_divisors(self) -> tuple[float, ...] | None:
        """The values of `rope_freqs.weight`, where the file has it."""
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
                f"{count} of this {self.hparams.architecture} file ({shown})",
                hint="The model is more than what is built for this architecture",
            )
        return self.builder.build({"logits": logits})


@dataclass(frozen=True)
class Architecture:
    """One architecture: its name in `general.architecture`, and how its graph is declared."""

    name: str
    rope_style: RopeStyle
    declare: Callable[[Declaration, RopeStyle], Graph]
