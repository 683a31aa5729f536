"""qwen3: the dense Qwen3 models, which normalise every head's query and key before the rotation."""

from minfer.graph.ops import RopeStyle
from minfer.models.architecture import Architecture
from minfer.models.config import ModelConfig
from minfer.models.keys import Keys
from minfer.models.reading import read_attention, read_dense, read_model, read_norm


def read(keys: Keys) -> ModelConfig:
    norm = read_norm(keys)
    attention = read_attention(keys, RopeStyle.NON_INTERLEAVED, qk_norm=norm)
    return read_model(keys, norm, attention, read_dense(keys))


QWEN3 = Architecture("qwen3", read)
