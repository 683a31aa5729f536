"""DRY ("don't repeat yourself"): a penalty for tokens that would go on with a repetition of earlier text.

Origin: Weidmann 2024, https://github.com/oobabooga/text-generation-webui/pull/5677. Where the last m tokens have
occurred before, followed by a token x, then x loses `multiplier * base ** (m - allowed_length)` of its logit, for the
greatest such m, if m >= allowed_length. A repetition does not reach across a sequence breaker, and a token that is a
breaker by itself is never penalised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.sampling.candidates import Tokens

_COMPARED_AT_ONCE = 32
# A longer repetition is penalised like one whose power of `base` reaches the range of float32, as in llama.cpp: that
# bans the token for any practical purpose, and bounds the search.
_MAX_LOG_POWER = math.log(float(np.finfo(np.float32).max))


@dataclass(frozen=True)
class SequenceBreakers:
    """The sequence breakers as token ids.

    Attributes:
        single: tokens that each are a breaker, or contain one.
        longer: breakers of several tokens.
    """

    single: frozenset[int] = frozenset()
    longer: frozenset[tuple[int, ...]] = frozenset()


def find_breakers(
    breakers: Iterable[str], token_texts: Sequence[str], encode: Callable[[str], Sequence[int]]
) -> SequenceBreakers:
    """The token ids of breakers: every token whose text contains one, and the tokens that one is encoded as.

    `token_texts` has the text of each token id, and `encode` makes tokens of a text, none of which marks its beginning.
    """
    wanted = tuple(breakers)
    containing = {token for token, text in enumerate(token_texts) if any(breaker in text for breaker in wanted)}
    encoded = [tuple(encode(breaker)) for breaker in wanted]
    return SequenceBreakers(
        frozenset(containing.union(ids[0] for ids in encoded if len(ids) == 1)),
        frozenset(ids for ids in encoded if len(ids) > 1),
    )


def penalise_repetition(
    tokens: Tokens,
    history: NDArray[np.int64],
    breakers: SequenceBreakers,
    *,
    multiplier: float,
    base: float,
    allowed_length: int,
) -> Tokens:
    """Lowers the logits of tokens that would go on with a repetition of `history`, as this file's text tells.

    Raises:
        ParameterError: a logit is driven to -inf.
    """
    longest = allowed_length if base == 1 else allowed_length + int(_MAX_LOG_POWER / math.log(base))
    followers, lengths = repetitions(history, breakers, longest)
    is_breaker = np.array([token in breakers.single for token in followers.tolist()], np.bool_)
    repeated = (lengths >= allowed_length) & ~is_breaker
    if not repeated.any():
        return tokens
    ids = followers[repeated]
    before = tokens.logits_of(ids)
    with np.errstate(over="ignore"):  # an overflow is reported below, by name
        after = before - multiplier * base ** (lengths[repeated] - allowed_length).astype(np.float64)
    overflowed = np.isfinite(before) & ~np.isfinite(after)
    if overflowed.any():
        raise ParameterError(
            f"dry_multiplier {multiplier!r} drives the logit of token {ids[overflowed][0]} to -inf; use a smaller one"
        )
    return tokens.with_logits(ids, after)


def repetitions(
    history: NDArray[np.int64], breakers: SequenceBreakers, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tokens that have followed an earlier occurrence of the last m >= 1 tokens, and for each its greatest m.

    No m is greater than `longest`, or than the number of tokens after the last breaker.
    """
    end_of_history = history[-longest - _longest_breaker(breakers) :].tolist()
    longest = min(longest, tokens_since_breaker(end_of_history, breakers))
    ends = np.flatnonzero(history[:-1] == history[-1:]) if longest else np.empty(0, np.intp)
    lengths = np.ones(len(ends), np.int64)
    growing = np.arange(len(ends))
    for start in range(1, longest, _COMPARED_AT_ONCE):
        back = np.arange(start, min(start + _COMPARED_AT_ONCE, longest))
        places = ends[growing, None] - back
        alike = (places >= 0) & (history[np.maximum(places, 0)] == history[-1 - back])
        n_alike = np.where(alike.all(axis=1), len(back), alike.argmin(axis=1))
        lengths[growing] += n_alike
        growing = growing[n_alike == len(back)]
        if not growing.size:
            break
    followers, which = np.unique(history[ends + 1], return_inverse=True)
    greatest = np.zeros(len(followers), np.int64)
    np.maximum.at(greatest, which, lengths)
    return followers, greatest


def tokens_since_breaker(history: Sequence[int], breakers: SequenceBreakers) -> int:
    """How many tokens follow the last breaker; all, where there is none."""
    sizes = {len(breaker) for breaker in breakers.longer}
    for end in range(len(history), 0, -1):
        if history[end - 1] in breakers.single:
            return len(history) - end
        if any(size <= end and tuple(history[end - size : end]) in breakers.longer for size in sizes):
            return len(history) - end
    return len(history)


def _longest_breaker(breakers: SequenceBreakers) -> int:
    return max((len(breaker) for breaker in breakers.longer), default=1)
