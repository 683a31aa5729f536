"""Real models against float32 transformers on the same weights: top token, logits, and greedy tokens.

The reference backend has to be right to the rounding of float32. The CPU backend quantises activations to 8 bits, as
llama.cpp does: it has to find the same top token, and its mean divergence from the golden distributions to be below
llama.cpp's own.

The golden files hold, for eight prompts, the 50 largest logits at the last position and 48 greedy tokens with the
margin between the best and the second logit before each. A token chosen by a small margin may differ, and all after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minfer
from real_models import default_model, large_model

DATA = Path(__file__).parent.parent / "data"
LOGIT_TOLERANCE = 0.02
MIN_MARGIN = 0.05

PROMPTS = ("capital", "haiku", "code", "plain", "list", "unicode", "long", "single")


def golden(model: str, prompt: str) -> dict[str, Any]:
    rows = json.loads((DATA / f"logits-{model}.json").read_text())["rows"]
    (row,) = (row for row in rows if row["name"] == prompt)
    return row


@pytest.fixture(scope="module")
def small() -> Iterator[minfer.Model]:
    with minfer.load(default_model(), backend="reference", cache_type="f32") as model:
        yield model


@pytest.fixture(scope="module")
def large() -> Iterator[minfer.Model]:
    with minfer.load(large_model(), backend="reference", cache_type="f32") as model:
        yield model


def check(model: minfer.Model, row: dict[str, Any]) -> None:
    n_sure = next((i for i, margin in enumerate(row["margin"]) if margin < MIN_MARGIN), len(row["margin"]))
    with model.session() as session:
        logits = session.extend(row["tokens"])
        # Decoding gives the same bits as prefilling: the greedy tokens are checked in one go.
        after = session.extend_all(row["greedy"][:-1])
    assert int(logits.argmax()) == row["top_ids"][0]
    assert np.abs(logits[row["top_ids"]] - row["top_logits"]).max() <= LOGIT_TOLERANCE
    chosen = [int(logits.argmax()), *(int(token) for token in after.argmax(axis=1))]
    assert chosen[:n_sure] == row["greedy"][:n_sure]
    assert n_sure > 0


def test_the_golden_files_hold_these_prompts() -> None:
    for model in ("smollm2-135m", "qwen2.5-coder-0.5b"):
        rows = json.loads((DATA / f"logits-{model}.json").read_text())["rows"]
        assert tuple(row["name"] for row in rows) == PROMPTS


@pytest.mark.default_model
@pytest.mark.xdist_group("default_model")
@pytest.mark.parametrize("prompt", PROMPTS)
def test_default_model(small: minfer.Model, prompt: str) -> None:
    check(small, golden("smollm2-135m", prompt))


@pytest.mark.default_model
@pytest.mark.xdist_group("default_model")
def test_default_model_generates_the_golden_tokens(small: minfer.Model) -> None:
    row = golden("smollm2-135m", "code")
    result = small.generate(row["tokens"], max_tokens=24, temperature=0, ignore_eos=True)
    assert list(result.tokens) == row["greedy"][:24]


def divergence(row: dict[str, Any], logits: np.ndarray) -> float:
    """KL(golden, logits) over the golden top 50, the tail taken as one bucket: never negative."""
    wide = logits.astype(np.float64)
    golden_log = np.array(row["top_logits"]) - row["logsumexp"]
    log = wide[row["top_ids"]] - (np.log(np.exp(wide - wide.max()).sum()) + wide.max())
    p, q = np.exp(golden_log), np.exp(log)
    tail_p, tail_q = max(1 - p.sum(), 1e-9), max(1 - q.sum(), 1e-9)
    return float((p * (golden_log - log)).sum() + tail_p * np.log(tail_p / tail_q))


def check_cpu(path: Path, name: str, limit: float) -> None:
    divergences = []
    with minfer.load(path, backend="cpu") as model:
        for prompt in PROMPTS:
            row = golden(name, prompt)
            logits = model.logits(row["tokens"])
            assert int(logits.argmax()) == row["top_ids"][0], prompt
            divergences.append(divergence(row, logits))
    assert np.mean(divergences) <= limit, divergences


@pytest.mark.default_model
@pytest.mark.xdist_group("default_model")
def test_default_model_on_the_cpu_backend() -> None:
    check_cpu(default_model(), "smollm2-135m", 0.0031)


@pytest.mark.large_model
@pytest.mark.xdist_group("large_model")
def test_large_model_on_the_cpu_backend() -> None:
    check_cpu(large_model(), "qwen2.5-coder-0.5b", 0.0008)


@pytest.mark.default_model
@pytest.mark.xdist_group("default_model")
def test_default_model_templates_as_the_golden_prompt(small: minfer.Model) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = small.tokenizer.encode_chat(messages)
    text = small.detokenize(ids)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.large_model
@pytest.mark.xdist_group("large_model")
@pytest.mark.parametrize("prompt", PROMPTS)
def test_large_model(large: minfer.Model, prompt: str) -> None:
    check(large, golden("qwen2.5-coder-0.5b", prompt))
