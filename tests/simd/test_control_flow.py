"""Loops, branches, returns, variables and calls."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.simd import (
    CompileError,
    InterpretError,
    Kernel,
    KernelIR,
    compile_kernels,
    f32,
    host_target,
    i64,
    interpret,
    kernel_ptr,
    ptr,
    vec,
)
from simd_runs import Everywhere


def collatz() -> KernelIR:
    """Steps until n reaches 1."""
    k = Kernel("collatz", n=i64, out=ptr(i64))
    n, out = k.args
    current, steps = k.var(n), k.var(k.const(i64, 0))
    with k.while_(lambda: current.get() > 1):
        value = current.get()
        with k.if_((value & 1).eq(0)):
            current.set(value >> 1)
        with k.else_():
            current.set(value * 3 + 1)
        steps.set(steps.get() + 1)
    k.store(out, steps.get())
    return k.finish()


def loops() -> KernelIR:
    """Counts the rounds, and sums the indices, of a loop in a loop with steps."""
    k = Kernel("loops", start=i64, stop=i64, step=i64, out=ptr(i64))
    start, stop, step, out = k.args
    rounds, total = k.var(k.const(i64, 0)), k.var(k.const(i64, 0))
    with k.loop(start, stop, step) as i, k.loop(0, 3) as j:
        rounds.set(rounds.get() + 1)
        total.set(total.get() + i * 10 + j)
    k.store(out, rounds.get())
    k.store(out + 1, total.get())
    return k.finish()


def first_negative() -> KernelIR:
    """The index of the first negative number, or -1: returns out of a loop."""
    k = Kernel("first_negative", x=ptr(f32), n=i64, out=ptr(i64))
    x, n, out = k.args
    with k.loop(0, n) as i, k.if_(k.load(x + i) < 0):
        k.store(out, i)
        k.return_()
    k.store(out, -1)
    return k.finish()


def returns_everywhere() -> KernelIR:
    k = Kernel("returns_everywhere", n=i64, out=ptr(i64))
    n, out = k.args
    k.store(out, 1)
    with k.if_(n > 0):
        k.store(out, 2)
        k.return_()
    with k.else_():
        with k.while_(lambda: n.eq(0)):
            k.store(out, 3)
            k.return_()
        with k.loop(n, 0):
            k.store(out, 4)
            k.return_()
        k.return_()
    return k.finish()


def add_one() -> KernelIR:
    k = Kernel("add_one", x=ptr(i64))
    (x,) = k.args
    k.store(x, k.load(x) + 1)
    return k.finish()


ADD_ONE = add_one()


def times_ten() -> KernelIR:
    k = Kernel("times_ten", x=ptr(i64))
    (x,) = k.args
    k.store(x, k.load(x) * 10)
    return k.finish()


def calls() -> KernelIR:
    k = Kernel("calls", x=ptr(i64), n=i64)
    x, n = k.args
    with k.loop(0, n):
        k.call(ADD_ONE, x)
    k.call(times_ten(), x + 1)
    return k.finish()


def tape() -> KernelIR:
    """Runs a list of (kernel, argument) pairs in memory: how a plan is walked."""
    operation = kernel_ptr(ptr(i64))
    k = Kernel("tape", kernels=ptr(operation), arguments=ptr(ptr(i64)), n=i64)
    kernels, arguments, n = k.args
    with k.loop(0, n) as i:
        k.call(k.load(kernels + i), k.load(arguments + i))
    return k.finish()


def fibonacci() -> KernelIR:
    """A Python loop is unrolled, and swaps vectors in variables."""
    k = Kernel("fibonacci", out=ptr(i64))
    (out,) = k.args
    a, b = k.var(k.const(vec(i64, 2), [0, 1])), k.var(k.const(vec(i64, 2), [1, 1]))
    for _ in range(5):
        previous = a.get()
        a.set(b.get())
        b.set(previous + b.get())
    k.store(out, a.get())
    return k.finish()


@pytest.fixture(scope="module")
def everywhere() -> Everywhere:
    return Everywhere(
        [collatz(), loops(), first_negative(), returns_everywhere(), calls(), fibonacci(), tape(), double()]
    )


def double() -> KernelIR:
    k = Kernel("double", x=ptr(i64))
    (x,) = k.args
    k.store(x, k.load(x) * 2)
    return k.finish()


@pytest.mark.parametrize(("n", "steps"), [(1, 0), (2, 1), (6, 8), (27, 111)])
def test_while_and_if(everywhere: Everywhere, n: int, steps: int) -> None:
    (out,) = everywhere.run("collatz", lambda: [n, np.zeros(1, np.int64)])
    assert out[0] == steps


@pytest.mark.parametrize("bounds", [(0, 5, 1), (0, 5, 2), (3, 3, 1), (5, 3, 1), (-4, 3, 3)])
def test_loops_run_as_pythons_range(everywhere: Everywhere, bounds: tuple[int, int, int]) -> None:
    (out,) = everywhere.run("loops", lambda: [*bounds, np.zeros(2, np.int64)])
    indices = list(range(*bounds))
    assert out.tolist() == [3 * len(indices), sum(10 * i + j for i in indices for j in range(3))]


@pytest.mark.parametrize(("x", "found"), [([1, 2, -3, -4], 2), ([1, 2], -1), ([-1], 0), ([], -1)])
def test_return_leaves_loops(everywhere: Everywhere, x: list[float], found: int) -> None:
    array = np.array(x, np.float32)
    *_, out = everywhere.run("first_negative", lambda: [array, len(x), np.zeros(1, np.int64)])
    assert out[0] == found


@pytest.mark.parametrize(("n", "expected"), [(5, 2), (0, 3), (-1, 4)])
def test_every_branch_may_return(everywhere: Everywhere, n: int, expected: int) -> None:
    (out,) = everywhere.run("returns_everywhere", lambda: [n, np.zeros(1, np.int64)])
    assert out[0] == expected


def test_kernels_call_kernels_of_their_module(everywhere: Everywhere) -> None:
    (out,) = everywhere.run("calls", lambda: [np.array([5, 7], np.int64), 4])
    assert out.tolist() == [9, 70]
    assert {"add_one", "times_ten"} <= set(everywhere.modules[host_target().name].kernels)


def test_python_loops_unroll_and_variables_carry_vectors(everywhere: Everywhere) -> None:
    (out,) = everywhere.run("fibonacci", lambda: [np.zeros(2, np.int64)])
    assert out.tolist() == [5, 8]


def test_kernels_call_through_pointers_in_memory(everywhere: Everywhere) -> None:
    names = ["double", "add_one", "double"]
    values = np.array([10, 20], np.int64)
    addresses = np.array([values[i:].ctypes.data for i in (0, 1, 1)], np.uint64)
    for module in everywhere.modules.values():
        values[:] = [10, 20]
        kernels = np.array([module.address(name) for name in names], np.uint64)
        module["tape"](kernels, addresses, 3)
        assert values.tolist() == [20, 42]
    values[:] = [10, 20]
    by_address = {1000: double(), 2000: ADD_ONE}
    kernels = np.array([1000, 2000, 1000], np.uint64)
    interpret(tape(), kernels, addresses, 3, buffers=[values], kernels=by_address)
    assert values.tolist() == [20, 42]
    with pytest.raises(InterpretError, match="no kernel is known at the address 0xbb8"):
        interpret(tape(), np.array([3000], np.uint64), addresses, 1, buffers=[values], kernels=by_address)


def test_the_interpreter_stops_endless_loops() -> None:
    k = Kernel("endless", x=ptr(i64))
    (x,) = k.args
    with k.while_(lambda: k.load(x).eq(0)):
        k.pause()
    with pytest.raises(InterpretError, match="still running after 1000 instructions"):
        interpret(k.finish(), np.zeros(1, np.int64), max_steps=1000)


def test_the_interpreter_refuses_what_is_undefined() -> None:
    k = Kernel("undefined", a=i64, b=i64, out=ptr(i64))
    a, b, out = k.args
    with k.if_(b < 100):
        k.store(out, a // b)
    with k.else_():
        k.store(out, a << b)
    kernel = k.finish()
    for a_value, b_value, message in (
        (1, 0, "division by zero"),
        (-(2**63), -1, "smallest integer divided by -1"),
        (1, 100, "a shift by"),
    ):
        with pytest.raises(InterpretError, match=message):
            interpret(kernel, a_value, b_value, np.zeros(1, np.int64))
    steps = Kernel("steps", n=i64)
    with steps.loop(0, 10, steps.args[0]):
        pass
    with pytest.raises(InterpretError, match="the step of a loop is 0"):
        interpret(steps.finish(), 0)


def test_two_kernels_of_one_name_have_no_place_in_a_module() -> None:
    with pytest.raises(CompileError, match="another of that name") as caught:
        compile_kernels([add_one(), add_one()], host_target())
    assert caught.value.kernel == "add_one"


def test_a_kernel_outlives_the_name_of_its_module() -> None:
    function = compile_kernels([add_one()], host_target())["add_one"]
    x = np.array([41], np.int64)
    function(x)
    assert x[0] == 42
