"""The machinery under `Kernel`: appends instructions to the open block and checks operands as they come in."""

from __future__ import annotations

import contextlib
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from minfer.simd.errors import Location, TraceError
from minfer.simd.ir import Block, Constant, Instruction, Operand, Register, Return
from minfer.simd.types import Kind, Scalar, Type, Vector, element_of
from minfer.simd.values import Value

# `with k.loop(...)` reaches this package by way of contextlib.
_NOT_CALLERS = (str(Path(__file__).parent), contextlib.__file__)

ValueOrNumber = Value | int | float


class Tracer:
    """One kernel while its Python function runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._n_registers = 0
        self._open_blocks: list[Block] = [Block()]
        self._home_block: dict[int, Block] = {}
        self._finished = False

    def fail(self, message: str) -> NoReturn:
        """Raises `TraceError` with the kernel's name and the line of the caller outside this package."""
        raise TraceError(message, kernel=self.name, location=calling_line())

    def new_register(self, of: Type) -> Register:
        register = Register(self._n_registers, of)
        self._n_registers += 1
        self._home_block[register.number] = self._open_blocks[-1]
        return register

    def append(self, instruction: Instruction) -> None:
        if self._finished:
            self.fail("the kernel is finished: nothing can be added to it")
        instructions = self._open_blocks[-1].instructions
        if instructions and isinstance(instructions[-1], Return):
            self.fail("nothing after a return in its block would ever run")
        instructions.append(instruction)

    def emit(self, of: Type, make: Callable[[Register, Location], Instruction]) -> Value:
        """Appends the instruction that `make` builds around a new register of type `of`, and returns its value."""
        register = self.new_register(of)
        self.append(make(register, calling_line()))
        return Value(self, register)

    def operand(self, value: Value) -> Operand:
        """The operand behind a value, after checking that it is visible here."""
        if not isinstance(value, Value):
            self.fail(f"a traced value is needed here, not {value!r}")
        if value.tracer is not self:
            self.fail(f"a value of kernel {value.tracer.name!r} can't be used in this one")
        operand = value.operand
        if isinstance(operand, Register) and not any(
            self._home_block[operand.number] is block for block in self._open_blocks
        ):
            self.fail("a value made inside a loop or branch is used outside it: keep it in a variable (k.var)")
        return operand

    def coerce(self, value: ValueOrNumber, of: Type) -> Operand:
        """The operand for a value of type `of`; a Python number becomes a constant of that type."""
        if isinstance(value, (int, float)):
            return self.constant(value, of)
        operand = self.operand(value)
        if operand.type != of:
            self.fail(f"{of} is needed here, not {operand.type}: convert or splat it")
        return operand

    def constant(self, number: float, of: Type) -> Constant:
        """A Python number as a constant of a scalar type, or in every lane of a vector type."""
        element = element_of(of)
        if element is None:
            self.fail(f"the number {number!r} can't become a {of}")
        return Constant(of, (self.constant_element(number, element),))

    def constant_element(self, number: float, element: Scalar) -> int | float:
        """Checks that a number has a place in a type, and rounds it to one where the type is a float."""
        if element.kind is Kind.BOOL:
            if not isinstance(number, bool):
                self.fail(f"an i1 is True or False, not {number!r}")
            return int(number)
        if isinstance(number, bool):
            self.fail(f"{number!r} is a truth value, not a number of type {element}")
        if element.is_integer:
            if not isinstance(number, int):
                self.fail(f"{number!r} is no integer, as {element} needs")
            if not element.smallest <= number <= element.largest:
                self.fail(f"{number} does not fit into {element} ({element.smallest} to {element.largest})")
            return number
        if element.is_storage_float:
            self.fail(f"{element} is a storage format: make the constant an f32 and convert it")
        if element.bits == 32 and math.isfinite(number):
            try:
                rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
            except OverflowError:
                self.fail(f"{number!r} is beyond the range of {element}")
            return rounded
        return float(number)

    def check_scalar(self, value: ValueOrNumber, of: Scalar, what: str) -> Operand:
        """Like `coerce`, with the name of the argument in the message."""
        if isinstance(value, Value) and value.type != of:
            self.fail(f"{what} must be {of}, not {value.type}")
        return self.coerce(value, of)

    def check_vector(self, value: Value, what: str) -> Vector:
        """The type of a value that must be a vector."""
        of = self.operand(value).type
        if not isinstance(of, Vector):
            self.fail(f"{what} must be a vector, not {of}")
        return of


def calling_line() -> Location:
    """The innermost line on the stack that is outside this package."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_NOT_CALLERS) and frame.f_back is not None:
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)
