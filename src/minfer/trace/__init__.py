"""Seeing inside: traces of every node, dumps of every layer."""

from minfer.trace.dump import HiddenStateDumper
from minfer.trace.observer import NodeEvent, Observer
from minfer.trace.recorder import TraceRecorder, statistics

__all__ = ["HiddenStateDumper", "NodeEvent", "Observer", "TraceRecorder", "statistics"]
