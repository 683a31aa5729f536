"""The invariants of a graph, checked when it is built and after every pass.

1. Every value has its own name; every computed value is made by exactly one node, before any node reads it.
2. The specs of outputs are what the op says for these inputs.
3. Weights and state are read only at the inputs where the op says so. A step writes once to a state, and before others
   read it; what is read together (keys and values) was written together.
4. Once a pass has assigned backends: every node has one, and all nodes that touch a state share one. From the pass
   `split` on (`verify_split`), and once memory is planned: a node reads only what was made where it runs, or a copy.
5. Once storage is shared: it is a computed value's and of one backend, no node reads a value after another one has
   overwritten it, and a node writes over its own inputs only where its op can work in place.
6. Once memory is planned: storage of values that live at the same time does not overlap, and lies within its arena.
"""

from __future__ import annotations

from minfer.errors import GraphError
from minfer.graph.ir import Graph, MemoryPlan, Node, ValueId, ValueKind
from minfer.graph.specs import Bounds


def verify(graph: Graph, bounds: Bounds | None = None) -> None:
    """Checks every invariant that applies to the graph as it is; `bounds` are wanted once memory is planned.

    Raises:
        GraphError: names the invariant that is broken, and where.
    """
    _verify_names(graph)
    _verify_order_and_specs(graph)
    _verify_states(graph)
    _verify_weights(graph)
    if any(node.backend for node in graph.nodes):
        _verify_backends(graph)
    _verify_aliases(graph)
    if graph.memory is not None:
        verify_split(graph)
        if bounds is None:
            raise GraphError("a graph with a memory plan is verified with its bounds")
        _verify_memory(graph, graph.memory, bounds)


def last_uses(graph: Graph) -> dict[ValueId, int]:
    """For each storage, the index of the last node that touches it; outputs live to the end of the step."""
    last: dict[ValueId, int] = {}
    for index, node in enumerate(graph.nodes):
        for value_id in (*node.inputs, *node.outputs):
            last[graph.storage(value_id)] = index
    for value_id in graph.outputs.values():
        last[graph.storage(value_id)] = len(graph.nodes)
    return last


def _verify_names(graph: Graph) -> None:
    seen: dict[str, ValueId] = {}
    for value in graph.values.values():
        if seen.setdefault(value.name, value.id) != value.id:
            raise GraphError(f"two values are named {value.name}")
    names = [node.name for node in graph.nodes]
    if len(set(names)) != len(names):
        raise GraphError(f"two nodes are named {next(n for n in names if names.count(n) > 1)}")


def _verify_order_and_specs(graph: Graph) -> None:
    ready = {value.id for value in graph.values.values() if value.kind is not ValueKind.COMPUTED}
    for node in graph.nodes:
        for value_id in node.inputs:
            if value_id not in graph.values:
                raise GraphError(f"{node.name} reads value {value_id}, which does not exist")
            if value_id not in ready:
                raise GraphError(f"{node.name} reads {graph.value(value_id).name} before it is made")
        specs = node.op.output_specs(graph.specs(node.inputs))
        if len(specs) != len(node.outputs):
            raise GraphError(f"{node.name}: {node.op.kind} has {len(specs)} outputs, not {len(node.outputs)}")
        for value_id, spec in zip(node.outputs, specs, strict=True):
            value = graph.values.get(value_id)
            if value is None:
                raise GraphError(f"{node.name} makes value {value_id}, which does not exist")
            if value_id in ready:
                raise GraphError(f"{value.name} is made twice, or is no computed value")
            if value.spec != spec:
                raise GraphError(
                    f"{node.name}: {value.name} is declared as {value.spec}, and {node.op.kind} makes {spec}"
                )
            ready.add(value_id)
    for name, value_id in graph.outputs.items():
        if value_id not in ready:
            raise GraphError(f"nothing makes the output {name}")
    for value in graph.values.values():
        if value.id not in ready:
            raise GraphError(f"nothing makes {value.name}")


def _verify_states(graph: Graph) -> None:
    written: set[ValueId] = set()
    together: set[tuple[ValueId, ...]] = set()
    for node in graph.nodes:
        op = node.op
        for position, value_id in enumerate(node.inputs):
            value = graph.value(value_id)
            if position in op.states_written:
                if value.kind is not ValueKind.STATE:
                    raise GraphError(f"{node.name} stores into {value.name}, which is no state")
                if value_id in written:
                    raise GraphError(f"{node.name} stores a second time into {value.name}")
                written.add(value_id)
            elif position in op.states_read:
                if value_id not in written:
                    raise GraphError(f"{node.name} reads {value.name} before this step's store to it")
            elif value.kind is ValueKind.STATE:
                raise GraphError(f"{node.name} reads {value.name}, which {op.kind} must not")
        together.add(tuple(node.inputs[position] for position in op.states_written))
        read = tuple(node.inputs[position] for position in op.states_read if position not in op.states_written)
        if read and read not in together:
            names = " and ".join(graph.value(value_id).name for value_id in read)
            raise GraphError(f"{node.name} reads {names}, which are not the keys and values of one store")


def _verify_weights(graph: Graph) -> None:
    for node in graph.nodes:
        roles = node.op.weight_roles
        for position, value_id in enumerate(node.inputs):
            value = graph.value(value_id)
            if (value.kind is ValueKind.WEIGHT) != (position in roles):
                wanted = "a weight" if position in roles else "no weight"
                raise GraphError(f"{node.name} reads {value.name}, and {node.op.kind} takes {wanted} there")


