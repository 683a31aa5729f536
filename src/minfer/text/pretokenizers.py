"""Pre-tokenizers of byte-level BPE: how a text is cut into the words that merges do not cross.

GGUF names one in `tokenizer.ggml.pre`. Each is a list of regular expressions, used one after the other: an expression
cuts every piece so far into its matches and the gaps between them, and both stay pieces. The names and the expressions
are llama.cpp's; where its matcher departs from the plain reading of an expression, ours is written to do what it does:

- in an expression without a general category (`\\p{L}`), white space beyond ASCII is matched by `\\s` only, never by
  a range that holds it;
- only ASCII letters have a case: every other letter may stand for a capital and for a small one.

The dialect is Oniguruma's, which the `tokenizers` library uses; there `&&` intersects character classes, and `\\s` is
Unicode's White_Space. Letters that joined Unicode after version 15 can differ from llama.cpp, whose tables are older.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from minfer.errors import UnsupportedError


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut a text into words, and what comes with its name."""

    expressions: tuple[str, ...]
    """Applied in this order, each to the pieces that the ones before it left."""
    ignore_merges: bool = False
    """A word that is a token as a whole becomes that token, whatever the merges would make of it."""
    add_bos: bool = False
    """Whether a file that does not say so wants a BOS token in front of a text."""


_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PATH_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"

# A word that may change from capitals to small letters once.
_CAPITAL = r"[\p{L}&&[^a-z]]"
_SMALL = r"[\p{L}&&[^A-Z]]"
_CASED = (f"[^\\r\\n\\p{{L}}\\p{{N}}]?{_CAPITAL}*{_SMALL}+", f"[^\\r\\n\\p{{L}}\\p{{N}}]?{_CAPITAL}+{_SMALL}*")

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = "|".join((_CONTRACTION, _WORD, r"\p{N}{1,3}", _SYMBOLS, _SPACE))
_QWEN2 = "|".join((_CONTRACTION, _WORD, r"\p{N}", _SYMBOLS, _SPACE))
_QWEN35 = "|".join(
    (_CONTRACTION, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _SPACE)
)
_MINICPM5 = "|".join((_CONTRACTION, _WORD, r"\p{N}+", _SYMBOLS, _SPACE))
_SEED_CODER = "|".join((_CONTRACTION, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _SPACE))
_BAILING_MOE = "|".join(
    ("'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])", _WORD, r"\p{N}", _SYMBOLS, r"\s*[\r\n]|\s+(?!\S)|\s+")
)
_TEKKEN = "|".join((*_CASED, r"\p{N}", _PATH_SYMBOLS, _SPACE))
_GPT4O = "|".join((*(f"{word}{_CONTRACTION}?" for word in _CASED), r"\p{N}{1,3}", _PATH_SYMBOLS, _SPACE))
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

# Unicode's cased letters at the time of DeepSeek's first tokenizer.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_PUNCTUATION = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002"
_DEEPSEEK_EAST_ASIAN = "[[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]&&[^\\s]]+"
_DEEPSEEK_V3 = "|".join(
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        r" ?[\p{P}\p{S}]+[\r\n]*",
        _SPACE,
    )
)

_LLAMA3_PRE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_LLAMA3_MERGING_PRE = PreTokenizer((_LLAMA3,))
_GLM4_PRE = PreTokenizer((_LLAMA3,), ignore_merges=True)
_QWEN2_PRE = PreTokenizer((_QWEN2,))
_GPT2_PRE = PreTokenizer((_GPT2,))
_STARCODER_PRE = PreTokenizer((r"\p{N}", _GPT2))
_GPT4O_PRE = PreTokenizer((_GPT4O,))
_BAILING_MOE_PRE = PreTokenizer((_BAILING_MOE,))
_BLOOM_PRE = PreTokenizer((_BLOOM,))
_DEEPSEEK_V3_PRE = PreTokenizer((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u30ff]+", _DEEPSEEK_V3))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
        "llama3": _LLAMA3_PRE,
        "llama-v3": _LLAMA3_PRE,
        "llama-bpe": _LLAMA3_PRE,
        "falcon3": _LLAMA3_PRE,
        "falcon-h1": _LLAMA3_PRE,
        "pixtral": _LLAMA3_PRE,
        "midm-2.0": _LLAMA3_PRE,
        "lfm2": _LLAMA3_PRE,
        "dbrx": _LLAMA3_MERGING_PRE,
        "smaug-bpe": _LLAMA3_MERGING_PRE,
        "chatglm-bpe": _LLAMA3_MERGING_PRE,
        "glm4": _GLM4_PRE,
        "glm5": _GLM4_PRE,
        "deepseek-llm": PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                rf"\s?[{_DEEPSEEK_PUNCTUATION}]+",
                r"\s+\z",
                _DEEPSEEK_EAST_ASIAN,
                r"\p{N}+",
            )
        ),
        "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_EAST_ASIAN, r"\p{N}")),
        "deepseek-v3": _DEEPSEEK_V3_PRE,
        "hunyuan-dense": _DEEPSEEK_V3_PRE,
        "joyai-llm": _DEEPSEEK_V3_PRE,
        "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
        "starcoder": _STARCODER_PRE,
        "refact": _STARCODER_PRE,
        "command-r": _STARCODER_PRE,
        "smollm": _STARCODER_PRE,
        "codeshell": _STARCODER_PRE,
        "exaone": _STARCODER_PRE,
        "minerva-7b": _STARCODER_PRE,
        "mellum2": _STARCODER_PRE,
        "gpt-2": _GPT2_PRE,
        "phi-2": _GPT2_PRE,
        "mpt": _GPT2_PRE,
        "olmo": _GPT2_PRE,
        "jais": _GPT2_PRE,
        "trillion": _GPT2_PRE,
        "gigachat": _GPT2_PRE,
        "exaone4": _GPT2_PRE,
        "mellum": _GPT2_PRE,
        "a.x-4.0": _GPT2_PRE,
        "granite-docling": _GPT2_PRE,
        "qwen2": _QWEN2_PRE,
        "deepseek-r1-qwen": _QWEN2_PRE,
        "megrez": _QWEN2_PRE,
        "stablelm2": _QWEN2_PRE,
        "hunyuan": _QWEN2_PRE,
        "solar-open": _QWEN2_PRE,
        "grok-2": _QWEN2_PRE,
        "qwen35": PreTokenizer((_QWEN35,)),
        "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
        "gpt-4o": _GPT4O_PRE,
        "llama4": _GPT4O_PRE,
        "kanana2": _GPT4O_PRE,
        "minimax-m2": _GPT4O_PRE,
        "seed-coder": PreTokenizer((_SEED_CODER,)),
        "bailingmoe": _BAILING_MOE_PRE,
        "bailingmoe2": _BAILING_MOE_PRE,
        "llada-moe": _BAILING_MOE_PRE,
        "minicpm5": PreTokenizer((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True),
        "bloom": _BLOOM_PRE,
        "poro-chat": _BLOOM_PRE,
        "gpt3-finnish": _BLOOM_PRE,
        "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    }
)
"""Every supported value of `tokenizer.ggml.pre`."""


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer that GGUF calls `name`.

    Raises:
        UnsupportedError: for a name that is not in `PRE_TOKENIZERS`; the text would be cut into words that the model
        never saw.
    """
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise UnsupportedError(f"the pre-tokenizer {name!r} (tokenizer.ggml.pre)", sorted(PRE_TOKENIZERS)) from None
