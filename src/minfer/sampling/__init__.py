"""From logits to a token: validated parameters, and one ordered pipeline of pure stages."""

from __future__ import annotations

from minfer.sampling.candidates import Candidates
from minfer.sampling.params import SamplingParams
from minfer.sampling.sampler import STAGES, Sampler, Stage

__all__ = ["STAGES", "Candidates", "Sampler", "SamplingParams", "Stage"]
