"""llama: Llama 1 to 3.2, Mistral, SmolLM and kin. GGUF files hold the two parts of a rotated pair side by side."""

from minfer.graph.ops import RopeStyle
from minfer.models.architecture import Architecture
from minfer.models.config import ModelConfig
from minfer.models.keys import Keys
from minfer.models.reading import read_attention, read_dense, read_model, read_norm


def read(keys: Keys) -> ModelConfig:
    return read_model(keys, read_norm(keys), read_attention(keys, RopeStyle.INTERLEAVED), read_dense(keys))


LLAMA = Architecture("llama", read)
