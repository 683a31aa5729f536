"""Runs a traced kernel on NumPy arrays, one instruction after the other, with every access checked.

For debugging, and for testing kernels without compiling them: results are bit for bit those of compiled code. Where
compiled code would have undefined behaviour (an access out of bounds or misaligned, a division by zero, a broken
promise), the interpreter raises `InterpretError` with the Python line that traced the instruction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.simd import evaluate
from minfer.simd.errors import InterpretError
from minfer.simd.evaluate import Lanes, UndefinedError, dtype_of
from minfer.simd.ir import (
    AtomicLoad,
    AtomicOp,
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
)
from minfer.simd.memory import Memory, Pointer, view
from minfer.simd.signature import Argument, Signature
from minfer.simd.types import POINTER_BYTES, KernelPointer, Scalar, Vector, element_of, lanes_of
from minfer.simd.types import Pointer as PointerType

_MAX_STEPS = 50_000_000

Held = Lanes | Pointer


def interpret(
    kernel: KernelIR,
    *arguments: Argument,
    buffers: Sequence[NDArray[Any]] = (),
    kernels: Mapping[int, KernelIR] | None = None,
    max_steps: int = _MAX_STEPS,
) -> None:
    """Runs a kernel. Arguments are as for a compiled one, arrays and numbers; arrays are written in place.

    Args:
        buffers: arrays that the kernel reaches through pointers in memory, such as those of an argument block.
        kernels: what the addresses in kernel pointers stand for.
        max_steps: instructions after which the kernel counts as one that never ends.

    Raises:
        InterpretError: the kernel does what compiled code must never do; names the Python line.
        ParameterError: an argument does not fit its parameter.
    """
    memory = Memory(buffers)
    values = Signature.of(kernel).convert(arguments)
    machine = _Machine(memory, kernels or {}, max_steps)
    given: list[Held] = []
    for parameter, argument, value in zip(kernel.parameters, arguments, values, strict=True):
        if isinstance(parameter.type, Scalar):
            given.append(np.array([value], dtype_of(parameter.type)))
        elif isinstance(argument, np.ndarray):
            given.append(memory.pointer_to(argument))
        else:
            given.append(memory.pointer_at(int(value)))
    with np.errstate(all="ignore"):
        machine.run(kernel, given)


class _Machine:
    """What all kernels of one run share."""

    def __init__(self, memory: Memory, kernels: Mapping[int, KernelIR], max_steps: int) -> None:
        self.memory = memory
        self.kernels = kernels
        self.max_steps = max_steps
        self.n_steps = 0

    def run(self, kernel: KernelIR, arguments: Sequence[Held]) -> None:
        registers = {each.register.number: value for each, value in zip(kernel.parameters, arguments, strict=True)}
        _Frame(self, kernel, registers).block(kernel.body)


class _Frame:
    """One kernel at work."""

    def __init__(self, machine: _Machine, kernel: KernelIR, registers: dict[int, Held]) -> None:
        self._machine = machine
        self._kernel = kernel
        self._registers = registers
        self._variables: dict[int, Held] = {}

    def block(self, block: Block) -> bool:
        """Runs a block; whether the kernel has returned."""
        for instruction in block.instructions:
            self._machine.n_steps += 1
            try:
                if self._machine.n_steps > self._machine.max_steps:
                    raise UndefinedError(f"still running after {self._machine.max_steps} instructions")
                if self._step(instruction):
                    return True
            except UndefinedError as error:
                raise InterpretError(str(error), kernel=self._kernel.name, location=instruction.location) from error
        return False

    def _step(self, instruction: Instruction) -> bool:
        match instruction:
            case Store() | AtomicStore():
                self._store(instruction)
            case CompareExchange(result, swapped, address, expected, desired, _):
                old = self._load(address, result.type, _natural_align(result.type))
                assert not isinstance(old, Pointer)
                is_equal = np.equal(old, self._lanes(expected))
                if is_equal.all():
                    self._write(address, self._held(desired), _natural_align(result.type))
                self._registers[result.number], self._registers[swapped.number] = old, is_equal
            case SetVariable(variable, value):
                self._variables[variable.number] = self._held(value)
            case Prefetch() | Pause():
                pass
            case Call(callee, arguments):
                target = callee if isinstance(callee, KernelIR) else self._kernel_at(self._pointer(callee))
                self._machine.run(target, [self._held(each) for each in arguments])
            case Loop():
                return self._loop(instruction)
            case While(test, condition, body):
                while not self.block(test):
                    if not self._lanes(condition)[0]:
                        return False
                    if self.block(body):
                        return True
                return True
            case If(condition, then, otherwise):
                return self.block(then if self._lanes(condition)[0] else otherwise)
            case Return():
                return True
            case _:
                self._registers[instruction.result.number] = self._value(instruction)
        return False

    def _loop(self, loop: Loop) -> bool:
        start, stop, step = (int(self._lanes(each)[0]) for each in (loop.start, loop.stop, loop.step))
        if step < 1:
            raise UndefinedError(f"the step of a loop is {step}")
        for index in range(start, stop, step):
            self._registers[loop.index.number] = np.array([index], np.int64)
            if self.block(loop.body):
                return True
        return False

    def _value(self, instruction: Instruction) -> Held:
        lanes = self._lanes
        match instruction:
            case Binary(_, op, a, b):
                return evaluate.binary(op, lanes(a), lanes(b))
            case Unary(_, op, a):
                return evaluate.unary(op, lanes(a))
            case FusedMultiplyAdd(_, a, b, c):
                return evaluate.fma(lanes(a), lanes(b), lanes(c))
            case Compare(_, op, a, b):
                return evaluate.compare(op, lanes(a), lanes(b))
            case Select(_, mask, a, b):
                return self._select(lanes(mask), self._held(a), self._held(b))
            case Convert(result, op, a):
                return evaluate.convert(op, _number(a.type), _number(result.type), lanes(a))
            case Splat(result, a):
                return np.repeat(lanes(a), lanes_of(result.type))
            case Extract(_, a, lane):
                return lanes(a)[lane : lane + 1]
            case Insert(_, a, lane, value):
                whole = lanes(a).copy()
                whole[lane] = lanes(value)[0]
                return whole
            case Shuffle(_, a, b, indices):
                both = lanes(a) if b is None else np.concatenate([lanes(a), lanes(b)])
                return both[list(indices)]
            case FirstLanes(result, n):
                return np.arange(lanes_of(result.type)) < lanes(n)
            case Lookup16(_, table, indices):
                return evaluate.lookup16(table, lanes(indices))
            case Dot4(_, accumulator, u, s, u_max):
                return evaluate.dot4(lanes(accumulator), lanes(u), lanes(s), u_max)
            case Offset(_, base, index, scale_bytes):
                pointer = self._pointer(base)
                return Pointer(pointer.address + int(lanes(index)[0]) * scale_bytes, pointer.buffer)
            case CastPointer(_, base):
                return self._pointer(base)
            case Load(result, address, align, None, _):
                return self._load(address, result.type, align)
            case Load(result, address, align, mask, _) if mask is not None:
                return self._masked_load(address, _number(result.type), align, lanes(mask))
            case AtomicLoad(result, address, _):
                return self._load(address, result.type, _natural_align(result.type))
            case AtomicUpdate(result, op, address, value, _):
                align = _natural_align(result.type)
                old = self._load(address, result.type, align)
                assert not isinstance(old, Pointer)
                new = old + lanes(value) if op is AtomicOp.ADD else lanes(value)
                self._write(address, new, align)
                return old
            case GetVariable(_, variable):
                return self._variables[variable.number]
            case _:
                raise AssertionError(f"{type(instruction).__name__} has no value")

    def _held(self, operand: Operand) -> Held:
        if isinstance(operand, Constant):
            element = element_of(operand.type)
            assert element is not None
            values = np.array(operand.values).astype(dtype_of(element))
            return np.repeat(values, lanes_of(operand.type)) if len(values) == 1 else values
        return self._registers[operand.number]

    def _lanes(self, operand: Operand) -> Lanes:
        held = self._held(operand)
        assert not isinstance(held, Pointer)
        return held

    def _pointer(self, operand: Operand) -> Pointer:
        held = self._held(operand)
        assert isinstance(held, Pointer)
        return held

    def _select(self, mask: Lanes, a: Held, b: Held) -> Held:
        if len(mask) == 1:
            return a if mask[0] else b
        assert not isinstance(a, Pointer)
        assert not isinstance(b, Pointer)
        return np.where(mask, a, b)

    def _load(self, address: Operand, of: object, align: int) -> Held:
        pointer = self._pointer(address)
        if isinstance(of, (PointerType, KernelPointer)):
            content = view(pointer, POINTER_BYTES, align, for_write=False)
            return self._machine.memory.pointer_at(int.from_bytes(content.tobytes(), "little"))
        assert isinstance(of, (Scalar, Vector))
        dtype = _dtype(of)
        content = view(pointer, dtype.itemsize * lanes_of(of), align, for_write=False)
        return np.frombuffer(content.tobytes(), dtype)

    def _masked_load(self, address: Operand, of: Scalar | Vector, align: int, mask: Lanes) -> Lanes:
        result = np.zeros(lanes_of(of), _dtype(of))
        active = np.flatnonzero(mask)
        if len(active):
            first, last = int(active[0]), int(active[-1])
            size = result.dtype.itemsize
            pointer = self._pointer(address)
            _check_base_align(pointer, align)
            inside = Pointer(pointer.address + first * size, pointer.buffer)
            content = view(inside, (last - first + 1) * size, 1, for_write=False)
            result[first : last + 1] = np.frombuffer(content.tobytes(), result.dtype)
        result[~mask] = 0
        return result

    def _store(self, store: Store | AtomicStore) -> None:
        value = self._held(store.value)
        if isinstance(store, AtomicStore):
            self._write(store.address, value, _natural_align(store.value.type))
        elif store.mask is None:
            self._write(store.address, value, store.align)
        else:
            assert not isinstance(value, Pointer)
            pointer = self._pointer(store.address)
            _check_base_align(pointer, store.align)
            for lane in np.flatnonzero(self._lanes(store.mask)):
                size = value.dtype.itemsize
                inside = Pointer(pointer.address + int(lane) * size, pointer.buffer)
                view(inside, size, 1, for_write=True)[:] = np.frombuffer(value[lane].tobytes(), np.uint8)

    def _write(self, address: Operand, value: Held, align: int) -> None:
        content = value.address.to_bytes(POINTER_BYTES, "little") if isinstance(value, Pointer) else value.tobytes()
        view(self._pointer(address), len(content), align, for_write=True)[:] = np.frombuffer(content, np.uint8)

    def _kernel_at(self, pointer: Pointer) -> KernelIR:
        kernel = self._machine.kernels.get(pointer.address)
        if kernel is None:
            raise UndefinedError(f"no kernel is known at the address {pointer.address:#x}")
        return kernel


def _number(of: object) -> Scalar | Vector:
    assert isinstance(of, (Scalar, Vector))
    return of


def _dtype(of: Scalar | Vector) -> np.dtype[Any]:
    return dtype_of(of.element if isinstance(of, Vector) else of)


def _natural_align(of: object) -> int:
    return _dtype(_number(of)).itemsize


def _check_base_align(pointer: Pointer, align: int) -> None:
    if pointer.address % align:
        raise UndefinedError(f"the address {pointer.address:#x} is no multiple of {align}, as the access promises")
