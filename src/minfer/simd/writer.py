"""Writes LLVM assembly, one instruction a line, and remembers which Python line each came from."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minfer.simd.errors import Location
from minfer.simd.types import Kind, Type, Vector, element_of


@dataclass(frozen=True, slots=True)
class Ref:
    """An LLVM value: its name (or constant) and its type. `lanes` is 0 for what is no vector."""

    name: str
    element: str
    lanes: int

    @property
    def type(self) -> str:
        return type_text(self.element, self.lanes)

    @property
    def typed(self) -> str:
        return f"{self.type} {self.name}"

    @property
    def mangled(self) -> str:
        """The type as it stands in the names of intrinsics."""
        short = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}.get(self.element, self.element)
        return f"v{self.lanes}{short}" if self.lanes else short


def type_text(element: str, lanes: int) -> str:
    return f"<{lanes} x {element}>" if lanes else element


def llvm_element(of: Type) -> str:
    """The LLVM element type for a type of ours. f16 and bf16 are their 16 bits: nothing computes with them."""
    element = element_of(of)
    if element is None:
        return "ptr"
    if element.kind is Kind.FLOAT and not element.is_storage_float:
        return "float" if element.bits == 32 else "double"
    return f"i{element.bits}"


def llvm_lanes(of: Type) -> int:
    return of.lanes if isinstance(of, Vector) else 0


class Writer:
    """The body of one function in the making."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Location | None]] = []
        self.declarations: dict[str, str] = {}
        self.location: Location | None = None
        self._n_names = 0

    def line(self, text: str) -> None:
        self.lines.append((text, self.location))

    def fresh(self) -> int:
        self._n_names += 1
        return self._n_names

    def new(self, element: str, lanes: int, text: str) -> Ref:
        """Writes an instruction and names its result."""
        name = f"%t{self.fresh()}"
        self.line(f"  {name} = {text}")
        return Ref(name, element, lanes)

    def constant(self, like: Ref, number: float) -> Ref:
        """A number as the type of `like`, in every lane."""
        return self.constant_of(like.element, like.lanes, (number,))

    def constant_of(self, element: str, lanes: int, numbers: Sequence[int | float]) -> Ref:
        texts = [constant_text(element, number) for number in numbers]
        if not lanes:
            return Ref(texts[0], element, 0)
        if len(texts) == 1:
            texts *= lanes
        return Ref(f"<{', '.join(f'{element} {text}' for text in texts)}>", element, lanes)

    def binary(self, op: str, a: Ref, b: Ref | float) -> Ref:
        other = b if isinstance(b, Ref) else self.constant(a, b)
        return self.new(a.element, a.lanes, f"{op} {a.typed}, {other.name}")

    def compare(self, op: str, a: Ref, b: Ref | float) -> Ref:
        """`op` is `icmp` or `fcmp` with its predicate."""
        other = b if isinstance(b, Ref) else self.constant(a, b)
        return self.new("i1", a.lanes, f"{op} {a.typed}, {other.name}")

    def select(self, mask: Ref, a: Ref, b: Ref) -> Ref:
        return self.new(a.element, a.lanes, f"select {mask.typed}, {a.typed}, {b.typed}")

    def convert(self, op: str, a: Ref, element: str) -> Ref:
        """A cast that keeps the lanes."""
        return self.new(element, a.lanes, f"{op} {a.typed} to {type_text(element, a.lanes)}")

    def bitcast(self, a: Ref, element: str, lanes: int) -> Ref:
        if (a.element, a.lanes) == (element, lanes):
            return a
        return self.new(element, lanes, f"bitcast {a.typed} to {type_text(element, lanes)}")

    def splat(self, a: Ref, lanes: int) -> Ref:
        of = type_text(a.element, lanes)
        first = self.new(a.element, lanes, f"insertelement {of} poison, {a.typed}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.new(a.element, lanes, f"shufflevector {first.typed}, {of} poison, {zeros}")

    def shuffle(self, a: Ref, b: Ref | None, indices: Sequence[int]) -> Ref:
        other = b.typed if b is not None else f"{a.type} poison"
        chosen = ", ".join(f"i32 {index}" for index in indices)
        return self.new(a.element, len(indices), f"shufflevector {a.typed}, {other}, <{len(indices)} x i32> <{chosen}>")

    def call(self, name: str, element: str, lanes: int, arguments: Sequence[Ref]) -> Ref:
        """Calls an intrinsic that returns a value."""
        self._declare(name, type_text(element, lanes), [argument.type for argument in arguments])
        given = ", ".join(argument.typed for argument in arguments)
        return self.new(element, lanes, f"call {type_text(element, lanes)} @{name}({given})")

    def call_void(self, name: str, arguments: Sequence[Ref]) -> None:
        self._declare(name, "void", [argument.type for argument in arguments])
        self.line(f"  call void @{name}({', '.join(argument.typed for argument in arguments)})")

    def in_pieces(self, operands: Sequence[Ref], widths: Sequence[int], make: Callable[[Sequence[Ref]], Ref]) -> Ref:
        """Applies `make` to pieces of as many lanes as machine instructions take, and joins the results.

        `widths` lists the lanes that instructions exist for, widest first. Operands may have a multiple of the first
        one's lanes. What is left over is filled up to the narrowest width; what comes of that is dropped.
        """
        n_lanes = operands[0].lanes
        results: list[Ref] = []
        start = 0
        while start < n_lanes:
            width = next((each for each in widths if each <= n_lanes - start), widths[-1])
            if (start, width) == (0, n_lanes):
                return make(operands)
            pieces = []
            for operand in operands:
                ratio = operand.lanes // n_lanes
                wanted = range(start * ratio, (start + width) * ratio)
                pieces.append(self.shuffle(operand, None, [min(lane, operand.lanes - 1) for lane in wanted]))
            results.append(make(pieces))
            start += width
        return self._joined(results, n_lanes)

    def _joined(self, pieces: list[Ref], n_lanes: int) -> Ref:
        whole = pieces[0]
        for piece in pieces[1:]:
            # A shuffle takes two vectors of one type: the shorter is stretched first.
            width = max(whole.lanes, piece.lanes)
            a, b = (self._stretched(each, width) for each in (whole, piece))
            indices = [*range(whole.lanes), *range(width, width + piece.lanes)]
            whole = self.shuffle(a, b, indices)
        return whole if whole.lanes == n_lanes else self.shuffle(whole, None, range(n_lanes))

    def _stretched(self, a: Ref, lanes: int) -> Ref:
        return a if a.lanes == lanes else self.shuffle(a, None, [min(lane, a.lanes - 1) for lane in range(lanes)])

    def _declare(self, name: str, returns: str, takes: list[str]) -> None:
        self.declarations[name] = f"declare {returns} @{name}({', '.join(takes)})"


def constant_text(element: str, number: float) -> str:
    """A number as LLVM writes it. Floats are the bits of the double of the same value, so that nothing is rounded."""
    if element in ("float", "double"):
        return f"0x{struct.pack('>d', number).hex().upper()}"
    return str(int(number))
