"""The hook for a grammar: something that says, token by token, which tokens may come next."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.sampling.candidates import Tokens


class Grammar(Protocol):
    """What constrains the text. It belongs to one sampler, which tells it every token that is drawn."""

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may come next: shape (n_vocab,). Read before the next call, and not kept."""
        ...

    def accept(self, token: int) -> None:
        """Tells it the token that was drawn, which its mask allowed."""
        ...

    def state(self) -> object:
        """Where it stands, as a value that JSON can hold, and not None."""
        ...

    def restore(self, state: object) -> None:
        """Goes back to where it stood when `state()` gave this value.

        Raises:
            ParameterError: the value is not a state of this grammar.
        """
        ...


def apply_grammar(tokens: Tokens, allowed: NDArray[np.bool_], n_vocab: int) -> Tokens:
    """Bans the tokens that the grammar does not allow.

    Origin: constrained decoding, as in Willard and Louf 2023, arXiv:2307.09702.

    Raises:
        ParameterError: the mask has the wrong shape or type, or nothing is left to draw.
    """
    if allowed.shape != (n_vocab,) or allowed.dtype != np.bool_:
        raise ParameterError(
            f"the grammar's mask is {allowed.dtype} of shape {allowed.shape}; bool of shape ({n_vocab},) is needed"
        )
    masked = tokens.masked(allowed)
    if masked.largest() == -np.inf:
        raise ParameterError(
            f"the grammar allows {int(allowed.sum())} tokens, none of which is left to draw; "
            f"no stage that drops tokens may come before it in samplers"
        )
    return masked
