"""What the language refuses while tracing: each time with the kernel's name and the Python line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minfer.simd import (
    Kernel,
    Ordering,
    TraceError,
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
    vec,
)

CODE = kernel_ptr(ptr(f32), i64)


def new_kernel() -> Kernel:
    return Kernel(
        "sample", x=ptr(f32), h=ptr(f16), d=ptr(f64), b=ptr(i8), u=ptr(u8), w=ptr(i32), n=i64, m=i32, code=CODE
    )


class Values:
    """One value of every kind, in a kernel of their own."""

    def __init__(self) -> None:
        self.k = new_kernel()
        self.x, self.h, self.d, self.b, self.u, self.w, self.n, self.m, self.code = self.k.args
        self.f = self.k.load(self.x)
        self.fv = self.k.load(self.x, 16)
        self.hv = self.k.load(self.h, 16)
        self.dv = self.k.load(self.d, 16)
        self.bv = self.k.load(self.b, 64)
        self.uv = self.k.load(self.u, 64)
        self.wv = self.k.load(self.w, 16)
        self.mask = self.fv > 0


REFUSED: list[tuple[Callable[[Values], object], str]] = [
    (lambda v: v.fv + v.wv, "f32x16 + i32x16: the types differ"),
    (lambda v: v.fv * v.f, "f32x16 * f32: the types differ; convert or splat"),
    (lambda v: v.n + v.m, "i64 + i32"),
    (lambda v: v.fv < v.dv, "f32x16 < f64x16"),
    (lambda v: v.fv + "1", "f32x16 + str"),
    (lambda v: v.bv + 128, "128 does not fit into i8"),
    (lambda v: v.uv + -1, "-1 does not fit into u8"),
    (lambda v: v.wv * 1.5, "1.5 is no integer"),
    (lambda v: v.wv + True, "truth value"),
    (lambda v: v.mask & 1, "an i1 is True or False"),
    (lambda v: v.fv * 1e39, "beyond the range of f32"),
    (lambda v: v.hv + v.hv, "f16 is a storage format"),
    (lambda v: v.hv < v.hv, "< is not for f16x16"),
    (lambda v: v.k.const(vec(bf16, 4), 1.0), "bf16 is a storage format"),
    (lambda v: v.mask + v.mask, "+ is not for truth values"),
    (lambda v: v.mask < v.mask, "< is not for i1x16"),
    (lambda v: v.wv / v.wv, "/ is for floats"),
    (lambda v: v.wv // v.wv, "// is for scalars"),
    (lambda v: v.f // v.f, "// is for integers"),
    (lambda v: v.fv & v.fv, "& is for integers"),
    (lambda v: v.wv << 32, "a shift by 32 is out of the 32 bits"),
    (lambda v: v.wv >> -1, "a shift by -1"),
    (lambda v: ~v.fv, "~ is for integers"),
    (lambda v: -v.uv, "negate is for signed types"),
    (lambda v: -v.hv, "negate is not for f16x16"),
    (lambda v: v.k.sqrt(v.wv), "sqrt is not for i32x16"),
    (lambda v: v.k.fma(v.dv, v.dv, v.dv), "fma is for f32, not f64x16"),
    (lambda v: v.k.fma(v.fv, v.fv, v.f), "f32x16 is needed here, not f32"),
    (lambda v: v.k.exp(v.dv), "exp is for f32"),
    (lambda v: v.x - 1, "add a negative index"),
    (lambda v: v.x * 2, "the number 2 can't become a ptr(f32)"),
    (lambda v: v.x + v.m, "the index of a pointer must be i64, not i32"),
    (lambda v: v.x + 1.5, "1.5 is no integer"),
    (lambda v: v.fv.offset_bytes(4), "only pointers move"),
    (lambda v: v.fv.cast(i32), "cast is for pointers"),
    (lambda v: v.fv.to(i32), "must say how to round"),
    (lambda v: v.fv.to(i1), "a number becomes a truth value by comparison"),
    (lambda v: v.dv.to(f16), "f64 to f16 goes by way of f32"),
    (lambda v: v.wv.to(f16), "i32 to f16 goes by way of f32"),
    (lambda v: v.x.to(i64), "is no number"),
    (lambda v: v.dv.round_to(i32), "convert f64 to f32 first"),
    (lambda v: v.fv.round_to(i16), "round_to makes i32 of f32, not i16"),
    (lambda v: v.wv.saturate_to(i64), "saturate_to narrows integers"),
    (lambda v: v.fv.saturate_to(i8), "saturate_to narrows integers"),
    (lambda v: v.fv.bitcast(vec(u8, 32)), "f32x16 and u8x32 differ in size"),
    (lambda v: v.x.bitcast(i64), "pointers have .cast"),
    (lambda v: v.mask.bitcast(u16), "bits can't be cast"),
    (lambda v: v.k.load(v.n), "an address must be a pointer, not i64"),
    (lambda v: v.k.load(v.x, 16, align=3), "a power of two, not 3"),
    (lambda v: v.k.load(v.x, 8, mask=v.mask), "i1x8 is needed here, not i1x16"),
    (lambda v: v.k.load(v.x, mask=v.mask), "masks are for vectors"),
    (lambda v: v.k.load(v.x, 16, mask=v.mask, non_temporal=True), "can't be non-temporal"),
    (lambda v: v.k.load(v.x.cast(CODE), 2), "vectors hold numbers"),
    (lambda v: v.k.store(v.x, v.wv), "f32x16 is needed here, not i32x16"),
    (lambda v: v.k.store(v.x, v.n), "f32 is needed here, not i64"),
    (lambda v: v.k.prefetch(v.x, locality=4), "0 to 3, not 4"),
    (lambda v: v.k.atomic_add(v.x, 1), "atomic accesses are for i32 and i64, not f32"),
    (lambda v: v.k.atomic_load(v.w, Ordering.RELEASE), "an atomic load can't be RELEASE"),
    (lambda v: v.k.atomic_store(v.w, 1, Ordering.ACQUIRE), "an atomic store can't be ACQUIRE"),
    (lambda v: v.k.const(vec(i32, 4), [1, 2, 3]), "3 numbers are no i32x4"),
    (lambda v: v.k.splat(v.fv, 4), "splat repeats a scalar"),
    (lambda v: v.k.extract(v.f, 0), "must be a vector, not f32"),
    (lambda v: v.k.extract(v.fv, 16), "lane 16 is out of the 16"),
    (lambda v: v.k.insert(v.fv, -1, 0.0), "lane -1 is out"),
    (lambda v: v.k.shuffle(v.fv, [0, 16]), "lane 16 is out of the 16"),
    (lambda v: v.k.shuffle(v.fv, [32], v.fv), "lane 32 is out of the 32"),
    (lambda v: v.k.concat(v.fv, v.wv), "f32x16 is needed here"),
    (lambda v: v.k.select(v.mask, v.dv, v.fv), "f64x16 is needed here"),
    (lambda v: v.k.select(v.mask, v.f, v.f), "needs a mask of i1 or i1, not i1x16"),
    (lambda v: v.k.select(v.mask, 1.0, 2.0), "select needs a traced value"),
    (lambda v: v.k.minimum(1.0, 2.0), "needs a traced value on one side"),
    (lambda v: v.k.reduce_sum(v.k.load(v.x, 12)), "12 is no power of two"),
    (lambda v: v.k.first_lanes(v.m, 4), "the number of lanes must be i64, not i32"),
    (lambda v: v.k.dot4(v.fv, v.uv, v.bv), "dot4 accumulates into a vector of i32"),
    (lambda v: v.k.dot4(v.wv, v.bv, v.bv), "u8x64 is needed here, not i8x64"),
    (lambda v: v.k.dot4(v.wv, v.uv, v.bv, u_max=256), "u_max is 1 to 255"),
    (lambda v: v.k.lookup16(range(15), v.uv), "16 entries, not 15"),
    (lambda v: v.k.lookup16(range(16), v.bv), "indices are u8"),
    (lambda v: v.k.lookup16([200] * 16, v.uv), "200 does not fit into i8"),
    (lambda v: v.k.loop(0, v.m).__enter__(), "the end of a loop must be i64, not i32"),
    (lambda v: v.k.loop(0, 1, 0).__enter__(), "must be positive, not 0"),
    (lambda v: v.k.if_(v.m).__enter__(), "the condition of a branch must be i1, not i32"),
    (lambda v: v.k.while_(lambda: v.mask).__enter__(), "must be i1, not i1x16"),
    (lambda v: v.k.else_().__enter__(), "else_ stands directly after an if_"),
    (lambda v: v.k.call(v.code, v.x), "takes 2 arguments, not 1"),
    (lambda v: v.k.call(v.code, v.x, v.m), "i64 is needed here, not i32"),
    (lambda v: v.k.call(v.x, v.x), "a call needs a kernel or a kernel pointer"),
    (lambda v: v.k.var(1.0), "a traced value is needed here, not 1.0"),
    (lambda v: v.k.var(v.fv).set(v.dv), "f32x16 is needed here, not f64x16"),
    (lambda v: v.k.store(v.x, Values().f), "a value of kernel 'sample' can't be used in this one"),
    (lambda v: bool(v.n > 0), "has no truth while tracing"),
    (lambda v: v.n == 0, "use a.eq(b)"),
    (lambda v: v.n != 0, "use a.ne(b)"),
    (lambda v: list(v.fv), "can't be iterated over"),
    (lambda v: Kernel("half", x=f16), "parameter x can't be a f16"),
    (lambda v: Kernel("vector", x=vec(f32, 4)), "parameter x can't be a f32x4"),  # type: ignore[arg-type]
    (lambda v: Kernel("a-b"), "letters, digits and _"),
]


@pytest.mark.parametrize(("use", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_misuse_is_refused_with_its_line(use: Callable[[Values], object], message: str) -> None:
    values = Values()
    with pytest.raises(TraceError) as caught:
        use(values)
    assert message in str(caught.value)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    assert caught.value.location.line == use.__code__.co_firstlineno
    assert f"{__file__}:{caught.value.location.line}" in str(caught.value)
    assert caught.value.kernel in ("sample", "half", "vector", "a-b")


def test_the_line_is_the_one_within_a_helper_of_the_users() -> None:
    k = new_kernel()

    def helper(pointer):
        return k.load(pointer) + 1j  # the line that is named

    with pytest.raises(TraceError, match="complex") as caught:
        helper(k.args[0])
    assert caught.value.location is not None
    line = Path(__file__).read_text().splitlines()[caught.value.location.line - 1]
    assert "the line that is named" in line


def test_values_do_not_leave_their_block() -> None:
    k = new_kernel()
    x, *_ = k.args
    with k.loop(0, 4) as i:
        inside = k.load(x + i)
        variable = k.var(inside)
    with pytest.raises(TraceError, match=r"used outside it: keep it in a variable \(k.var\)"):
        k.store(x, inside)
    with pytest.raises(TraceError, match="make it before"):
        variable.get()


def test_values_of_one_branch_are_unknown_in_the_other() -> None:
    k = new_kernel()
    x, *_ = k.args
    with k.if_(k.load(x) > 0):
        inside = k.load(x + 1)
    with pytest.raises(TraceError, match="used outside"), k.else_():
        k.store(x, inside)


def test_nothing_follows_a_return_or_the_end() -> None:
    k = new_kernel()
    x, *_ = k.args
    k.return_()
    with pytest.raises(TraceError, match="nothing after a return"):
        k.load(x)
    k.finish()
    with pytest.raises(TraceError, match="the kernel is finished"):
        k.load(x)


def test_a_kernel_does_not_end_inside_a_loop() -> None:
    k = new_kernel()
    with pytest.raises(TraceError, match="ends inside a loop"), k.loop(0, 3):
        k.finish()


def test_one_branch_has_one_else() -> None:
    k = new_kernel()
    x, *_ = k.args
    with k.if_(k.load(x) > 0):
        pass
    with k.else_():
        k.store(x, 1.0)
    with pytest.raises(TraceError, match="directly after an if_"), k.else_():
        pass


def test_types_refuse_what_they_are_not_for() -> None:
    with pytest.raises(ValueError, match="at least one lane, not 0"):
        vec(f32, 0)
    with pytest.raises(ValueError, match="store a mask as u8"):
        ptr(i1)


def test_types_read_as_they_are_written() -> None:
    assert [str(each) for each in (f32, vec(u8, 64), ptr(ptr(bf16)), CODE)] == [
        "f32",
        "u8x64",
        "ptr(ptr(bf16))",
        "kernel_ptr(ptr(f32), i64)",
    ]
