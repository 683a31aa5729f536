"""`Kernel`: what a Python function traces a kernel with. Parameters, variables, control flow, calls.

A kernel that doubles n floats, where n is a multiple of 16:

    k = Kernel("double", x=ptr(f32), n=i64)
    x, n = k.args
    with k.loop(0, n, 16) as i:
        k.store(x + i, k.load(x + i, 16) * 2.0)
    kernel = k.finish()
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minfer.simd.ir import (
    Block,
    Call,
    GetVariable,
    If,
    KernelIR,
    Loop,
    Parameter,
    Return,
    SetVariable,
    Variable,
    While,
)
from minfer.simd.memory_ops import MemoryOps
from minfer.simd.tracer import ValueOrNumber, calling_line
from minfer.simd.types import KernelPointer, ParameterType, Scalar, i1, i64
from minfer.simd.values import Value
from minfer.simd.vector_ops import VectorOps

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Var:
    """A mutable register: the only thing that carries a value out of a loop or branch."""

    def __init__(self, kernel: Kernel, variable: Variable, home: Block) -> None:
        self._kernel = kernel
        self._variable = variable
        self._home = home

    def get(self) -> Value:
        """The value it holds at this point."""
        self._check()
        variable = self._variable
        return self._kernel.emit(variable.type, lambda result, line: GetVariable(result, variable, location=line))

    def set(self, value: ValueOrNumber) -> None:
        """Gives it another value of its type."""
        self._check()
        operand = self._kernel.coerce(value, self._variable.type)
        self._kernel.append(SetVariable(self._variable, operand, location=calling_line()))

    def _check(self) -> None:
        if not self._kernel.is_open(self._home):
            self._kernel.fail("a variable made inside a loop or branch is used outside it: make it before")


class Kernel(VectorOps, MemoryOps):
    """A kernel while it is traced: parameters by name and type, then instructions, then `finish()`."""

    def __init__(self, name: str, /, **parameters: ParameterType) -> None:
        super().__init__(name)
        self._location = calling_line()
        if not _NAME.fullmatch(name):
            self.fail("a kernel's name consists of letters, digits and _")
        for parameter, of in parameters.items():
            if not isinstance(of, ParameterType) or of == i1 or (isinstance(of, Scalar) and of.is_storage_float):
                self.fail(f"parameter {parameter} can't be a {of}: numbers, pointers and kernel pointers are passed")
        self._parameters = tuple(Parameter(each, self.new_register(of)) for each, of in parameters.items())
        self._variables: list[Variable] = []

    @property
    def args(self) -> tuple[Value, ...]:
        """The values of the parameters, in order."""
        return tuple(Value(self, parameter.register) for parameter in self._parameters)

    def finish(self) -> KernelIR:
        """Ends the tracing."""
        if len(self._open_blocks) != 1:
            self.fail("the kernel ends inside a loop or branch")
        self._finished = True
        body = self._open_blocks[0]
        return KernelIR(self.name, self._parameters, tuple(self._variables), body, self._location)

    def is_open(self, block: Block) -> bool:
        """Whether what `block` defines is visible here."""
        return any(block is each for each in self._open_blocks)

    def var(self, initial: Value) -> Var:
        """A mutable register that starts with `initial`."""
        operand = self.operand(initial)
        variable = Variable(len(self._variables), operand.type)
        self._variables.append(variable)
        self.append(SetVariable(variable, operand, location=calling_line()))
        return Var(self, variable, self._open_blocks[-1])

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """Traces a run-time loop over start, start + step, ... below stop (i64); the step must be positive."""
        if isinstance(step, int) and step < 1:
            self.fail(f"the step of a loop must be positive, not {step}")
        first = self.check_scalar(start, i64, "the start of a loop")
        last = self.check_scalar(stop, i64, "the end of a loop")
        by = self.check_scalar(step, i64, "the step of a loop")
        line, body = calling_line(), Block()
        with self._inside(body):
            index = self.new_register(i64)
            yield Value(self, index)
        self.append(Loop(index, first, last, by, body, location=line))

    @contextmanager
    def while_(self, condition: Callable[[], Value]) -> Iterator[None]:
        """Traces a loop that runs while `condition()`, traced as part of the loop, is true."""
        line, test, body = calling_line(), Block(), Block()
        with self._inside(test):
            holds = self.check_scalar(condition(), i1, "the condition of a loop")
        with self._inside(body):
            yield
        self.append(While(test, holds, body, location=line))

    @contextmanager
    def if_(self, condition: Value) -> Iterator[None]:
        """Traces a branch that runs where `condition` (i1) is true."""
        holds = self.check_scalar(condition, i1, "the condition of a branch")
        line, then = calling_line(), Block()
        with self._inside(then):
            yield
        self.append(If(holds, then, Block(), location=line))

    @contextmanager
    def else_(self) -> Iterator[None]:
        """Traces the branch for a false condition; directly after the `if_`."""
        instructions = self._open_blocks[-1].instructions
        if not instructions or not isinstance(instructions[-1], If) or instructions[-1].otherwise.instructions:
            self.fail("else_ stands directly after an if_")
        with self._inside(instructions[-1].otherwise):
            yield

    def return_(self) -> None:
        """Leaves the kernel."""
        self.append(Return(location=calling_line()))

    def call(self, callee: KernelIR | Value, *arguments: ValueOrNumber) -> None:
        """Calls a finished kernel, which joins this one's module, or the code that a kernel pointer points to."""
        if isinstance(callee, KernelIR):
            name, types = callee.name, tuple(each.type for each in callee.parameters)
            target: KernelIR | Value = callee
        else:
            pointer_type = self.operand(callee).type
            if not isinstance(pointer_type, KernelPointer):
                self.fail(f"a call needs a kernel or a kernel pointer, not {pointer_type}")
            name, types, target = str(pointer_type), pointer_type.parameters, callee
        if len(types) != len(arguments):
            self.fail(f"{name} takes {len(types)} arguments, not {len(arguments)}")
        given = tuple(self.coerce(value, of) for value, of in zip(arguments, types, strict=True))
        code = target if isinstance(target, KernelIR) else self.operand(target)
        self.append(Call(code, given, location=calling_line()))

    @contextmanager
    def _inside(self, block: Block) -> Iterator[None]:
        self._open_blocks.append(block)
        yield
        self._open_blocks.pop()
