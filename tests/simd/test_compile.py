"""Compiling, calling from Python, and what goes wrong on the way."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from minfer.errors import MinferError, ParameterError
from minfer.simd import (
    CompileError,
    Kernel,
    KernelIR,
    Location,
    NativeModule,
    bf16,
    compile_kernels,
    compile_to_assembly,
    f32,
    f64,
    host_target,
    i8,
    i64,
    kernel_ptr,
    optimised_llvm,
    ptr,
    u32,
)
from minfer.simd.compile import load_object
from minfer.simd.ir import Binary, BinaryOp, Block, Parameter, Register
from minfer.simd.signature import Signature


def scale() -> KernelIR:
    k = Kernel("scale", x=ptr(f32), y=ptr(f32), n=i64, factor=f32)
    x, y, n, factor = k.args
    with k.loop(0, n) as i:
        k.store(y + i, k.load(x + i) * factor)
    return k.finish()


def every_parameter() -> KernelIR:
    k = Kernel("every_parameter", a=i8, b=u32, c=f64, d=ptr(bf16), e=kernel_ptr(), f=ptr(ptr(f32)), out=ptr(f64))
    a, b, c, d, _, _, out = k.args
    k.store(out, a.to(f64) + b.to(f64) + c + k.load(d).to(f32).to(f64))
    return k.finish()


@pytest.fixture(scope="module")
def module() -> NativeModule:
    return compile_kernels([scale(), every_parameter()], host_target())


def test_a_module_holds_its_kernels_by_name(module: NativeModule) -> None:
    assert set(module.kernels) == {"scale", "every_parameter"}
    assert module["scale"].name == "scale"
    assert module.address("scale") == module["scale"].address
    assert module.address("scale") != module.address("every_parameter")
    assert not module.from_cache
    with pytest.raises(KeyError):
        module["other"]


def test_arrays_numbers_and_addresses_are_arguments(module: NativeModule) -> None:
    x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    module["scale"](x, y, 5, 2)
    assert y.tolist() == [0, 2, 4, 6, 8]
    module["scale"](x.ctypes.data, y.view(np.uint8), np.int64(5), np.float32(0.5))
    assert y.tolist() == [0, 0.5, 1, 1.5, 2]
    module["scale"].raw(x.ctypes.data, y.ctypes.data, 5, 3.0)
    assert y.tolist() == [0, 3, 6, 9, 12]


def test_parameters_of_every_kind_arrive(module: NativeModule) -> None:
    out = np.zeros(1)
    one_and_a_half = np.array([0x3FC0], np.uint16)
    module["every_parameter"](-128, 2**32 - 1, 0.25, one_and_a_half, 0, np.zeros(1, np.uint64), out)
    assert out[0] == -128 + 2**32 - 1 + 0.25 + 1.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: np.zeros(4, np.float64)}, r"'scale', parameter x: ptr\(f32\) takes an array of float32, not float64"),
        ({0: np.zeros(8, np.float32)[::2]}, "parameter x: the array is not contiguous"),
        ({1: [1.0]}, "parameter y: .* takes an array or an address, not list"),
        ({2: 2**63}, "parameter n: 9223372036854775808 is no i64"),
        ({2: 1.5}, "parameter n: 1.5 is no i64"),
        ({3: "2"}, "parameter factor: '2' is no f32"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(module: NativeModule, change: dict[int, object], message: str) -> None:
    arguments: list[object] = [np.zeros(4, np.float32), np.zeros(4, np.float32), 4, 1.0]
    for index, value in change.items():
        arguments[index] = value
    with pytest.raises(ParameterError, match=message):
        module["scale"](*arguments)  # type: ignore[arg-type]


def test_the_number_of_arguments_is_checked(module: NativeModule) -> None:
    with pytest.raises(ParameterError, match="'scale' takes 4 arguments, not 1"):
        module["scale"](1)


def test_a_module_may_be_unloaded_and_others_keep_running(module: NativeModule) -> None:
    other = compile_kernels([scale()], host_target())
    assert other.address("scale") != module.address("scale")
    del other
    gc.collect()
    y = np.zeros(1, np.float32)
    module["scale"](np.ones(1, np.float32), y, 1, 7.0)
    assert y[0] == 7


def ill_typed(line: int) -> KernelIR:
    """IR that tracing would never build: the sum of an f32 and an i64."""
    here = Location(__file__, line)
    x, n, total = Register(0, f32), Register(1, i64), Register(2, i64)
    body = Block([Binary(total, BinaryOp.ADD, n, x, location=here)])
    return KernelIR("ill_typed", (Parameter("x", x), Parameter("n", n)), (), body, Location(__file__, 1))


@pytest.mark.parametrize("use", [compile_kernels, compile_to_assembly, optimised_llvm])
def test_what_llvm_refuses_is_named_with_its_kernel_and_line(use) -> None:
    with pytest.raises(CompileError, match="LLVM refuses it") as caught:
        use([scale(), ill_typed(77)], host_target())
    assert caught.value.kernel == "ill_typed"
    assert caught.value.location == Location(__file__, 77)
    assert f"{Path(__file__)}:77" in str(caught.value)
    assert isinstance(caught.value, MinferError)


def test_an_object_that_is_none_is_refused() -> None:
    with pytest.raises(CompileError, match="can't load the object"):
        load_object(b"no object file", [Signature("f", ())], host_target(), from_cache=True)


def test_an_object_without_the_kernel_is_refused() -> None:
    from minfer.simd.compile import compile_to_object

    image, _ = compile_to_object([scale()], host_target())
    with pytest.raises(CompileError, match="missing"):
        load_object(image, [Signature("missing", ())], host_target(), from_cache=True)
