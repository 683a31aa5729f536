"""What tests of the engine share: a tiny model, counted steps, and samplers that say what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import minfer
from minfer.engine.runtime import Runtime
from minfer.engine.samplers import Samplers
from minfer.sampling import Sampler, SamplingParams
from tiny_load import tiny_path


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="session")
def model(tiny_dir: Path) -> Iterator[minfer.Model]:
    """llama, grouped queries, three layers, a context of 256; random weights."""
    with minfer.load(tiny_path(tiny_dir)) as loaded:
        yield loaded


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each step computes."""
    steps: list[int] = []
    step = Runtime.step

    def counted(self: Runtime, parts: Sequence[Any]) -> Any:
        steps.append(sum(len(part.tokens) for part in parts))
        return step(self, parts)

    monkeypatch.setattr(Runtime, "step", counted)
    return steps


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the model's samplers say given tokens, whatever the logits are."""

    def script(*answers: Sequence[int]) -> None:
        left = [list(answer) for answer in answers]

        class Script(Sampler):
            def __init__(self, params: SamplingParams, n_vocab: int) -> None:
                super().__init__(params, n_vocab)
                self._tokens: list[int] | None = None

            def sample(self, *_: object) -> int:
                if self._tokens is None:
                    self._tokens = left.pop(0)
                return self._tokens.pop(0)

        monkeypatch.setattr(Samplers, "make", lambda self, params: Script(params, self._tokenizer.n_vocab))

    return script
