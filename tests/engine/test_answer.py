"""The state machine of an answer, driven without a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from minfer.engine import Answer, Delta, GenerationRequest, StopCause
from minfer.errors import ParameterError
from minfer.sampling import Sampler, SamplingParams
from minfer.text import Tokenizer, build_tokenizer
from text_vocabularies import CONTROL, bpe_metadata

END, HIDDEN = 256, 257
NO_LOGITS = np.zeros(258, np.float32)


class Script(Sampler):
    """Says given tokens in order."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(SamplingParams(seed=5), len(NO_LOGITS))
        self._tokens = list(tokens)
        self.histories: list[list[int]] = []

    def sample(self, logits: object, history: Sequence[int]) -> int:
        self.histories.append(list(history))
        return self._tokens.pop(0)


def tokenizer() -> Tokenizer:
    return build_tokenizer(bpe_metadata([("<end>", CONTROL), ("<hidden>", CONTROL)], eos_token_id=END))


def answer(
    tokens: Sequence[int], stop: tuple[str, ...] = (), max_tokens: int = 99, *, ignore_eos: bool = False
) -> Answer:
    request = GenerationRequest(
        prompt_tokens=(1, 2),
        sampling=SamplingParams(),
        max_tokens=max_tokens,
        stop=stop,
        ignore_eos=ignore_eos,
        continues_text=True,
    )
    return Answer(tokenizer(), Script(tokens), request)


def run(made: Answer) -> list[Delta]:
    deltas = []
    while not made.is_done:
        deltas.append(made.push(NO_LOGITS))
    return deltas


def test_a_delta_has_the_text_of_its_tokens() -> None:
    made = answer([*b"ab", END])
    assert run(made) == [Delta("a", (97,)), Delta("b", (98,)), Delta()]
    assert (made.text, made.tokens, made.cause) == ("ab", (97, 98), StopCause.END_OF_GENERATION)


def test_the_tokens_of_a_character_come_with_it() -> None:
    euro = "€".encode()
    assert run(answer([*euro, END])) == [Delta(), Delta(), Delta("€", tuple(euro)), Delta()]


def test_bytes_that_become_no_character_are_shown_at_the_end_or_as_soon_as_that_is_clear() -> None:
    assert run(answer([0xE2, END])) == [Delta(), Delta("\ufffd", (0xE2,))]
    assert run(answer([0xE2, *b"a", END])) == [Delta(), Delta("\ufffda", (0xE2, 97)), Delta()]


def test_control_tokens_have_no_text_and_are_given_out_at_once() -> None:
    assert run(answer([HIDDEN, 97, END])) == [Delta("", (HIDDEN,)), Delta("a", (97,)), Delta()]


def test_what_may_begin_a_stop_string_is_held_back_with_its_tokens() -> None:
    made = answer([*b"aXYbXYZ"], stop=("XYZ",))
    assert run(made) == [Delta("a", (97,)), *[Delta()] * 2, Delta("XYb", tuple(b"XYb")), *[Delta()] * 3]
    assert made.cause is StopCause.STOP_STRING
    assert made.text == "aXYb"
    assert made.tokens == tuple(b"aXYbXYZ")


@pytest.mark.parametrize("end", ["end token", "max_tokens", "context"])
def test_what_was_held_back_is_shown_at_the_end(end: str) -> None:
    tokens = [*b"aXY"]
    made = answer([*tokens, END], stop=("XYZ",), max_tokens=3 if end == "max_tokens" else 99)
    deltas = [made.push(NO_LOGITS) for _ in tokens]
    if end == "end token":
        deltas.append(made.push(NO_LOGITS))
    if end == "context":
        deltas.append(made.end(StopCause.CONTEXT_END))
    assert deltas[-1] == Delta("XY", tuple(b"XY"))
    assert made.text == "aXY"


def test_what_a_cancelled_answer_held_back_is_not_shown() -> None:
    made = answer([*b"aXY"], stop=("XYZ",))
    for _ in range(3):
        made.push(NO_LOGITS)
    assert made.end(StopCause.CANCELLED) == Delta()
    assert (made.text, made.tokens, made.cause) == ("a", tuple(b"aXY"), StopCause.CANCELLED)


def test_the_end_of_what_was_held_back_may_complete_a_stop_string() -> None:
    made = answer([97, 0xE2, END], stop=("\ufffd",))
    assert run(made)[-1] == Delta("", (0xE2,))
    assert made.text == "a"


def test_an_answer_ends_once() -> None:
    made = answer([97, END])
    run(made)
    assert made.end(StopCause.CANCELLED) == Delta()
    assert made.cause is StopCause.END_OF_GENERATION


def test_end_tokens_may_be_ignored() -> None:
    made = answer([END, 97, END], max_tokens=3, ignore_eos=True)
    assert run(made) == [Delta("", (END,)), Delta("a", (97,)), Delta("", (END,))]
    assert made.cause is StopCause.MAX_TOKENS


def test_the_next_token_is_the_last_one_while_it_goes_on() -> None:
    made = answer([*b"ab", END])
    with pytest.raises(ParameterError, match="no next token"):
        _ = made.next_token
    for token in b"ab":
        made.push(NO_LOGITS)
        assert made.next_token == token
    made.push(NO_LOGITS)
    with pytest.raises(ParameterError, match="no next token"):
        _ = made.next_token


def test_the_sampler_sees_the_prompt_and_the_answer() -> None:
    made = answer([*b"ab", END])
    run(made)
    sampler = made.sampler
    assert isinstance(sampler, Script)
    assert sampler.histories == [[1, 2], [1, 2, 97], [1, 2, 97, 98]]


def test_the_result_counts_the_work_that_was_done() -> None:
    made = answer([97, END])
    assert made.result.finish_reason == "cancelled"
    made.work.n_prefill_tokens, made.work.n_cached_tokens, made.work.n_dropped_tokens = 2, 3, 4
    run(made)
    stats = made.result.stats
    assert made.result.finish_reason == "stop"
    assert (stats.n_prefill_tokens, stats.n_prompt_tokens, stats.n_dropped_tokens, stats.seed) == (2, 5, 4, 5)
