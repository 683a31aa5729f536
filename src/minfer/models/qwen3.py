"""qwen3: the dense Qwen3 models, which normalise every head's query and key before the rotation."""

from functools import partial

from minfer.graph.ops import RopeStyle
from minfer.models.blocks import dense_decoder
from minfer.models.declaration import Architecture

QWEN3 = Architecture("qwen3", RopeStyle.NON_INTERLEAVED, partial(dense_decoder, qk_norm=True))
