"""The compute graph: its op vocabulary, representation, builder, verifier and exports."""

from minfer.graph.builder import GraphBuilder
from minfer.graph.export import to_dot, to_json, to_text
from minfer.graph.inputs import INPUT_SPECS, PAGE_SIZE, StepInputs
from minfer.graph.ir import Graph, MemoryPlan, Node, Placement, Value, ValueId, ValueKind
from minfer.graph.specs import Bounds, Dim, Shape, Symbol, TensorSpec
from minfer.graph.verify import last_uses, verify, verify_split

__all__ = [
    "INPUT_SPECS",
    "PAGE_SIZE",
    "Bounds",
    "Dim",
    "Graph",
    "GraphBuilder",
    "MemoryPlan",
    "Node",
    "Placement",
    "Shape",
    "StepInputs",
    "Symbol",
    "TensorSpec",
    "Value",
    "ValueId",
    "ValueKind",
    "last_uses",
    "to_dot",
    "to_json",
    "to_text",
    "verify",
    "verify_split",
]
