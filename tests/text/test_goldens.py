"""Token ids of two real models, as llama.cpp makes them."""

from __future__ import annotations

import pytest

from text_vocabularies import read_json, real_tokenizer

MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")
ROWS = [(model, row) for model in MODELS for row in read_json(f"tokens-{model}.json")["rows"]]


def test_each_model_has_all_its_texts() -> None:
    assert [sum(name == model for name, _ in ROWS) for model in MODELS] == [99, 99]


@pytest.mark.parametrize(("model", "row"), ROWS)
def test_ids_are_those_of_llama_cpp(model: str, row: dict[str, object]) -> None:
    tokenizer = real_tokenizer(model)
    text = str(row["text"])
    assert tokenizer.tokenize(text) == row["plain"]
    assert tokenizer.tokenize(text, special=True) == row["special"]
    assert tokenizer.detokenize(tokenizer.tokenize(text)) == text
    assert tokenizer.detokenize(tokenizer.tokenize(text, special=True)) == text


@pytest.mark.parametrize(
    ("model", "n_vocab", "bos", "eos", "ends"),
    [
        ("smollm2-135m", 49152, 1, 2, {0, 2, 4}),
        ("qwen2.5-coder-0.5b", 151936, 151643, 151645, {151643, 151645, 151662, 151663, 151664, 128247}),
    ],
)
def test_special_ids(model: str, n_vocab: int, bos: int, eos: int, ends: set[int]) -> None:
    tokenizer = real_tokenizer(model)
    assert tokenizer.n_vocab == n_vocab
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (bos, eos, False)
    assert tokenizer.eog_ids == ends


@pytest.mark.parametrize("model", MODELS)
def test_every_token_decodes_and_the_pieces_of_a_stream_are_those_of_the_whole(model: str) -> None:
    tokenizer = real_tokenizer(model)
    ids = [token_id for row in read_json(f"tokens-{model}.json")["rows"] for token_id in row["special"]]
    decoder = tokenizer.stream_decoder()
    pieces = [decoder.push(token_id) for token_id in ids]
    assert "".join(pieces) + decoder.finish() == tokenizer.detokenize(ids)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == tokenizer.detokenize(ids)
    n_empty = sum(not tokenizer.token_bytes(token_id) for token_id in range(tokenizer.n_vocab))
    assert n_empty == tokenizer.vocabulary.types.count(5)


# What the models' own prompts are, as `transformers` makes them from the same templates.
CAPITAL = [
    *(1, 9690, 198, 2683, 359, 253, 5356, 11173, 30, 2, 198, 1, 4093, 198),
    *(1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198),
]


def test_a_chat_prompt_of_the_default_model() -> None:
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    tokenizer = real_tokenizer("smollm2-135m")
    prompt = tokenizer.apply_template(messages)
    assert tokenizer.tokenize(prompt, special=True) == CAPITAL
    assert tokenizer.encode_chat(messages) == CAPITAL
    assert tokenizer.encode_chat(messages, add_generation_prompt=False) == CAPITAL[:-4]


@pytest.mark.parametrize("character", ["a", " ", "7", "é", "\n", "!", "🙂"])
@pytest.mark.parametrize("model", MODELS)
def test_long_runs_take_no_time_to_speak_of(model: str, character: str) -> None:
    tokenizer = real_tokenizer(model)
    ids = tokenizer.tokenize(character * 100_000)
    assert tokenizer.detokenize(ids) == character * 100_000
