"""Named rewrites of a graph, from declaration to plan."""

from minfer.passes.context import PassContext
from minfer.passes.pipeline import PIPELINE, Pass, lower, run_passes
from minfer.passes.split import Segment, segments

__all__ = ["PIPELINE", "Pass", "PassContext", "Segment", "lower", "run_passes", "segments"]
