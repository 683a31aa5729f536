"""Several answers to one prompt are those that it has one by one, and share its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import minfer
from minfer.engine.runtime import Runtime
from minfer.errors import ContextError, ParameterError
from minfer.graph import PAGE_SIZE
from tiny_load import tiny_path
from tiny_models import IM_END

PROMPT = list(range(5, 155))
OPTIONS: dict[str, Any] = {"max_tokens": 12, "temperature": 1.5, "ignore_eos": True}


def test_each_sample_is_the_answer_with_its_seed(model: minfer.Model) -> None:
    samples = model.samples(PROMPT, 4, seed=7, **OPTIONS)
    assert [sample.stats.seed for sample in samples] == [7, 8, 9, 10]
    for sample in samples:
        alone = model.generate(PROMPT, seed=sample.stats.seed, **OPTIONS)
        assert (sample.tokens, sample.text, sample.stop_cause) == (alone.tokens, alone.text, alone.stop_cause)
    assert len({sample.tokens for sample in samples}) == 4


def test_samples_end_each_by_itself(model: minfer.Model) -> None:
    (end,) = model.tokenize(IM_END, special=True)
    options = {"max_tokens": 60, "temperature": 2.0, "logit_bias": {end: 4.0}}
    samples = model.samples("hello", 6, seed=1, **options)
    assert len({len(sample.tokens) for sample in samples}) > 3
    for sample in samples:
        alone = model.generate("hello", seed=sample.stats.seed, **options)
        assert (sample.tokens, sample.stop_cause) == (alone.tokens, alone.stop_cause)


def test_the_prompt_is_read_once_and_its_pages_are_shared(model: minfer.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = model._runtime.pool
    model._runtime.prefix_cache.clear()
    n_free = pool.n_free
    sizes, n_used = [], []
    step = Runtime.step

    def watched(self: Runtime, parts: Sequence[Any]) -> Any:
        sizes.append([len(part.tokens) for part in parts])
        n_used.append(n_free - pool.n_free)
        return step(self, parts)

    monkeypatch.setattr(Runtime, "step", watched)
    samples = model.samples(PROMPT, 4, seed=1, **OPTIONS)
    assert sizes == [[len(PROMPT)], *[[1, 1, 1, 1]] * 11]
    n_whole, n_own = len(PROMPT) // PAGE_SIZE, 4
    assert max(n_used) <= n_whole + n_own + 1
    model._runtime.prefix_cache.clear()
    assert pool.n_free == n_free
    assert [sample.stats.n_prefill_tokens for sample in samples] == [len(PROMPT), 0, 0, 0]
    assert {sample.stats.n_prompt_tokens for sample in samples} == {len(PROMPT)}


def test_the_end_of_the_context_ends_all(tiny_dir) -> None:
    with minfer.load(tiny_path(tiny_dir), 64) as small:
        samples = small.samples("hello", 3, max_tokens=200, ignore_eos=True)
        assert {(sample.stop_cause, len(sample.tokens)) for sample in samples} == {("context_end", 64)}
        with pytest.raises(ContextError):
            small.samples(PROMPT, 3)


def test_pieces_come_with_the_index_of_their_sample(model: minfer.Model) -> None:
    stream = model.stream_samples(PROMPT, 3, seed=7, **OPTIONS)
    texts = ["", "", ""]
    for index, delta in stream:
        texts[index] += delta.text
    assert texts == [sample.text for sample in stream.results]
    assert [sample.tokens for sample in stream.results] == [
        sample.tokens for sample in model.samples(PROMPT, 3, seed=7, **OPTIONS)
    ]


def test_a_closed_stream_keeps_what_there_is(model: minfer.Model) -> None:
    pool = model._runtime.pool
    model._runtime.prefix_cache.clear()
    n_free = pool.n_free
    stream = model.stream_samples(PROMPT, 3, seed=7, **OPTIONS)
    for _ in range(6):
        next(stream)
    stream.close()
    assert [sample.finish_reason for sample in stream.results] == ["cancelled"] * 3
    assert sum(len(sample.tokens) for sample in stream.results) >= 6
    model._runtime.prefix_cache.clear()
    assert pool.n_free == n_free
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, None])
def test_n_must_be_a_number_of_samples(model: minfer.Model, n: object) -> None:
    with pytest.raises(ParameterError, match="n must be an integer of at least 1"):
        model.samples(PROMPT, n)  # type: ignore[arg-type]


def test_without_a_seed_samples_have_one_each(model: minfer.Model) -> None:
    first, second = model.samples(PROMPT, 2, **OPTIONS)
    assert second.stats.seed == (first.stats.seed + 1) % 2**64
    assert model.samples(PROMPT, 2, **OPTIONS)[0].stats.seed != first.stats.seed


def test_one_sample_of_a_chat(model: minfer.Model) -> None:
    messages = [{"role": "user", "content": "hello"}]
    (sample,) = model.samples(messages, 1, seed=3, **OPTIONS)
    assert sample.tokens == model.generate(messages, seed=3, **OPTIONS).tokens


def test_logprobs_are_those_of_the_answer(model: minfer.Model) -> None:
    options = {**OPTIONS, "logprobs": 3, "seed": 2}
    alone = model.generate(PROMPT, **options)
    (sample, _) = model.samples(PROMPT, 2, **options)
    assert sample.logprobs == alone.logprobs
    assert alone.logprobs is not None
    assert [entry.token for entry in alone.logprobs] == list(alone.tokens)
    assert {len(entry.top) for entry in alone.logprobs} == {3}
    stream = model.stream(PROMPT, **options)
    deltas = list(stream.deltas())
    assert tuple(entry for delta in deltas for entry in delta.logprobs) == alone.logprobs
    assert model.generate(PROMPT, **OPTIONS).logprobs is None


@pytest.mark.parametrize("n_top", [-1, 1.5, True, 301])
def test_bad_logprobs(model: minfer.Model, n_top: object) -> None:
    with pytest.raises(ParameterError, match="logprobs"):
        model.generate(PROMPT, logprobs=n_top)  # type: ignore[arg-type]
