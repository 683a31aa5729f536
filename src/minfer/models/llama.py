"""llama: Llama 1 to 3.2, Mistral, SmolLM and kin. GGUF files hold the two parts of a rotated pair side by side."""

from minfer.graph.ops import RopeStyle
from minfer.models.blocks import dense_decoder
from minfer.models.declaration import Architecture

LLAMA = Architecture("llama", RopeStyle.INTERLEAVED, dense_decoder)
