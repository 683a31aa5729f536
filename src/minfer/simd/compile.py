"""Compiles traced kernels to machine code in this process, and makes them callable from Python."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from minfer.simd import llvm
from minfer.simd.errors import CompileError, Location
from minfer.simd.ir import KernelIR
from minfer.simd.signature import Argument, Signature
from minfer.simd.targets import Target

if TYPE_CHECKING:
    from minfer.simd.lower import LoweredModule

_LINE_IN_MODULE = re.compile(r"<string>:(\d+):\d+: ")


class NativeKernel:
    """A compiled kernel. Calling it releases the GIL, so threads run it in parallel.

    Pointer parameters take contiguous NumPy arrays of the element's dtype (uint16 for bf16; uint8 passes for raw bytes
    of anything) or addresses as integers. `address` is what other kernels call through a kernel pointer, and
    `raw` the ctypes function without checks, which takes addresses and numbers.
    """

    def __init__(self, library: llvm.LoadedObject, signature: Signature) -> None:
        self.name = signature.name
        self.signature = signature
        self.address = library.address(signature.name)
        self.raw = ctypes.CFUNCTYPE(None, *signature.ctypes())(self.address)
        self._library = library  # the code lives as long as this

    def __call__(self, *arguments: Argument) -> None:
        self.raw(*self.signature.convert(arguments))


class NativeModule:
    """Kernels compiled together. Their addresses are valid as long as the module or one of its kernels lives."""

    def __init__(self, library: llvm.LoadedObject, signatures: Iterable[Signature], *, from_cache: bool) -> None:
        self.from_cache = from_cache
        self.kernels: Mapping[str, NativeKernel] = MappingProxyType(
            {each.name: NativeKernel(library, each) for each in signatures}
        )

    def __getitem__(self, name: str) -> NativeKernel:
        return self.kernels[name]

    def address(self, name: str) -> int:
        """Where the code of a kernel starts."""
        return self.kernels[name].address


def compile_kernels(kernels: Iterable[KernelIR], target: Target) -> NativeModule:
    """Compiles kernels, and those that they call, into one module.

    Raises:
        CompileError: LLVM refuses the module; names the kernel and the Python line where LLVM tells the place.
    """
    image, signatures = compile_to_object(kernels, target)
    return load_object(image, signatures, target, from_cache=False)


def compile_to_object(kernels: Iterable[KernelIR], target: Target) -> tuple[bytes, tuple[Signature, ...]]:
    """The object file of a module, and the signatures of its kernels.

    Raises:
        CompileError: as `compile_kernels`.
    """
    lowered = _lower(kernels, target)
    try:
        image = llvm.emit_object(lowered.text, triple=target.triple, cpu=target.cpu, features=target.features)
    except llvm.LLVMRejectsError as error:
        raise _located(lowered, str(error)) from error
    return image, tuple(Signature.of(kernel) for kernel in lowered.kernels)


def load_object(image: bytes, signatures: Iterable[Signature], target: Target, *, from_cache: bool) -> NativeModule:
    """Links an object file of `compile_to_object` into this process."""
    each = tuple(signatures)
    names = [signature.name for signature in each]
    try:
        library = llvm.LoadedObject(image, names, triple=target.triple, cpu=target.cpu, features=target.features)
    except llvm.LLVMRejectsError as error:
        raise CompileError(f"LLVM can't load the object: {error}", kernel=", ".join(names)) from error
    return NativeModule(library, each, from_cache=from_cache)


def compile_to_assembly(kernels: Iterable[KernelIR], target: Target) -> str:
    """The machine's assembly for kernels, for any target: see `foreign_target`."""
    lowered = _lower(kernels, target)
    try:
        return llvm.emit_assembly(lowered.text, triple=target.triple, cpu=target.cpu, features=target.features)
    except llvm.LLVMRejectsError as error:
        raise _located(lowered, str(error)) from error


def lower_to_llvm(kernels: Iterable[KernelIR], target: Target) -> str:
    """The LLVM assembly for kernels before LLVM's optimiser has seen it."""
    return _lower(kernels, target).text


def optimised_llvm(kernels: Iterable[KernelIR], target: Target) -> str:
    """The LLVM assembly for kernels as LLVM's optimiser leaves it."""
    lowered = _lower(kernels, target)
    try:
        return llvm.optimised_text(lowered.text, triple=target.triple, cpu=target.cpu, features=target.features)
    except llvm.LLVMRejectsError as error:
        raise _located(lowered, str(error)) from error


def _lower(kernels: Iterable[KernelIR], target: Target) -> LoweredModule:
    # Imported here: a start with a warm cache lowers nothing, and saves a quarter of this package's import time.
    from minfer.simd.lower import lower_module

    return lower_module(kernels, target)


def _located(lowered: LoweredModule, message: str) -> CompileError:
    found = _LINE_IN_MODULE.search(message)
    kernel = ", ".join(each.name for each in lowered.kernels)
    location: Location | None = None
    if found and int(found[1]) <= len(lowered.origins):
        kernel, location = lowered.origins[int(found[1]) - 1]
    return CompileError(f"LLVM refuses it: {message}", kernel=kernel, location=location)
