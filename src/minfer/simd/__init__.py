"""The kernel language: Python functions that trace SIMD kernels, compiled by LLVM or interpreted with NumPy.

`docs/kernel-language.md` teaches it. Tracing and interpreting need no LLVM; compiling does.
"""

from __future__ import annotations

from minfer.simd.cache import ObjectCache, digest_of_package, load_or_compile, open_cache
from minfer.simd.compile import (
    NativeKernel,
    NativeModule,
    compile_kernels,
    compile_to_assembly,
    lower_to_llvm,
    optimised_llvm,
)
from minfer.simd.errors import (
    CompileError,
    InterpretError,
    KernelError,
    Location,
    ObjectCacheError,
    TraceError,
)
from minfer.simd.interpret import interpret
from minfer.simd.ir import KernelIR, Ordering
from minfer.simd.targets import (
    Architecture,
    Machine,
    Target,
    foreign_target,
    host_target,
    host_target_names,
    target_named,
    this_machine,
)
from minfer.simd.trace import Kernel, Var
from minfer.simd.types import (
    KernelPointer,
    Pointer,
    Scalar,
    Vector,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
    kernel_ptr,
    ptr,
    u8,
    u16,
    u32,
    u64,
    vec,
)
from minfer.simd.values import Value

__all__ = [
    "Architecture",
    "CompileError",
    "InterpretError",
    "Kernel",
    "KernelError",
    "KernelIR",
    "KernelPointer",
    "Location",
    "Machine",
    "NativeKernel",
    "NativeModule",
    "ObjectCache",
    "ObjectCacheError",
    "Ordering",
    "Pointer",
    "Scalar",
    "Target",
    "TraceError",
    "Value",
    "Var",
    "Vector",
    "bf16",
    "compile_kernels",
    "compile_to_assembly",
    "digest_of_package",
    "f16",
    "f32",
    "f64",
    "foreign_target",
    "host_target",
    "host_target_names",
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "interpret",
    "kernel_ptr",
    "load_or_compile",
    "lower_to_llvm",
    "open_cache",
    "optimised_llvm",
    "ptr",
    "target_named",
    "this_machine",
    "u8",
    "u16",
    "u32",
    "u64",
    "vec",
]
