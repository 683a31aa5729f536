"""A kernel's name and parameters as the compiled side knows them, and how Python values become its arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.simd.dtypes import DTYPES
from minfer.simd.ir import KernelIR

Argument = NDArray[np.generic] | int | float

_C_TYPES: dict[str, type[ctypes._SimpleCData[int]] | type[ctypes._SimpleCData[float]]] = {
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}
# Pointers in memory are addresses.
_ADDRESSES = np.dtype(np.uint64)


@dataclass(frozen=True, slots=True)
class Signature:
    """`parameters` holds the name and type of each, the type as text, such as `ptr(f32)`."""

    name: str
    parameters: tuple[tuple[str, str], ...]

    @staticmethod
    def of(kernel: KernelIR) -> Signature:
        return Signature(kernel.name, tuple((each.name, str(each.type)) for each in kernel.parameters))

    def ctypes(self) -> list[type]:
        """The C types of the parameters."""
        return [_C_TYPES.get(of, ctypes.c_void_p) for _, of in self.parameters]

    def convert(self, arguments: Sequence[Argument]) -> list[int | float]:
        """Checks Python arguments against the parameters, and makes addresses of arrays.

        Raises:
            ParameterError: the wrong number of arguments, or one of the wrong kind; names it.
        """
        if len(arguments) != len(self.parameters):
            raise ParameterError(f"kernel {self.name!r} takes {len(self.parameters)} arguments, not {len(arguments)}")
        return [self._argument(*each, value) for each, value in zip(self.parameters, arguments, strict=True)]

    def _argument(self, name: str, of: str, value: Argument) -> int | float:
        if of in _C_TYPES:
            return self._number(name, of, value)
        if isinstance(value, int):
            return value
        if isinstance(value, np.ndarray):
            return self._address(name, of, value)
        raise ParameterError(
            f"kernel {self.name!r}, parameter {name}: {of} takes an array or an address, not {type(value).__name__}"
        )

    def _number(self, name: str, of: str, value: Argument) -> int | float:
        dtype = DTYPES[of]
        if dtype.kind == "f" and isinstance(value, (int, float, np.floating)):
            return float(value)
        if isinstance(value, (int, np.integer)):
            limits = np.iinfo(dtype)
            if limits.min <= value <= limits.max:
                return int(value)
        raise ParameterError(f"kernel {self.name!r}, parameter {name}: {value!r} is no {of}")

    def _address(self, name: str, of: str, array: NDArray[np.generic]) -> int:
        to = of.removeprefix("ptr(").removesuffix(")") if of.startswith("ptr(") else of
        dtype = DTYPES.get(to, _ADDRESSES)
        if array.dtype not in (dtype, np.dtype(np.uint8)):
            raise ParameterError(
                f"kernel {self.name!r}, parameter {name}: {of} takes an array of {dtype}, not {array.dtype}"
            )
        if not array.flags.c_contiguous:
            raise ParameterError(f"kernel {self.name!r}, parameter {name}: the array is not contiguous")
        return int(array.ctypes.data)
