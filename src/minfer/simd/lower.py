"""Lowers traced kernels to LLVM assembly for a target.

No fast-math flags and no `llvm.fmuladd`: LLVM may then neither reorder nor contract float arithmetic. Addresses are
`getelementptr` on pointers, never integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minfer.simd import lower_arithmetic, lower_convert, lower_lanes
from minfer.simd.errors import CompileError, Location
from minfer.simd.ir import (
    AtomicLoad,
    AtomicStore,
    AtomicUpdate,
    Binary,
    Block,
    Call,
    CastPointer,
    Compare,
    CompareExchange,
    Constant,
    Convert,
    Dot4,
    Extract,
    FirstLanes,
    FusedMultiplyAdd,
    GetVariable,
    If,
    Insert,
    Instruction,
    KernelIR,
    Load,
    Lookup16,
    Loop,
    Offset,
    Operand,
    Pause,
    Prefetch,
    Return,
    Select,
    SetVariable,
    Shuffle,
    Splat,
    Store,
    Unary,
    While,
    with_callees,
)
from minfer.simd.lower_dot import lower_dot4
from minfer.simd.lower_memory import MemoryLowering
from minfer.simd.targets import Target
from minfer.simd.writer import Ref, Writer, llvm_element, llvm_lanes, type_text


@dataclass(frozen=True)
class LoweredModule:
    """LLVM assembly, and for each of its lines the kernel and the Python line that it came from."""

    text: str
    kernels: tuple[KernelIR, ...]
    origins: tuple[tuple[str, Location | None], ...]


def lower_module(kernels: Iterable[KernelIR], target: Target) -> LoweredModule:
    """Lowers kernels, and those that they call, into one module.

    Raises:
        CompileError: two different kernels have one name.
    """
    everything = with_callees(list(kernels))
    lines: list[str] = []
    origins: list[tuple[str, Location | None]] = []
    declarations: dict[str, str] = {}
    names: dict[str, KernelIR] = {}
    for kernel in everything:
        if kernel.name in names:
            other = names[kernel.name].location
            raise CompileError(
                f"the module has another of that name, from {other}", kernel=kernel.name, location=kernel.location
            )
        names[kernel.name] = kernel
        function = FunctionLowering(kernel, target)
        for text, location in function.lower():
            lines.append(text)
            origins.append((kernel.name, location))
        declarations |= function.writer.declarations
    lines += declarations.values()
    # Without builtins, loops that fill or copy do not become calls of the C library. !0 is what !nontemporal refers to.
    lines += ['attributes #0 = { nounwind "no-builtins" }', "!0 = !{i32 1}"]
    return LoweredModule("\n".join(lines) + "\n", tuple(everything), tuple(origins))


class FunctionLowering:
    """One kernel on its way to text."""

    def __init__(self, kernel: KernelIR, target: Target) -> None:
        self.kernel = kernel
        self.target = target
        self.writer = Writer()
        self._memory = MemoryLowering(self.writer, target)
        self._registers: dict[int, Ref] = {
            each.register.number: Ref(f"%a{number}", llvm_element(each.type), 0)
            for number, each in enumerate(kernel.parameters)
        }
        self._slots: list[str] = []

    def lower(self) -> list[tuple[str, Location | None]]:
        """The function's lines, each with the Python line it came from."""
        for variable in self.kernel.variables:
            of = type_text(llvm_element(variable.type), llvm_lanes(variable.type))
            self._slots.append(f"  %var{variable.number} = alloca {of}")
        self._block(self.kernel.body)
        if not _returns(self.kernel.body):
            self.writer.line("  ret void")
        parameters = ", ".join(self._registers[each.register.number].typed for each in self.kernel.parameters)
        head = [f"define dso_local void @{self.kernel.name}({parameters}) #0 {{", "entry:", *self._slots]
        here = self.kernel.location
        return [*((text, here) for text in head), *self.writer.lines, ("}", here)]

    def _block(self, block: Block) -> None:
        for instruction in block.instructions:
            self.writer.location = instruction.location
            self._instruction(instruction)

    def _ref(self, operand: Operand) -> Ref:
        if isinstance(operand, Constant):
            of = operand.type
            return self.writer.constant_of(llvm_element(of), llvm_lanes(of), operand.values)
        return self._registers[operand.number]

    def _refs(self, *operands: Operand) -> tuple[Ref, ...]:
        return tuple(self._ref(operand) for operand in operands)

    def _instruction(self, instruction: Instruction) -> None:
        match instruction:
            case Store() | Prefetch() | AtomicStore() | Pause():
                self._memory.effect(instruction, self._ref)
            case CompareExchange():
                old, swapped = self._memory.compare_exchange(instruction, self._ref)
                self._registers[instruction.result.number] = old
                self._registers[instruction.swapped.number] = swapped
            case SetVariable():
                value = self._ref(instruction.value)
                self.writer.line(f"  store {value.typed}, ptr %var{instruction.variable.number}")
            case Loop():
                self._loop(instruction)
            case While():
                self._while(instruction)
            case If():
                self._if(instruction)
            case Return():
                self.writer.line("  ret void")
            case Call():
                given = ", ".join(each.typed for each in self._refs(*instruction.arguments))
                callee = instruction.callee
                code = f"@{callee.name}" if isinstance(callee, KernelIR) else self._ref(callee).name
                self.writer.line(f"  call void {code}({given})")
            case _:
                self._registers[instruction.result.number] = self._value(instruction)

    def _value(self, instruction: Instruction) -> Ref:
        writer, ref = self.writer, self._ref
        match instruction:
            case Binary(_, op, a, b):
                return lower_arithmetic.binary(writer, op, a.type, ref(a), ref(b))
            case Unary(_, op, a):
                return lower_arithmetic.unary(writer, self.target, op, a.type, ref(a))
            case FusedMultiplyAdd(_, a, b, c):
                return lower_arithmetic.fma(writer, self.target, ref(a), ref(b), ref(c))
            case Compare(_, op, a, b):
                return lower_arithmetic.compare(writer, op, a.type, ref(a), ref(b))
            case Select(_, mask, a, b):
                return writer.select(ref(mask), ref(a), ref(b))
            case Convert(result, op, a):
                return lower_convert.convert(writer, self.target, op, a.type, result.type, ref(a))
            case Splat(result, a):
                return writer.splat(ref(a), llvm_lanes(result.type))
            case Extract(_, a, lane):
                whole = ref(a)
                return writer.new(whole.element, 0, f"extractelement {whole.typed}, i64 {lane}")
            case Insert(_, a, lane, value):
                whole = ref(a)
                return writer.new(
                    whole.element, whole.lanes, f"insertelement {whole.typed}, {ref(value).typed}, i64 {lane}"
                )
            case Shuffle(_, a, b, indices):
                return writer.shuffle(ref(a), None if b is None else ref(b), indices)
            case FirstLanes(result, n):
                return lower_lanes.first_lanes(writer, ref(n), llvm_lanes(result.type))
            case Lookup16(_, table, indices):
                return lower_lanes.lookup16(writer, self.target, table, ref(indices))
            case Dot4(_, accumulator, u, s, u_max):
                return lower_dot4(writer, self.target, ref(accumulator), ref(u), ref(s), u_max)
            case Offset(_, base, index, scale_bytes):
                unit = f"[{scale_bytes} x i8]" if scale_bytes > 1 else "i8"
                return writer.new("ptr", 0, f"getelementptr {unit}, {ref(base).typed}, {ref(index).typed}")
            case CastPointer(_, base):
                return ref(base)
            case Load() | AtomicLoad() | AtomicUpdate():
                return self._memory.value(instruction, ref)
            case GetVariable(result, variable):
                element, lanes = llvm_element(result.type), llvm_lanes(result.type)
                return writer.new(element, lanes, f"load {type_text(element, lanes)}, ptr %var{variable.number}")
            case _:
                raise AssertionError(f"{type(instruction).__name__} has no value")

    def _loop(self, loop: Loop) -> None:
        writer, number = self.writer, self.writer.fresh()
        start, stop, step = self._refs(loop.start, loop.stop, loop.step)
        self._slots.append(f"  %index{number} = alloca i64")
        writer.line(f"  store {start.typed}, ptr %index{number}")
        writer.line(f"  br label %head{number}")
        writer.line(f"head{number}:")
        index = writer.new("i64", 0, f"load i64, ptr %index{number}")
        self._registers[loop.index.number] = index
        more = writer.compare("icmp slt", index, stop)
        writer.line(f"  br {more.typed}, label %body{number}, label %end{number}")
        writer.line(f"body{number}:")
        self._block(loop.body)
        writer.location = loop.location
        if not _returns(loop.body):
            after = writer.binary("add", index, step)
            writer.line(f"  store {after.typed}, ptr %index{number}")
            writer.line(f"  br label %head{number}")
        writer.line(f"end{number}:")

    def _while(self, loop: While) -> None:
        writer, number = self.writer, self.writer.fresh()
        writer.line(f"  br label %head{number}")
        writer.line(f"head{number}:")
        self._block(loop.test)
        writer.location = loop.location
        holds = self._ref(loop.condition)
        writer.line(f"  br {holds.typed}, label %body{number}, label %end{number}")
        writer.line(f"body{number}:")
        self._block(loop.body)
        writer.location = loop.location
        if not _returns(loop.body):
            writer.line(f"  br label %head{number}")
        writer.line(f"end{number}:")

    def _if(self, branch: If) -> None:
        writer, number = self.writer, self.writer.fresh()
        holds = self._ref(branch.condition)
        writer.line(f"  br {holds.typed}, label %then{number}, label %else{number}")
        for label, block in (("then", branch.then), ("else", branch.otherwise)):
            writer.line(f"{label}{number}:")
            self._block(block)
            writer.location = branch.location
            if not _returns(block):
                writer.line(f"  br label %end{number}")
        writer.line(f"end{number}:")


def _returns(block: Block) -> bool:
    return bool(block.instructions) and isinstance(block.instructions[-1], Return)
