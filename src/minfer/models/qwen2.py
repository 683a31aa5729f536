"""qwen2: Qwen2 and Qwen2.5, with biases on q, k and v (taken from the file)."""

from minfer.graph.ops import RopeStyle
from minfer.models.blocks import dense_decoder
from minfer.models.declaration import Architecture

QWEN2 = Architecture("qwen2", RopeStyle.NON_INTERLEAVED, dense_decoder)
