"""qwen2: Qwen2 and Qwen2.5, with biases on q, k and v (taken from the file)."""

from minfer.graph.ops import RopeStyle
from minfer.models.architecture import Architecture
from minfer.models.config import ModelConfig
from minfer.models.keys import Keys
from minfer.models.reading import read_attention, read_dense, read_model, read_norm


def read(keys: Keys) -> ModelConfig:
    return read_model(keys, read_norm(keys), read_attention(keys, RopeStyle.NON_INTERLEAVED), read_dense(keys))


QWEN2 = Architecture("qwen2", read)
