"""`dot4` and `lookup16`: exact on every target, at the extremes too."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.simd import InterpretError, Kernel, KernelIR, host_target_names, i8, i32, interpret, ptr, u8
from simd_runs import Everywhere, Lanewise

LANES = (1, 3, 4, 8, 16, 20, 32)
U_MAX = (15, 127, 128, 255)
TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
LOOKUP = {lanes: Lanewise(f"lookup_{lanes}", (u8,), i8, lambda k, x: k.lookup16(TABLE, x), lanes) for lanes in LANES}


def dot(lanes: int, u_max: int) -> KernelIR:
    k = Kernel(f"dot_{lanes}_{u_max}", acc=ptr(i32), u=ptr(u8), s=ptr(i8))
    acc, u, s = k.args
    once = k.dot4(k.load(acc, lanes), k.load(u, 4 * lanes), k.load(s, 4 * lanes), u_max=u_max)
    k.store(acc, k.dot4(once, k.load(u, 4 * lanes), k.load(s, 4 * lanes), u_max=u_max))
    return k.finish()


@pytest.fixture(scope="module")
def everywhere() -> Everywhere:
    kernels = [*(dot(lanes, u_max) for lanes in LANES for u_max in U_MAX), *(each.kernel() for each in LOOKUP.values())]
    return Everywhere(kernels, host_target_names())


def operands(lanes: int, u_max: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(lanes * u_max)
    n = 4 * lanes
    random = [
        (
            rng.integers(-(2**31), 2**31, lanes).astype(np.int32),
            rng.integers(0, u_max + 1, n).astype(np.uint8),
            rng.integers(-128, 128, n).astype(np.int8),
        )
        for _ in range(4)
    ]
    zero = np.zeros(lanes, np.int32)
    # The sums of two products that saturate 16 bits, if anything does, and alternating signs.
    extremes = [(zero, np.full(n, u_max, np.uint8), np.full(n, s, np.int8)) for s in (-128, 127)]
    alternating = np.where(np.arange(n) % 2, 127, -128).astype(np.int8)
    return [*random, *extremes, (zero, np.full(n, u_max, np.uint8), alternating)]


@pytest.mark.parametrize("u_max", U_MAX)
@pytest.mark.parametrize("lanes", LANES)
def test_dot4_is_exact(everywhere: Everywhere, lanes: int, u_max: int) -> None:
    for acc, u, s in operands(lanes, u_max):
        found, *_ = everywhere.run(f"dot_{lanes}_{u_max}", lambda a=acc, u=u, s=s: [a.copy(), u, s])
        exact = acc + 2 * (u.astype(np.int64) * s).reshape(lanes, 4).sum(axis=1)
        assert (found == exact.astype(np.int32)).all()


def test_the_interpreter_holds_dot4_to_its_promise() -> None:
    u = np.full(16, 16, np.uint8)
    with pytest.raises(InterpretError, match="16, and u_max promises 15"):
        interpret(dot(4, 15), np.zeros(4, np.int32), u, np.zeros(16, np.int8))


@pytest.mark.parametrize("lanes", LANES)
def test_lookup16(everywhere: Everywhere, lanes: int) -> None:
    indices = np.concatenate([np.arange(16), np.random.default_rng(1).integers(0, 16, 80)]).astype(np.uint8)
    found = everywhere.lanewise(LOOKUP[lanes], indices)
    assert found.tolist() == [TABLE[index] for index in indices]


def test_the_interpreter_refuses_an_index_beyond_the_table() -> None:
    with pytest.raises(InterpretError, match="the index 16 is beyond the table"):
        interpret(LOOKUP[16].kernel(), np.full(16, 16, np.uint8), np.zeros(16, np.int8), 16)
