"""What all tests share."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has a core; BLAS threads of several would wait for one another. NumPy reads this at import.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on the settings of whoever runs it; only the cache, where real models lie, stays."""
    for name in [name for name in os.environ if name.startswith("MINFER_") and name != "MINFER_CACHE_DIR"]:
        monkeypatch.delenv(name)