def _verify_backends(graph: Graph) -> None:
    home: dict[ValueId, str] = {}
    for node in graph.nodes:
        if node.backend is None:
            raise GraphError(f"{node.name} has no backend")
        for value_id in node.inputs:
            value = graph.value(value_id)
            if value.kind is ValueKind.STATE and home.setdefault(value_id, node.backend) != node.backend:
                raise GraphError(f"{value.name} is used by {home[value_id]} and by {node.backend} ({node.name})")
        home.update(dict.fromkeys(node.outputs, node.backend))


def verify_split(graph: Graph) -> None:
    """Checks that only copies read what another backend made: true from the pass `split` on.

    Raises:
        GraphError: names the node and the value.
    """
    home: dict[ValueId, str | None] = {}
    for node in graph.nodes:
        for value_id in () if node.op.is_transfer else node.inputs:
            value = graph.value(value_id)
            if value.kind is ValueKind.COMPUTED and home[value_id] != node.backend:
                raise GraphError(f"{node.name} on {node.backend} reads {value.name}, which lives on {home[value_id]}")
        home.update(dict.fromkeys(node.outputs, node.backend))


def _verify_aliases(graph: Graph) -> None:
    for value_id in graph.aliases:
        if value_id not in graph.values or graph.storage(value_id) not in graph.values:
            raise GraphError(f"value {value_id} or its storage {graph.storage(value_id)} does not exist")
        if graph.value(graph.storage(value_id)).kind is not ValueKind.COMPUTED:
            raise GraphError(f"{graph.value(value_id).name} lives in storage that does not belong to the step")
    home: dict[ValueId, str | None] = {}  # storage -> the backend in whose memory it is
    holds: dict[ValueId, ValueId] = {}  # storage -> the value whose contents it holds now
    contents: dict[ValueId, ValueId] = {}  # value -> the value that first had its contents (reshapes share them)
    for node in graph.nodes:
        for value_id in node.inputs:
            if value_id in contents and holds[graph.storage(value_id)] != contents[value_id]:
                raise GraphError(f"{node.name} reads {graph.value(value_id).name} after its storage was overwritten")
        for position, value_id in enumerate(node.outputs):
            _verify_in_place(graph, node, position)
            if home.setdefault(graph.storage(value_id), node.backend) != node.backend:
                raise GraphError(f"{graph.value(value_id).name} lives in the memory of another backend")
            same = node.op.is_view and graph.storage(value_id) == graph.storage(node.inputs[0])
            contents[value_id] = contents[node.inputs[0]] if same else value_id
            holds[graph.storage(value_id)] = contents[value_id]
        if len({graph.storage(value_id) for value_id in node.outputs}) != len(node.outputs):
            raise GraphError(f"{node.name}: two outputs share storage")
    for name, value_id in graph.outputs.items():
        if value_id in contents and holds[graph.storage(value_id)] != contents[value_id]:
            raise GraphError(f"the output {name} is overwritten before the step ends")


def _verify_in_place(graph: Graph, node: Node, position: int) -> None:
    """Checks that the output at `position` lives in no input's storage, but where the op allows it."""
    allowed = (0,) if node.op.is_view else node.op.in_place_inputs if position == 0 else ()
    output = node.outputs[position]
    for at, value_id in enumerate(node.inputs):
        if graph.storage(value_id) == graph.storage(output) and at not in allowed:
            names = f"{graph.value(output).name} over its input {graph.value(value_id).name}"
            raise GraphError(f"{node.name} writes {names}, which {node.op.kind} can't")


def _verify_memory(graph: Graph, memory: MemoryPlan, bounds: Bounds) -> None:
    last = last_uses(graph)
    live: dict[ValueId, str] = {}
    for index, node in enumerate(graph.nodes):
        live = {storage: backend for storage, backend in live.items() if last[storage] >= index}
        for value_id in node.outputs:
            _verify_placement(graph, memory, bounds, node, value_id, live)


def _verify_placement(
    graph: Graph, memory: MemoryPlan, bounds: Bounds, node: Node, value_id: ValueId, live: dict[ValueId, str]
) -> None:
    value, storage = graph.value(value_id), graph.storage(value_id)
    place = memory.placements.get(value_id)
    if place is None or node.backend is None:
        raise GraphError(f"{value.name} has no place in memory")
    if place != memory.placements.get(storage):
        raise GraphError(f"{value.name} and {graph.value(storage).name} share storage and have different places")
    if place.n_bytes < value.spec.n_bytes(bounds):
        raise GraphError(f"{value.name} needs {value.spec.n_bytes(bounds)} bytes and has {place.n_bytes}")
    if place.offset < 0 or place.offset + place.n_bytes > memory.arena_bytes.get(node.backend, 0):
        raise GraphError(f"{value.name} reaches outside the arena of {node.backend}")
    for other, backend in live.items():
        theirs = memory.placements[other]
        apart = place.offset + place.n_bytes <= theirs.offset or theirs.offset + theirs.n_bytes <= place.offset
        if other != storage and backend == node.backend and not apart:
            raise GraphError(f"{value.name} and {graph.value(other).name} overlap in memory while both are needed")
    live[storage] = node.backend
