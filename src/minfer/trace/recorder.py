"""`MINFER_TRACE`: one JSON object a line for every node of every step.

The first line is `[`, and every other line is an object of the Trace Event Format, so that the same file is read
line by line by a script, and opened as it is by ui.perfetto.dev (which wants neither commas nor a closing bracket).
"""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.errors import SettingsError
from minfer.trace.observer import NodeEvent


class TraceRecorder:
    """An observer that writes a trace.

    Each line holds `name` (of the node), `cat` (the op), `ph` "X", `ts` and `dur` in microseconds, `pid`, `tid`, and
    `args`: step, layer, backend, and for every output its name, shape, min, max, mean, rms and number of NaNs.
    Statistics are over the values that are not NaN; they are null where there are none, or where the number is
    infinite.

    Raises:
        SettingsError: the file can't be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"MINFER_TRACE: can't write {path}: {error.strerror}") from error
        self._file.write("[\n")
        self._step = -1
        self._lock = threading.Lock()

    def begin_step(self, n_tokens: int, first_position: int) -> None:
        self._step += 1

    def node_ran(self, event: NodeEvent) -> None:
        line = json.dumps(
            {
                "name": event.node,
                "cat": event.op,
                "ph": "X",
                "ts": round(event.start_s * 1e6, 3),
                "dur": round(event.duration_s * 1e6, 3),
                "pid": os.getpid(),
                "tid": event.backend,
                "args": {
                    "step": self._step,
                    "layer": event.layer,
                    "outputs": [{"name": name, **statistics(array)} for name, array in event.outputs],
                },
            }
        )
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        self._file.close()


def statistics(array: NDArray[Any]) -> dict[str, Any]:
    """Shape, min, max, mean, rms and NaN count of an array, ready for JSON."""
    values = np.asarray(array, np.float64)
    is_nan = np.isnan(values)
    known = values[~is_nan]
    numbers: dict[str, float | None] = dict.fromkeys(("min", "max", "mean", "rms"))
    if known.size:
        with np.errstate(all="ignore"):
            numbers = {
                "min": float(known.min()),
                "max": float(known.max()),
                "mean": float(known.mean()),
                "rms": float(np.sqrt(np.mean(known * known))),
            }
    finite = {name: n if n is not None and math.isfinite(n) else None for name, n in numbers.items()}
    return {"shape": list(array.shape), **finite, "n_nan": int(is_nan.sum())}
