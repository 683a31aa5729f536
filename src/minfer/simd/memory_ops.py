"""What `Kernel` does with memory: loads, stores, prefetches and atomic accesses."""

from __future__ import annotations

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
from minfer.simd.tracer import Tracer, ValueOrNumber, calling_line
from minfer.simd.types import Pointee, Pointer, Scalar, Type, Vector, i1, i32, i64, lanes_of, size_in_memory, vec
from minfer.simd.values import Value

_LOAD_ORDERINGS = (Ordering.RELAXED, Ordering.ACQUIRE, Ordering.SEQUENTIAL)
_STORE_ORDERINGS = (Ordering.RELAXED, Ordering.RELEASE, Ordering.SEQUENTIAL)


class MemoryOps(Tracer):
    """Traces accesses to memory.

    `align` is the number of bytes that the address is a multiple of; by default the size of one element. Give 1 where
    packed bytes put values anywhere.
    """

    def load(
        self,
        address: Value,
        lanes: int | None = None,
        *,
        align: int | None = None,
        mask: Value | None = None,
        non_temporal: bool = False,
    ) -> Value:
        """The value at an address; with `lanes`, the vector of that many consecutive ones.

        With a mask (of i1, one a lane), lanes where it is false are not read and become zero.
        """
        pointer, to = self._pointer(address)
        of = self._in_memory(to, lanes)
        m = self._check_mask(mask, of, non_temporal)
        n_align = self._check_align(align, to)
        return self.emit(of, lambda result, line: Load(result, pointer, n_align, m, non_temporal, location=line))

    def store(
        self,
        address: Value,
        value: ValueOrNumber,
        *,
        align: int | None = None,
        mask: Value | None = None,
        non_temporal: bool = False,
    ) -> None:
        """Writes a value, or the lanes of a vector one after the other. Lanes where a mask is false are not written.

        Non-temporal stores pass the cache by; other threads see them after a sequentially consistent atomic access.
        """
        pointer, to = self._pointer(address)
        lanes = value.type.lanes if isinstance(value, Value) and isinstance(value.type, Vector) else None
        stored = self.coerce(value, self._in_memory(to, lanes))
        m = self._check_mask(mask, stored.type, non_temporal)
        n_align = self._check_align(align, to)
        self.append(Store(pointer, stored, n_align, m, non_temporal, location=calling_line()))

    def prefetch(self, address: Value, *, locality: int = 3, for_write: bool = False) -> None:
        """Asks for the cache line at an address, which may be anywhere. Locality 3 keeps it close, 0 is for one use."""
        pointer, _ = self._pointer(address)
        if not 0 <= locality <= 3:
            self.fail(f"the locality of a prefetch is 0 to 3, not {locality}")
        self.append(Prefetch(pointer, locality, for_write, location=calling_line()))

    def atomic_load(self, address: Value, ordering: Ordering = Ordering.SEQUENTIAL) -> Value:
        """Reads an i32 or i64 that other threads write."""
        pointer, to = self._atomic(address)
        self._check_ordering("load", ordering, _LOAD_ORDERINGS)
        return self.emit(to, lambda result, line: AtomicLoad(result, pointer, ordering, location=line))

    def atomic_store(self, address: Value, value: ValueOrNumber, ordering: Ordering = Ordering.SEQUENTIAL) -> None:
        """Writes an i32 or i64 that other threads read."""
        pointer, to = self._atomic(address)
        self._check_ordering("store", ordering, _STORE_ORDERINGS)
        self.append(AtomicStore(pointer, self.coerce(value, to), ordering, location=calling_line()))

    def atomic_add(self, address: Value, value: ValueOrNumber, ordering: Ordering = Ordering.SEQUENTIAL) -> Value:
        """Adds to an i32 or i64; the value that was there before."""
        return self._update(AtomicOp.ADD, address, value, ordering)

    def atomic_exchange(self, address: Value, value: ValueOrNumber, ordering: Ordering = Ordering.SEQUENTIAL) -> Value:
        """Replaces an i32 or i64; the value that was there before."""
        return self._update(AtomicOp.EXCHANGE, address, value, ordering)

    def atomic_compare_exchange(
        self,
        address: Value,
        expected: ValueOrNumber,
        desired: ValueOrNumber,
        ordering: Ordering = Ordering.SEQUENTIAL,
    ) -> tuple[Value, Value]:
        """Writes `desired` where `expected` stands. The value that was there before, and whether it was replaced."""
        pointer, to = self._atomic(address)
        old, new, line = self.coerce(expected, to), self.coerce(desired, to), calling_line()
        result, swapped = self.new_register(to), self.new_register(i1)
        self.append(CompareExchange(result, swapped, pointer, old, new, ordering, location=line))
        return Value(self, result), Value(self, swapped)

    def pause(self) -> None:
        """Tells the CPU that this thread spins, so that it gives way to its neighbour."""
        self.append(Pause(location=calling_line()))

    def _update(self, op: AtomicOp, address: Value, value: ValueOrNumber, ordering: Ordering) -> Value:
        pointer, to = self._atomic(address)
        operand = self.coerce(value, to)
        return self.emit(to, lambda result, line: AtomicUpdate(result, op, pointer, operand, ordering, location=line))

    def _pointer(self, address: Value) -> tuple[Operand, Pointee]:
        operand = self.operand(address)
        if not isinstance(operand.type, Pointer):
            self.fail(f"an address must be a pointer, not {operand.type}")
        return operand, operand.type.to

    def _atomic(self, address: Value) -> tuple[Operand, Scalar]:
        operand, to = self._pointer(address)
        if not isinstance(to, Scalar) or to not in (i32, i64):
            self.fail(f"atomic accesses are for i32 and i64, not {to}")
        return operand, to

    def _in_memory(self, to: Pointee, lanes: int | None) -> Type:
        if lanes is None:
            return to
        if not isinstance(to, Scalar):
            self.fail(f"vectors hold numbers, not {to}")
        return vec(to, lanes)

    def _check_mask(self, mask: Value | None, of: Type, non_temporal: bool) -> Operand | None:
        if mask is None:
            return None
        if non_temporal:
            self.fail("a masked access can't be non-temporal")
        if not isinstance(of, Vector):
            self.fail(f"masks are for vectors, not {of}")
        return self.coerce(mask, vec(i1, lanes_of(of)))

    def _check_align(self, align: int | None, to: Pointee) -> int:
        if align is None:
            return size_in_memory(to)
        if align < 1 or align & (align - 1):
            self.fail(f"an alignment is a power of two, not {align}")
        return align

    def _check_ordering(self, what: str, ordering: Ordering, allowed: tuple[Ordering, ...]) -> None:
        if ordering not in allowed:
            self.fail(f"an atomic {what} can't be {ordering.name}: {', '.join(each.name for each in allowed)}")
