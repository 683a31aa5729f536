"""The sampling parameters: what a user may set, each with its range and its neutral value.

Names, defaults and neutral values are those of llama.cpp's server, where it has the parameter, but for the penalties:
`repetition_penalty` and `penalty_window` are its `repeat_penalty` and `repeat_last_n`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from minfer.sampling.checks import finite_real, integer, logit_biases, require, strings
from minfer.sampling.combinations import SAMPLERS, check_combinations

_MAX_SEED = 2**64 - 1

_REALS: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "repetition_penalty": (lambda x: x > 0, "finite and above 0 (1 is off)"),
    "frequency_penalty": (lambda x: -2 <= x <= 2, "from -2 to 2 (0 is off)"),
    "presence_penalty": (lambda x: -2 <= x <= 2, "from -2 to 2 (0 is off)"),
    "dry_multiplier": (lambda x: x >= 0, "finite and >= 0 (0 is off)"),
    "dry_base": (lambda x: x >= 1, "finite and >= 1"),
    "typical_p": (lambda x: 0 < x <= 1, "above 0 and at most 1 (1 is off)"),
    "top_p": (lambda x: 0 < x <= 1, "above 0 and at most 1 (1 is off)"),
    "min_p": (lambda x: 0 <= x <= 1, "from 0 to 1 (0 is off)"),
    "top_n_sigma": (lambda x: x >= 0 or x == -1, "finite and above 0 (0 and -1 are off)"),
    "xtc_probability": (lambda x: 0 <= x <= 1, "from 0 to 1 (0 is off)"),
    "xtc_threshold": (lambda x: 0 < x <= 1, "above 0 and at most 1 (above 0.5 is off)"),
    "temperature": (lambda x: x >= 0, "finite and >= 0 (0 is greedy)"),
    "dynatemp_range": (lambda x: x >= 0, "finite and >= 0 (0 is off)"),
    "dynatemp_exponent": (lambda x: x > 0, "finite and above 0"),
    "mirostat_tau": (lambda x: x >= 0, "finite and >= 0"),
    "mirostat_eta": (lambda x: x >= 0, "finite and >= 0 (0 never adapts)"),
}
_INTEGERS: Mapping[str, tuple[Callable[[int], bool], str]] = {
    "penalty_window": (lambda n: n >= -1, ">= -1 (-1 is all tokens, 0 is off)"),
    "dry_allowed_length": (lambda n: n >= 1, ">= 1"),
    "dry_penalty_last_n": (lambda n: n >= -1, ">= -1 (-1 is all tokens, 0 is off)"),
    "top_k": (lambda n: n >= -1, ">= 0 (0 and -1 are off)"),
    "min_keep": (lambda n: n >= 0, ">= 0 (0 and 1 are off)"),
    "mirostat": (lambda n: n in (0, 1, 2), "0 (off), 1 or 2"),
}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen from the logits. Nothing is clamped: a value out of its range is an error.

    `docs/sampling.md` explains each with its origin.

    Attributes:
        temperature: >= 0. Divides the logits before the draw; 0 is greedy (always the likeliest token).
        dynatemp_range: in [0, temperature]. The temperature follows the entropy, within this much of `temperature`;
            0 is off.
        dynatemp_exponent: > 0. The power of the normalised entropy that it follows.
        top_k: >= 0. Keeps the `top_k` likeliest tokens; 0 is off, and -1 becomes 0.
        typical_p: in (0, 1]. Keeps the tokens whose surprise is nearest to the entropy, until their probabilities
            reach `typical_p`; 1 is off.
        top_p: in (0, 1]. Keeps the fewest likeliest tokens whose probabilities reach `top_p`; 1 is off.
        min_p: in [0, 1]. Keeps tokens at least `min_p` times as likely as the likeliest; 0 is off.
        top_n_sigma: > 0. Keeps logits within so many standard deviations of the largest; 0 and -1 are off.
        xtc_probability: in [0, 1]. How often all but the last of the tokens that reach `xtc_threshold` are dropped;
            0 is off.
        xtc_threshold: in (0, 1]. See above; above 0.5 is off, since no two tokens reach it.
        min_keep: >= 0. Typical-p, top-p, min-p, top-n-sigma and XTC leave at least so many tokens; 0 and 1 are off.
        repetition_penalty: > 0. Divides positive and multiplies negative logits of tokens seen; 1 is off.
        frequency_penalty: in [-2, 2]. Subtracted from a token's logit once for each time it was seen; 0 is off.
        presence_penalty: in [-2, 2]. Subtracted once from the logit of each token seen; 0 is off.
        penalty_window: >= -1. How many of the last tokens count as seen; -1 is all of them, 0 is off.
        dry_multiplier: >= 0. DRY: what is subtracted from the logit of a token that would repeat
            `dry_allowed_length` tokens and itself; 0 is off.
        dry_base: >= 1. DRY: the penalty is multiplied by this for each further token repeated.
        dry_allowed_length: >= 1. DRY: the shortest repetition whose continuation is penalised.
        dry_penalty_last_n: >= -1. DRY: how many of the last tokens are searched; -1 is all of them, 0 is off.
        dry_sequence_breakers: DRY: texts that end a repetition. The sampler gets their token ids as `dry_breakers`.
        mirostat: 0 (off), 1 or 2. Holds the surprise of the text near `mirostat_tau`, in place of the truncations:
            those that have their default value are off with it, and another value is refused.
        mirostat_tau: >= 0. The surprise aimed at, in bits a token.
        mirostat_eta: >= 0. The learning rate of mirostat; 0 never adapts.
        logit_bias: token id -> what is added to its logit; finite, or -inf to ban the token. Copied.
        samplers: the order of the pipeline: names out of `SAMPLERS`, each once. A stage that is left out is off; that
            is refused where its parameter is neither the default nor the neutral value.
        seed: in [0, 2**64). The same seed, parameters and logits give the same tokens; None takes a random one.

    Raises:
        ParameterError: naming the field, its value and its range, or the fields that exclude each other.
    """

    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    typical_p: float = 1.0
    top_p: float = 0.95
    min_p: float = 0.05
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_keep: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_window: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    samplers: tuple[str, ...] = SAMPLERS
    seed: int | None = None

    def __post_init__(self) -> None:
        # A frozen dataclass can be completed only this way. Numbers of other libraries (np.float32, np.int64) become
        # Python's, so that equal parameters compare, hash and print alike.
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name, (is_valid, expected) in _REALS.items():
            number = finite_real(name, getattr(self, name))
            require(is_valid(number), name, number, expected)
            put(name, number)
        for name, (is_allowed, expected) in _INTEGERS.items():
            whole = integer(name, getattr(self, name))
            require(is_allowed(whole), name, whole, expected)
            put(name, whole)
        put("top_k", max(0, self.top_k))
        put("dry_sequence_breakers", strings("dry_sequence_breakers", self.dry_sequence_breakers))
        put("samplers", strings("samplers", self.samplers))
        put("logit_bias", logit_biases(self.logit_bias))
        if self.seed is not None:
            seed = integer("seed", self.seed)
            require(0 <= seed <= _MAX_SEED, "seed", seed, f"from 0 to {_MAX_SEED}, or None for a random one")
            put("seed", seed)
        check_combinations(self)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0
