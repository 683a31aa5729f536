"""The types of the kernel language: scalars, vectors of them, typed pointers and kernel pointers.

Signedness is part of a type, so that conversions, comparisons and right shifts say what they mean without flags.
`f16` and `bf16` are storage formats: they are loaded, stored, moved and converted, but not computed with.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    """What the bits of a scalar mean."""

    BOOL = auto()
    SIGNED = auto()
    UNSIGNED = auto()
    FLOAT = auto()


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number of `bits` bits (or a truth value, `i1`)."""

    name: str
    kind: Kind
    bits: int

    def __str__(self) -> str:
        return self.name

    @property
    def n_bytes(self) -> int:
        return self.bits // 8

    @property
    def is_integer(self) -> bool:
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)

    @property
    def is_storage_float(self) -> bool:
        return self.kind is Kind.FLOAT and self.bits == 16

    @property
    def smallest(self) -> int:
        """The smallest value of an integer type."""
        return -(1 << (self.bits - 1)) if self.kind is Kind.SIGNED else 0

    @property
    def largest(self) -> int:
        """The largest value of an integer type."""
        return (1 << (self.bits - 1)) - 1 if self.kind is Kind.SIGNED else (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class Vector:
    """`lanes` scalars, computed with lane by lane. Any number of lanes: LLVM splits what the machine can't hold."""

    element: Scalar
    lanes: int

    def __str__(self) -> str:
        return f"{self.element}x{self.lanes}"


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address of values of type `to`. Arithmetic counts in such values."""

    to: Pointee

    def __str__(self) -> str:
        return f"ptr({self.to})"


@dataclass(frozen=True, slots=True)
class KernelPointer:
    """The address of compiled code that takes `parameters` and returns nothing."""

    parameters: tuple[ParameterType, ...]

    def __str__(self) -> str:
        return f"kernel_ptr({', '.join(map(str, self.parameters))})"


POINTER_BYTES = 8

Pointee = Scalar | Pointer | KernelPointer
ParameterType = Scalar | Pointer | KernelPointer
Type = Scalar | Vector | Pointer | KernelPointer

i1 = Scalar("i1", Kind.BOOL, 1)
i8 = Scalar("i8", Kind.SIGNED, 8)
i16 = Scalar("i16", Kind.SIGNED, 16)
i32 = Scalar("i32", Kind.SIGNED, 32)
i64 = Scalar("i64", Kind.SIGNED, 64)
u8 = Scalar("u8", Kind.UNSIGNED, 8)
u16 = Scalar("u16", Kind.UNSIGNED, 16)
u32 = Scalar("u32", Kind.UNSIGNED, 32)
u64 = Scalar("u64", Kind.UNSIGNED, 64)
f16 = Scalar("f16", Kind.FLOAT, 16)
bf16 = Scalar("bf16", Kind.FLOAT, 16)
f32 = Scalar("f32", Kind.FLOAT, 32)
f64 = Scalar("f64", Kind.FLOAT, 64)


def vec(element: Scalar, lanes: int) -> Vector:
    """The vector of `lanes` times `element`; at least one lane."""
    if lanes < 1:
        raise ValueError(f"a vector needs at least one lane, not {lanes}")
    return Vector(element, lanes)


def ptr(to: Pointee) -> Pointer:
    """The pointer to values of type `to`: a scalar, another pointer or a kernel pointer."""
    if to is i1:
        raise ValueError("i1 has no place in memory: store a mask as u8")
    return Pointer(to)


def kernel_ptr(*parameters: ParameterType) -> KernelPointer:
    """The pointer to a kernel with these parameters."""
    return KernelPointer(parameters)


def lanes_of(of: Type) -> int:
    """Lanes of a vector; 1 for anything else."""
    return of.lanes if isinstance(of, Vector) else 1


def element_of(of: Type) -> Scalar | None:
    """The scalar that a scalar or vector type consists of; `None` for pointers."""
    match of:
        case Vector():
            return of.element
        case Scalar():
            return of
        case _:
            return None


def with_element(of: Type, element: Scalar) -> Scalar | Vector:
    """A type with the lanes of `of` (a vector or not) and another element."""
    return Vector(element, of.lanes) if isinstance(of, Vector) else element


def size_in_memory(of: Pointee) -> int:
    """Bytes that one value takes in memory."""
    return of.n_bytes if isinstance(of, Scalar) else POINTER_BYTES
