"""What backends refuse alike: weights and state of a type or a shape that they can't keep."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from minfer.graph import TensorSpec
from minfer.graph.ops import Op, WeightRole
from minfer.quants import GGMLType


def refusal_of_storage(
    op: Op,
    inputs: Sequence[TensorSpec],
    weight_types: Mapping[WeightRole, Collection[GGMLType]],
    state_types: Collection[GGMLType],
) -> str | None:
    """Why a backend with these types can't keep the op's weights or state, or None where it can.

    Args:
        op: says which of its inputs are weights and state.
        inputs: the specs of all its inputs.
        weight_types: for each role that the backend knows, the types that a weight in this role may have.
        state_types: the types that state may have.
    """
    for position in dict.fromkeys((*op.states_read, *op.states_written)):
        if inputs[position].ggml_type not in state_types:
            return f"a KV region can't be {inputs[position].ggml_type.name}"
    for position, role in op.weight_roles.items():
        spec = inputs[position]
        if role not in weight_types:
            return f"weights can't be a {role}: {spec}"
        if len(spec.shape) != role.n_dims:
            return f"a {role} of weights can't have {len(spec.shape)} dimensions: {spec}"
        if spec.ggml_type not in weight_types[role]:
            return f"a {role} of weights can't be {spec.ggml_type.name}"
    return None
