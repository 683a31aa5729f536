"""The IR that tracing builds: instructions with typed operands, in nested blocks.

Control flow is structured: a `Loop`, `While` or `If` holds its blocks. Every value is assigned once, except the
registers of `GetVariable` and `SetVariable`. Each instruction remembers the Python line that traced it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from minfer.simd.errors import Location
from minfer.simd.types import Type


@dataclass(frozen=True, slots=True)
class Register:
    """A value assigned once, by the instruction that names it as `result` (or a parameter)."""

    number: int
    type: Type


@dataclass(frozen=True, slots=True)
class Constant:
    """A number known when tracing; `values` has one entry, or one for each lane."""

    type: Type
    values: tuple[int | float, ...]


Operand = Register | Constant


@dataclass(frozen=True, slots=True)
class Variable:
    """A mutable register."""

    number: int
    type: Type


class BinaryOp(Enum):
    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    FLOOR_DIVIDE = "//"
    MODULO = "%"
    AND = "&"
    OR = "|"
    XOR = "^"
    SHIFT_LEFT = "<<"
    SHIFT_RIGHT = ">>"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"


class UnaryOp(Enum):
    NEGATE = "negate"
    INVERT = "~"
    ABSOLUTE = "abs"
    SQUARE_ROOT = "sqrt"
    FLOOR = "floor"
    ROUND_EVEN = "round_even"


class CompareOp(Enum):
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    EQUAL = "eq"
    NOT_EQUAL = "ne"


class ConvertOp(Enum):
    NUMERIC = "to"
    ROUND = "round_to"
    TRUNCATE = "trunc_to"
    SATURATE = "saturate_to"
    BITCAST = "bitcast"


class Ordering(Enum):
    """How an atomic access is ordered against others, as in C++."""

    RELAXED = "relaxed"
    ACQUIRE = "acquire"
    RELEASE = "release"
    ACQUIRE_RELEASE = "acq_rel"
    SEQUENTIAL = "seq_cst"


class AtomicOp(Enum):
    ADD = "add"
    EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True)
class Block:
    instructions: list[Instruction] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Traced:
    location: Location


@dataclass(frozen=True, slots=True, eq=False)
class Binary(_Traced):
    result: Register
    op: BinaryOp
    a: Operand
    b: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Unary(_Traced):
    result: Register
    op: UnaryOp
    a: Operand


@dataclass(frozen=True, slots=True, eq=False)
class FusedMultiplyAdd(_Traced):
    result: Register
    a: Operand
    b: Operand
    c: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Compare(_Traced):
    result: Register
    op: CompareOp
    a: Operand
    b: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Select(_Traced):
    result: Register
    mask: Operand
    a: Operand
    b: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Convert(_Traced):
    result: Register
    op: ConvertOp
    a: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Splat(_Traced):
    result: Register
    a: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Extract(_Traced):
    result: Register
    a: Operand
    lane: int


@dataclass(frozen=True, slots=True, eq=False)
class Insert(_Traced):
    result: Register
    a: Operand
    lane: int
    value: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Shuffle(_Traced):
    """Lane i of the result is lane `indices[i]` of the concatenation of a and b (b has a's type)."""

    result: Register
    a: Operand
    b: Operand | None
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FirstLanes(_Traced):
    """The mask whose lane i is true where i < n."""

    result: Register
    n: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Lookup16(_Traced):
    result: Register
    table: tuple[int, ...]
    indices: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Dot4(_Traced):
    result: Register
    accumulator: Operand
    u: Operand
    s: Operand
    u_max: int


@dataclass(frozen=True, slots=True, eq=False)
class Offset(_Traced):
    """`base` moved by `index` times `scale_bytes` bytes."""

    result: Register
    base: Operand
    index: Operand
    scale_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class CastPointer(_Traced):
    result: Register
    base: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Load(_Traced):
    result: Register
    address: Operand
    align: int
    mask: Operand | None
    non_temporal: bool


@dataclass(frozen=True, slots=True, eq=False)
class Store(_Traced):
    address: Operand
    value: Operand
    align: int
    mask: Operand | None
    non_temporal: bool


@dataclass(frozen=True, slots=True, eq=False)
class Prefetch(_Traced):
    address: Operand
    locality: int
    for_write: bool


@dataclass(frozen=True, slots=True, eq=False)
class AtomicLoad(_Traced):
    result: Register
    address: Operand
    ordering: Ordering


@dataclass(frozen=True, slots=True, eq=False)
class AtomicStore(_Traced):
    address: Operand
    value: Operand
    ordering: Ordering


@dataclass(frozen=True, slots=True, eq=False)
class AtomicUpdate(_Traced):
    result: Register
    op: AtomicOp
    address: Operand
    value: Operand
    ordering: Ordering


@dataclass(frozen=True, slots=True, eq=False)
class CompareExchange(_Traced):
    result: Register
    swapped: Register
    address: Operand
    expected: Operand
    desired: Operand
    ordering: Ordering


@dataclass(frozen=True, slots=True, eq=False)
class Pause(_Traced):
    """Tells the CPU that the thread spins."""


@dataclass(frozen=True, slots=True, eq=False)
class GetVariable(_Traced):
    result: Register
    variable: Variable


@dataclass(frozen=True, slots=True, eq=False)
class SetVariable(_Traced):
    variable: Variable
    value: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Loop(_Traced):
    """Runs `body` for index = start, start + step, ... while index < stop."""

    index: Register
    start: Operand
    stop: Operand
    step: Operand
    body: Block


@dataclass(frozen=True, slots=True, eq=False)
class While(_Traced):
    """Runs `test`, then while `condition` holds `body` and `test` again."""

    test: Block
    condition: Operand
    body: Block


@dataclass(frozen=True, slots=True, eq=False)
class If(_Traced):
    condition: Operand
    then: Block
    otherwise: Block


@dataclass(frozen=True, slots=True, eq=False)
class Return(_Traced):
    """Leaves the kernel; the last instruction of its block."""


@dataclass(frozen=True, slots=True, eq=False)
class Call(_Traced):
    """Calls another kernel of the module, or the code that a kernel pointer points to."""

    callee: KernelIR | Operand
    arguments: tuple[Operand, ...]


Instruction = (
    Binary
    | Unary
    | FusedMultiplyAdd
    | Compare
    | Select
    | Convert
    | Splat
    | Extract
    | Insert
    | Shuffle
    | FirstLanes
    | Lookup16
    | Dot4
    | Offset
    | CastPointer
    | Load
    | Store
    | Prefetch
    | AtomicLoad
    | AtomicStore
    | AtomicUpdate
    | CompareExchange
    | Pause
    | GetVariable
    | SetVariable
    | Loop
    | While
    | If
    | Return
    | Call
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter by name; `register` holds its value."""

    name: str
    register: Register

    @property
    def type(self) -> Type:
        return self.register.type


@dataclass(frozen=True, slots=True, eq=False)
class KernelIR:
    """A traced kernel."""

    name: str
    parameters: tuple[Parameter, ...]
    variables: tuple[Variable, ...]
    body: Block
    location: Location


def blocks_of(instruction: Instruction) -> tuple[Block, ...]:
    """The blocks that an instruction holds, in the order they run."""
    match instruction:
        case Loop():
            return (instruction.body,)
        case While():
            return (instruction.test, instruction.body)
        case If():
            return (instruction.then, instruction.otherwise)
        case _:
            return ()


def walk(block: Block) -> Iterator[Instruction]:
    """Every instruction of a block and of the blocks within, in program order."""
    for instruction in block.instructions:
        yield instruction
        for inner in blocks_of(instruction):
            yield from walk(inner)


def with_callees(kernels: list[KernelIR]) -> list[KernelIR]:
    """The kernels and all that they call directly, each once, callees first."""
    order: list[KernelIR] = []

    def visit(kernel: KernelIR) -> None:
        if kernel in order:
            return
        for instruction in walk(kernel.body):
            if isinstance(instruction, Call) and isinstance(instruction.callee, KernelIR):
                visit(instruction.callee)
        order.append(kernel)

    for kernel in kernels:
        visit(kernel)
    return order
