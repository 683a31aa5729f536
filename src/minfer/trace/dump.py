"""`MINFER_DUMP_DIR`: each layer's hidden state, and the logits, as `.npy` files.

`step-0000/layer-00.npy` is f32 [n_tokens, n_embd], the hidden state after layer 0 in step 0; `embedding.npy` is the
state before it, and `logits.npy` is f32 [n_outputs, n_vocab]. After the last layer, only the rows of the tokens whose
logits are wanted are computed: f32 [n_outputs, n_embd]. `scripts/compare-dumps` compares two such directories.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from minfer.errors import SettingsError
from minfer.trace.observer import NodeEvent

_HIDDEN = re.compile(r"blk\.(\d+)\.hidden")
_PLAIN_NAMES = {"embedding": "embedding", "output": "logits"}


class HiddenStateDumper:
    """An observer that writes hidden states.

    Raises:
        SettingsError: the directory can't be made, or holds an earlier dump, which is not overwritten.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._step = -1
        if directory.is_dir() and any(directory.glob("step-*")):
            raise SettingsError(f"MINFER_DUMP_DIR: {directory} already holds a dump; name another directory")
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"MINFER_DUMP_DIR: can't make {directory}: {error.strerror}") from error

    def begin_step(self, n_tokens: int, first_position: int) -> None:
        self._step += 1
        self._step_directory.mkdir()

    def node_ran(self, event: NodeEvent) -> None:
        for name, array in event.outputs:
            hidden = _HIDDEN.fullmatch(name)
            file_name = f"layer-{int(hidden[1]):02d}" if hidden else _PLAIN_NAMES.get(name)
            if file_name is not None:
                np.save(self._step_directory / f"{file_name}.npy", array)

    def close(self) -> None:
        """Nothing is held open."""

    @property
    def _step_directory(self) -> Path:
        return self._directory / f"step-{self._step:04d}"
