"""The pace of prompts beside answers, on made-up times."""

from __future__ import annotations

import pytest

from minfer.engine import StepReport
from minfer.engine.batch_pace import MAX_SLOWDOWN, PrefillPace


def taught(*steps: tuple[float, int, int]) -> PrefillPace:
    """Steps are (seconds, prompt tokens, decoding sequences)."""
    pace = PrefillPace()
    for duration_s, n_prefill, n_decode in steps:
        pace.note(StepReport(duration_s, n_decode + 1, n_prefill, n_decode))
    return pace


def test_with_nobody_to_wait_the_whole_step_is_for_prompts() -> None:
    assert taught((0.01, 0, 1), (0.1, 100, 1)).budget(0, 512) == 512


def test_with_nothing_known_it_begins_small() -> None:
    assert PrefillPace().budget(1, 512) == 32
    assert PrefillPace().budget(1, 5) == 5


@pytest.mark.parametrize("n_decoding", [1, 4])
def test_a_step_takes_no_more_than_a_multiple_of_one_without_prompts(n_decoding: int) -> None:
    step_s, token_s = 0.01 * n_decoding, 0.001
    pace = taught((step_s, 0, n_decoding), (step_s + 50 * token_s, 50, n_decoding))
    n_tokens = pace.budget(n_decoding, 512)
    assert (n_decoding + n_tokens) % 4 == 0  # whole tiles
    assert step_s + n_tokens * token_s <= MAX_SLOWDOWN * step_s < step_s + (n_tokens + 4.01) * token_s


def test_a_step_of_prompts_alone_teaches_too() -> None:
    pace = taught((0.5, 500, 0), (0.01, 0, 1))
    n_tokens = int((MAX_SLOWDOWN - 1) * 0.01 / 0.001)
    assert pace.budget(1, 512) == n_tokens - (1 + n_tokens) % 4


def test_an_unknown_number_of_sequences_is_estimated_from_the_nearest_known_one() -> None:
    pace = taught((0.01, 0, 1), (0.08, 0, 8), (0.1, 100, 0))  # a prompt token takes 0.001 s
    for n_decoding, step_s in ((2, 0.011), (4, 0.013), (7, 0.079), (8, 0.08), (9, 0.081)):
        n_tokens = int((MAX_SLOWDOWN - 1) * step_s / 0.001)
        assert pace.budget(n_decoding, 512) == n_tokens - (n_decoding + n_tokens) % 4


def test_some_of_a_prompt_is_always_taken() -> None:
    assert taught((0.0001, 0, 1), (1.0, 10, 1)).budget(1, 512) == 4


def test_it_follows_what_it_sees() -> None:
    pace = taught((0.01, 0, 1), (0.11, 100, 1))
    before = pace.budget(1, 512)
    for _ in range(20):
        pace.note(StepReport(0.21, 2, 100, 1))
    assert pace.budget(1, 512) == pytest.approx(before / 2, abs=4)
