"""Memory accesses as LLVM instructions."""

from __future__ import annotations

from collections.abc import Callable

from minfer.simd import llvm
from minfer.simd.ir import (
    AtomicLoad,
    AtomicOp,
    AtomicStore,
    AtomicUpdate,
    CompareExchange,
    Load,
    Operand,
    Ordering,
    Pause,
    Prefetch,
    Store,
)
from minfer.simd.targets import Architecture, Target
from minfer.simd.writer import Ref, Writer, llvm_element, llvm_lanes, type_text

_ORDERINGS = {
    Ordering.RELAXED: "monotonic",
    Ordering.ACQUIRE: "acquire",
    Ordering.RELEASE: "release",
    Ordering.ACQUIRE_RELEASE: "acq_rel",
    Ordering.SEQUENTIAL: "seq_cst",
}
# What a compare-exchange that fails is ordered like: it only reads.
_ORDERINGS_OF_FAILURE = {
    Ordering.RELAXED: "monotonic",
    Ordering.ACQUIRE: "acquire",
    Ordering.RELEASE: "monotonic",
    Ordering.ACQUIRE_RELEASE: "acquire",
    Ordering.SEQUENTIAL: "seq_cst",
}
_RMW = {AtomicOp.ADD: "add", AtomicOp.EXCHANGE: "xchg"}
# aarch64: hint 1 is `yield`.
_YIELD_HINT = 1


class MemoryLowering:
    """Writes the accesses of one function."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self._writer = writer
        self._target = target

    def value(self, access: Load | AtomicLoad | AtomicUpdate, ref: Callable[[Operand], Ref]) -> Ref:
        element, lanes = llvm_element(access.result.type), llvm_lanes(access.result.type)
        of = type_text(element, lanes)
        address = ref(access.address)
        match access:
            case Load(mask=None):
                hint = ", !nontemporal !0" if access.non_temporal else ""
                return self._writer.new(element, lanes, f"load {of}, {address.typed}, align {access.align}{hint}")
            case Load(mask=mask) if mask is not None:
                return self._masked_load(access, address, ref(mask))
            case AtomicLoad():
                order = _ORDERINGS[access.ordering]
                return self._writer.new(
                    element, lanes, f"load atomic {of}, {address.typed} {order}, align {_n_bytes(element)}"
                )
            case AtomicUpdate():
                op, order = _RMW[access.op], _ORDERINGS[access.ordering]
                value = ref(access.value)
                return self._writer.new(element, lanes, f"atomicrmw {op} {address.typed}, {value.typed} {order}")
        raise AssertionError(access)

    def compare_exchange(self, access: CompareExchange, ref: Callable[[Operand], Ref]) -> tuple[Ref, Ref]:
        expected, desired = ref(access.expected), ref(access.desired)
        order, on_failure = _ORDERINGS[access.ordering], _ORDERINGS_OF_FAILURE[access.ordering]
        pair = f"{{ {expected.element}, i1 }}"
        both = self._writer.new(
            pair, 0, f"cmpxchg {ref(access.address).typed}, {expected.typed}, {desired.typed} {order} {on_failure}"
        )
        old = self._writer.new(expected.element, 0, f"extractvalue {both.typed}, 0")
        return old, self._writer.new("i1", 0, f"extractvalue {both.typed}, 1")

    def effect(self, access: Store | Prefetch | AtomicStore | Pause, ref: Callable[[Operand], Ref]) -> None:
        match access:
            case Store(mask=None):
                hint = ", !nontemporal !0" if access.non_temporal else ""
                address, value = ref(access.address), ref(access.value)
                self._writer.line(f"  store {value.typed}, {address.typed}, align {access.align}{hint}")
            case Store(mask=mask) if mask is not None:
                self._masked_store(access, ref(access.address), ref(access.value), ref(mask))
            case Prefetch():
                numbers = [int(access.for_write), access.locality, 1]
                constants = [Ref(str(number), "i32", 0) for number in numbers]
                self._writer.call_void("llvm.prefetch.p0", [ref(access.address), *constants])
            case AtomicStore():
                address, value, order = ref(access.address), ref(access.value), _ORDERINGS[access.ordering]
                self._writer.line(
                    f"  store atomic {value.typed}, {address.typed} {order}, align {_n_bytes(value.element)}"
                )
            case Pause():
                if self._target.architecture is Architecture.X86_64:
                    self._writer.call_void("llvm.x86.sse2.pause", [])
                else:
                    self._writer.call_void("llvm.aarch64.hint", [Ref(str(_YIELD_HINT), "i32", 0)])

    def _masked_load(self, access: Load, address: Ref, mask: Ref) -> Ref:
        element, lanes = llvm_element(access.result.type), llvm_lanes(access.result.type)
        zero = Ref("zeroinitializer", element, lanes)
        name = f"llvm.masked.load.{zero.mangled}.p0"
        where = _aligned(address, access.align)
        return self._writer.call(name, element, lanes, [*where, mask, zero])

    def _masked_store(self, access: Store, address: Ref, value: Ref, mask: Ref) -> None:
        name = f"llvm.masked.store.{value.mangled}.p0"
        self._writer.call_void(name, [value, *_aligned(address, access.align), mask])


def _aligned(address: Ref, align: int) -> list[Ref]:
    """The address of a masked access: LLVM 22 takes its alignment as an attribute, LLVM before as an argument."""
    if llvm.llvm_major() >= 22:
        return [Ref(f"align {align} {address.name}", "ptr", 0)]
    return [address, Ref(str(align), "i32", 0)]


def _n_bytes(element: str) -> int:
    return int(element.removeprefix("i")) // 8
