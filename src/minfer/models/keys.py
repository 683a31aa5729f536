"""A file's metadata as an architecture reads them. What was not read is refused: it may change the model."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeVar, overload

from minfer.errors import ModelError, UnsupportedError
from minfer.gguf import MISSING, GGUFFile, GGUFValueType, MetadataValue, ValueKind

T = TypeVar("T")

CHANGES_NOTHING: Final = frozenset(
    {
        "vocab_size",  # the rows of token_embd.weight are what counts
        "tensor_data_layout",  # a name for the order of rows that the architecture always has
        "pooling_type",  # how an embedding is made of the hidden states, which changes no logits
        "rope.scaling.finetuned",  # how the scaling came about
    }
)
"""Keys that may have any value, although no architecture reads them."""

NEUTRAL: Final[Mapping[str, tuple[MetadataValue, ...]]] = MappingProxyType(
    {
        "attention.causal": (True,),
        "attention.clamp_kqv": (0,),
        "attention.max_alibi_bias": (0,),
        "attention.output_scale": (0, 1),
        "attention.scale": (0,),  # 0 stands for 1 / sqrt(head_dim)
        "attention.temperature_scale": (0,),
        "attn_logit_softcapping": (0,),
        "embedding_scale": (0, 1),
        "expert_count": (0,),
        "expert_used_count": (0,),
        "final_logit_softcapping": (0,),
        "leading_dense_block_count": (0,),
        "logit_scale": (0, 1),
        "nextn_predict_layers": (0,),
        "residual_scale": (0, 1),
        "rope.scaling.alpha": (0, 1),
        "rope.scaling.yarn_attn_factor": (1,),
        "rope.scaling.yarn_ext_factor": (-1, 1),
        "rope.scaling.yarn_log_multiplier": (0,),
        "use_parallel_residual": (False,),
    }
)
"""Keys of features that only some architectures have, with the values that say that there is no such feature."""

_N_SHOWN = 5


class Keys:
    """The metadata under an architecture's prefix, and the shapes of tensors. Names are given without the prefix.

    The getters raise `ModelError`, with the whole key, for a value that is missing and has no default, is of the wrong
    type, or is out of its range.
    """

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.architecture = architecture
        self._file = file
        self._read: set[str] = set()

    @property
    def n_layers(self) -> int:
        """`block_count`: at most the number of tensors, so that what is read for each layer fits in memory."""
        n_layers, n_tensors = self.integer("block_count"), len(self._file.tensors)
        if n_layers > n_tensors:
            raise ModelError(f"{self.full_name('block_count')} is {n_layers}, and the file has {n_tensors} tensors")
        return n_layers

    @overload
    def integer(self, name: str, *, at_least: int = 1) -> int: ...
    @overload
    def integer(self, name: str, default: T, *, at_least: int = 1) -> int | T: ...
    def integer(self, name: str, default: object = MISSING, *, at_least: int = 1) -> object:
        """An integer. Most are counts and widths, and so at least 1."""
        key = self._key(name)
        value = self._file.metadata.get_int(key, default)
        if key in self._file.metadata and isinstance(value, int):
            _check_least(key, value, at_least)
        return value

    def integers(self, name: str, default: tuple[int, ...] | None = None, *, at_least: int = 1) -> tuple[int, ...]:
        """One integer a layer: files have an array of them, or one number for all layers."""
        key, metadata = self._key(name), self._file.metadata
        if key not in metadata and default is not None:
            return default
        if key not in metadata or metadata.value_type(key) is not GGUFValueType.ARRAY:
            return (self.integer(name, at_least=at_least),) * self.n_layers
        array = metadata.get_array(key, ValueKind.INT)
        if len(array) != self.n_layers:
            raise ModelError(f"{key} has {len(array)} elements, and there are {self.n_layers} layers")
        values = tuple(array.tolist())
        for layer, value in enumerate(values):
            _check_least(f"{key}[{layer}]", value, at_least)
        return values

    @overload
    def number(self, name: str) -> float: ...
    @overload
    def number(self, name: str, default: T) -> float | T: ...
    def number(self, name: str, default: object = MISSING) -> object:
        """A float; integers are taken too."""
        return self._file.metadata.get_float(self._key(name), default)

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: T) -> str | T: ...
    def text(self, name: str, default: object = MISSING) -> object:
        """A string."""
        return self._file.metadata.get_str(self._key(name), default)

    def tensor_shape(self, name: str) -> tuple[int, ...] | None:
        """The row-major shape of a tensor, by its whole name; None where the file has no such tensor."""
        info = self._file.tensors.get(name)
        return None if info is None else info.shape

    def full_name(self, name: str) -> str:
        """The key as it is in the file, for messages."""
        return f"{self.architecture}.{name}"

    def read(self) -> tuple[str, ...]:
        """The keys that were read and are in the file, in file order, with the prefix."""
        return tuple(key for key in self._file.metadata if key in self._read)

    def refuse_unread(self) -> None:
        """Call this when all is read.

        Raises:
            UnsupportedError: keys under the architecture's prefix that were not read, unless they change nothing.
        """
        prefix = self.full_name("")
        unread = [
            f"{key} = {reprlib.repr(self._file.metadata[key])}"
            for key in self._file.metadata
            if key.startswith(prefix) and key not in self._read and not self._changes_nothing(key.removeprefix(prefix))
        ]
        if unread:
            shown = ", ".join(unread[:_N_SHOWN]) + (", ..." if len(unread) > _N_SHOWN else "")
            count = f"{len(unread)} metadata key{'s' if len(unread) > 1 else ''}"
            raise UnsupportedError(
                f"{count} of this {self.architecture} file ({shown})",
                hint="The model is more than what is built for this architecture",
            )

    def _changes_nothing(self, name: str) -> bool:
        if name in CHANGES_NOTHING:
            return True
        return name in NEUTRAL and self._file.metadata[self.full_name(name)] in NEUTRAL[name]

    def _key(self, name: str) -> str:
        key = self.full_name(name)
        self._read.add(key)
        return key


def _check_least(key: str, value: int, at_least: int) -> None:
    if value < at_least:
        raise ModelError(f"{key} is {value}, and must be at least {at_least}")
